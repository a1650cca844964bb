/* N stock REQ clients (depth=1) or pipelining DEALER clients (depth>1), each in its own thread, against one ROUTER.
 *
 * Every reply is looked into: it must contain `expect`. A reply that does not come within ten seconds is an error
 * and ends its client, so that a dead broker can never look like a slow one. */
#define _GNU_SOURCE
#include <zmq.h>

#include "load.h"

enum { REQUEST_BYTES = 65536, REPLY_TIMEOUT_MS = 10000 };

static void *context;

static int send_request(void *socket, const char *request, size_t length)
{
    if (options.depth > 1 && zmq_send(socket, "", 0, ZMQ_SNDMORE) < 0)
        return 0;
    return zmq_send(socket, request, length, 0) >= 0;
}

/* -1: nothing came; 0: a wrong reply; 1: a right one. */
static int receive_reply(void *socket, zmq_msg_t *reply)
{
    if (zmq_msg_recv(reply, socket, 0) < 0)
        return -1;
    if (options.depth > 1 && zmq_msg_more(reply) && zmq_msg_recv(reply, socket, 0) < 0)
        return -1;
    int is_right = !zmq_msg_more(reply) && load_contains(zmq_msg_data(reply), zmq_msg_size(reply));
    while (zmq_msg_more(reply) && zmq_msg_recv(reply, socket, 0) >= 0)
        ;
    return is_right;
}

static int secure(void *socket)
{
    return !options.server_key ||
           (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, options.server_key, 41) == 0 &&
            zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, options.public_key, 41) == 0 &&
            zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, options.secret_key, 41) == 0);
}

static void *client_main(void *argument)
{
    load_client *client = argument;
    char *request = malloc(REQUEST_BYTES);
    uint64_t *sent_at = calloc((size_t)options.depth, sizeof *sent_at);
    zmq_msg_t reply;
    zmq_msg_init(&reply);
    void *socket = zmq_socket(context, options.depth > 1 ? ZMQ_DEALER : ZMQ_REQ);
    int timeout = REPLY_TIMEOUT_MS, linger = 0;
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout, sizeof timeout);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    int is_up = request && sent_at && secure(socket) && zmq_connect(socket, options.endpoint) == 0 &&
                send_request(socket, options.warm, strlen(options.warm)) && receive_reply(socket, &reply) >= 0;
    load_ready(client);
    client->errors += !is_up;
    uint64_t sent = 0, received = 0, n = 0;
    while (is_up && (n != UINT64_MAX || received < sent)) {
        while (n != UINT64_MAX && sent - received < (uint64_t)options.depth) {
            if ((n = load_next(client)) == UINT64_MAX)
                break;
            size_t length = load_fill(request, REQUEST_BYTES, options.request, n);
            sent_at[sent++ % (uint64_t)options.depth] = now_ns();
            if (!send_request(socket, request, length))
                client->errors++;
        }
        if (received < sent) {
            int answer = receive_reply(socket, &reply);
            if (answer < 0) {
                client->errors += sent - received;
                break;
            }
            load_done(client, sent_at[received++ % (uint64_t)options.depth], answer);
        }
    }
    zmq_msg_close(&reply);
    zmq_close(socket);
    free(request);
    free(sent_at);
    return NULL;
}

int main(int argc, char **argv)
{
    load_parse(argc, argv);
    context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, options.clients + 16);
    int status = load_run();
    zmq_ctx_term(context);
    return status;
}
