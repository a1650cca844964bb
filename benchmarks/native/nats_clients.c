/* N NATS request-reply clients, each with its own connection and thread; a first argument `serve` makes this the
 * responder, which answers every request on `bench` with `request` until it is stopped. */
#define _GNU_SOURCE
#include <nats/nats.h>
#include <unistd.h>

#include "load.h"

enum { REPLY_TIMEOUT_MS = 10000 };

static void *client_main(void *argument)
{
    load_client *client = argument;
    natsConnection *connection = NULL;
    natsMsg *reply = NULL;
    int length = (int)strlen(options.request);
    int is_up = natsConnection_ConnectTo(&connection, options.endpoint) == NATS_OK &&
                natsConnection_Request(&reply, connection, "bench", options.request, length, REPLY_TIMEOUT_MS) == NATS_OK;
    natsMsg_Destroy(reply);
    load_ready(client);
    client->errors += !is_up;
    while (is_up && load_next(client) != UINT64_MAX) {
        uint64_t sent_at = now_ns();
        reply = NULL;
        is_up = natsConnection_Request(&reply, connection, "bench", options.request, length, REPLY_TIMEOUT_MS) == NATS_OK;
        load_done(client, sent_at, is_up && load_contains(natsMsg_GetData(reply), (size_t)natsMsg_GetDataLength(reply)));
        natsMsg_Destroy(reply);
    }
    natsConnection_Destroy(connection);
    return NULL;
}

static void answer(natsConnection *connection, natsSubscription *subscription, natsMsg *message, void *closure)
{
    (void)subscription;
    (void)closure;
    natsConnection_Publish(connection, natsMsg_GetReply(message), options.request, (int)strlen(options.request));
    natsMsg_Destroy(message);
}

static int serve(void)
{
    natsOptions *settings = NULL;
    natsConnection *connection = NULL;
    natsSubscription *subscription = NULL;
    /* Send as it is published: a buffered reply would wait for the client library's flusher thread. */
    if (natsOptions_Create(&settings) != NATS_OK || natsOptions_SetURL(settings, options.endpoint) != NATS_OK ||
        natsOptions_SetSendAsap(settings, true) != NATS_OK ||
        natsConnection_Connect(&connection, settings) != NATS_OK ||
        natsConnection_Subscribe(&subscription, connection, "bench", answer, NULL) != NATS_OK ||
        natsConnection_FlushTimeout(connection, REPLY_TIMEOUT_MS) != NATS_OK)
        return 2;
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "serve")) {
        load_parse(argc - 1, argv + 1);
        return serve();
    }
    load_parse(argc, argv);
    int status = load_run();
    nats_Close();
    return status;
}
