/* N clients of the broker's unix socket, each in its own thread, with `depth` requests on their way.
 *
 * A frame is a length (4 bytes, little-endian, of what follows), a byte for the kind (0: request, reply) and JSON.
 * Every reply is looked into: it must contain `expect`. A reply that does not come within ten seconds is an error and
 * ends its client, so that a dead broker can never look like a slow one. `endpoint` is the path of the socket. */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "load.h"

enum { BUFFER_BYTES = 1 << 20, HEAD_BYTES = 5, REPLY_TIMEOUT_SECONDS = 10 };

typedef struct {
    int fd;
    uint8_t *bytes;
    size_t begin, end;
} stream;

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval timeout = {.tv_sec = REPLY_TIMEOUT_SECONDS};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || strlen(path) >= sizeof address.sun_path)
        return -1;
    strcpy(address.sun_path, path);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    return connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ? fd : -1;
}

/* Send the JSON that stands behind the room for a head. */
static int send_request(int fd, uint8_t *frame, size_t length)
{
    uint32_t size = (uint32_t)length + 1; /* x86 and ARM are little-endian */
    memcpy(frame, &size, sizeof size);
    frame[HEAD_BYTES - 1] = 0;
    for (size_t sent = 0; sent < length + HEAD_BYTES;) {
        ssize_t taken = send(fd, frame + sent, length + HEAD_BYTES - sent, MSG_NOSIGNAL);
        if (taken <= 0)
            return 0;
        sent += (size_t)taken;
    }
    return 1;
}

/* -1: nothing came; 0: a wrong reply; 1: a right one. */
static int receive_reply(stream *in)
{
    for (;;) {
        size_t here = in->end - in->begin;
        uint32_t size = 0;
        if (here >= HEAD_BYTES) {
            memcpy(&size, in->bytes + in->begin, sizeof size);
            if (size + 4 > BUFFER_BYTES)
                return -1;
            if (here >= size + 4) {
                int is_right = in->bytes[in->begin + 4] == 0 &&
                               load_contains(in->bytes + in->begin + HEAD_BYTES, size - 1);
                in->begin += size + 4;
                return is_right;
            }
        }
        memmove(in->bytes, in->bytes + in->begin, here);
        in->begin = 0;
        in->end = here;
        ssize_t came = recv(in->fd, in->bytes + here, BUFFER_BYTES - here, 0);
        if (came <= 0)
            return -1;
        in->end += (size_t)came;
    }
}

static void *client_main(void *argument)
{
    load_client *client = argument;
    uint8_t *frame = malloc(BUFFER_BYTES);
    char *json = (char *)frame + HEAD_BYTES;
    uint64_t *sent_at = calloc((size_t)options.depth, sizeof *sent_at);
    stream in = {.fd = connect_to(options.endpoint), .bytes = malloc(BUFFER_BYTES)};
    int is_up = frame && sent_at && in.bytes && in.fd >= 0;
    if (is_up) {
        size_t length = load_fill(json, BUFFER_BYTES - HEAD_BYTES, options.warm, 0);
        is_up = send_request(in.fd, frame, length) && receive_reply(&in) >= 0;
    }
    load_ready(client);
    client->errors += !is_up;
    uint64_t sent = 0, received = 0, n = 0;
    while (is_up && (n != UINT64_MAX || received < sent)) {
        while (n != UINT64_MAX && sent - received < (uint64_t)options.depth) {
            if ((n = load_next(client)) == UINT64_MAX)
                break;
            size_t length = load_fill(json, BUFFER_BYTES - HEAD_BYTES, options.request, n);
            sent_at[sent++ % (uint64_t)options.depth] = now_ns();
            if (!send_request(in.fd, frame, length))
                client->errors++;
        }
        if (received < sent) {
            int answer = receive_reply(&in);
            if (answer < 0) {
                client->errors += sent - received;
                break;
            }
            load_done(client, sent_at[received++ % (uint64_t)options.depth], answer);
        }
    }
    if (in.fd >= 0)
        close(in.fd);
    free(in.bytes);
    free(frame);
    free(sent_at);
    return NULL;
}

int main(int argc, char **argv)
{
    load_parse(argc, argv);
    return load_run();
}
