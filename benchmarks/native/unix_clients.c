/* N clients of the broker's local socket, each in its own thread with up to `depth` requests in flight.
 *
 * `endpoint` is the path of the socket. Every reply is looked into: it must contain `expect`. A reply that does not come
 * within ten seconds is an error and ends its client, so that a dead broker can never look like a slow one. */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "load.h"

enum { REQUEST_BYTES = 65536, BUFFER_BYTES = 1 << 20, HEAD = 5, REPLY_TIMEOUT_SECONDS = 10 };

static int connected(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval timeout = {.tv_sec = REPLY_TIMEOUT_SECONDS};
    if (strlen(options.endpoint) >= sizeof address.sun_path)
        return -1;
    strcpy(address.sun_path, options.endpoint);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) ||
                    connect(fd, (struct sockaddr *)&address, sizeof address))) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Write a frame around the `length` bytes that stand HEAD bytes into `buffer`. */
static int send_request(int fd, char *buffer, size_t length)
{
    uint32_t counted = (uint32_t)length + 1;
    memcpy(buffer, &counted, 4);
    buffer[4] = 0;
    for (size_t sent = 0, size = length + HEAD; sent < size;) {
        ssize_t n = send(fd, buffer + sent, size - sent, MSG_NOSIGNAL);
        if (n <= 0)
            return 0;
        sent += (size_t)n;
    }
    return 1;
}

typedef struct {
    char *data;
    size_t begin, end;
} received;

/* -1: nothing came; 0: a wrong reply; 1: a right one. */
static int receive_reply(int fd, received *buffer)
{
    for (;;) {
        size_t here = buffer->end - buffer->begin;
        uint32_t counted = 0;
        if (here >= 4)
            memcpy(&counted, buffer->data + buffer->begin, 4);
        if (here >= HEAD && here >= counted + 4) {
            const char *frame = buffer->data + buffer->begin;
            buffer->begin += counted + 4;
            return frame[4] == 0 && load_contains(frame + HEAD, counted - 1);
        }
        memmove(buffer->data, buffer->data + buffer->begin, here);
        buffer->begin = 0;
        buffer->end = here;
        ssize_t n = recv(fd, buffer->data + here, BUFFER_BYTES - here, 0);
        if (n <= 0)
            return -1;
        buffer->end += (size_t)n;
    }
}

static void *client_main(void *argument)
{
    load_client *client = argument;
    char *request = malloc(HEAD + REQUEST_BYTES);
    received buffer = {.data = malloc(BUFFER_BYTES)};
    uint64_t *sent_at = calloc((size_t)options.depth, sizeof *sent_at);
    int fd = connected(), is_up = 0;
    if (request && buffer.data && sent_at && fd >= 0) {
        size_t length = strlen(options.warm);
        memcpy(request + HEAD, options.warm, length);
        is_up = send_request(fd, request, length) && receive_reply(fd, &buffer) >= 0;
    }
    load_ready(client);
    client->errors += !is_up;
    uint64_t sent = 0, done = 0, n = 0;
    while (is_up && (n != UINT64_MAX || done < sent)) {
        while (n != UINT64_MAX && sent - done < (uint64_t)options.depth) {
            if ((n = load_next(client)) == UINT64_MAX)
                break;
            size_t length = load_fill(request + HEAD, REQUEST_BYTES, options.request, n);
            sent_at[sent++ % (uint64_t)options.depth] = now_ns();
            client->errors += !send_request(fd, request, length);
        }
        if (done < sent) {
            int answer = receive_reply(fd, &buffer);
            if (answer < 0) {
                client->errors += sent - done;
                break;
            }
            load_done(client, sent_at[done++ % (uint64_t)options.depth], answer);
        }
    }
    close(fd);
    free(request);
    free(buffer.data);
    free(sent_at);
    return NULL;
}

int main(int argc, char **argv)
{
    load_parse(argc, argv);
    return load_run();
}
