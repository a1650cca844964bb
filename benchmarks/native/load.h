/* What every native load generator here shares: key=value arguments, a common start, exact latencies, one JSON line.
 *
 * A client thread runs `client_main`, which calls `load_ready` once when it is connected and warm, then
 * `load_next` before and `load_done` after each operation until `load_next` refuses. */
#ifndef LOAD_H
#define LOAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    const char *endpoint, *request, *expect, *warm;
    int clients, depth;
    double seconds;           /* the load ends after so many seconds ... */
    uint64_t operations;      /* ... or operations, whichever comes first */
    uint64_t first, modulo;   /* {n} in the request is (first + n) % modulo, n counting over all clients */
    double rate;              /* operations a second over all clients; 0 means as fast as replies come */
    const char *server_key, *public_key, *secret_key; /* for CURVE, all or none; a benchmark's keys die with it */
} load_options;

typedef struct {
    int index;
    uint32_t *nanoseconds;
    size_t count, capacity;
    uint64_t errors, started_at, ended_at, due_at;
} load_client;

static load_options options = {
    .endpoint = "", .request = "{\"type\":\"PING\"}", .expect = "", .warm = "{\"type\":\"PING\"}",
    .clients = 32, .depth = 1, .seconds = 1.0, .operations = UINT64_MAX, .modulo = UINT64_MAX,
};
static _Atomic uint64_t load_counter;
static pthread_barrier_t load_barrier;

static void *client_main(void *client);

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void load_ready(load_client *client)
{
    pthread_barrier_wait(&load_barrier);
    client->started_at = client->ended_at = now_ns();
    client->due_at = client->started_at;
    if (options.rate > 0) /* spread the clients over one period so that they do not fire together */
        client->due_at += (uint64_t)(1e9 / options.rate * client->index);
}

/* The number of the next operation, or UINT64_MAX when the load is over. */
static uint64_t load_next(load_client *client)
{
    uint64_t now = now_ns();
    if ((double)(now - client->started_at) >= options.seconds * 1e9)
        return UINT64_MAX;
    if (options.rate > 0 && now < client->due_at) {
        struct timespec due = {(time_t)(client->due_at / 1000000000u), (long)(client->due_at % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
    }
    client->due_at += options.rate > 0 ? (uint64_t)(1e9 * options.clients / options.rate) : 0;
    uint64_t n = atomic_fetch_add_explicit(&load_counter, 1, memory_order_relaxed);
    return n >= options.operations ? UINT64_MAX : (options.first + n) % options.modulo;
}

static void load_done(load_client *client, uint64_t sent_at, int is_right)
{
    uint64_t now = now_ns(), took = now - sent_at;
    if (client->count == client->capacity) {
        client->capacity = client->capacity ? client->capacity * 2 : 4096;
        client->nanoseconds = realloc(client->nanoseconds, client->capacity * sizeof(uint32_t));
        if (!client->nanoseconds)
            exit(2);
    }
    client->nanoseconds[client->count++] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
    client->errors += !is_right;
    client->ended_at = now;
}

/* Write `template` with every {n} replaced into `buffer`; the length, always below `size`. */
__attribute__((unused)) static size_t load_fill(char *buffer, size_t size, const char *template, uint64_t n)
{
    size_t used = 0;
    while (*template && used + 24 < size) {
        if (!strncmp(template, "{n}", 3)) {
            used += (size_t)sprintf(buffer + used, "%llu", (unsigned long long)n);
            template += 3;
        } else
            buffer[used++] = *template++;
    }
    return used;
}

static int load_contains(const void *reply, size_t length)
{
    return memmem(reply, length, options.expect, strlen(options.expect)) != NULL;
}

static void load_parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) {
            fprintf(stderr, "%s: expected key=value, got %s\n", argv[0], argv[i]);
            exit(2);
        }
        *value++ = 0;
        const char *key = argv[i];
        if (!strcmp(key, "endpoint")) options.endpoint = value;
        else if (!strcmp(key, "request")) options.request = value;
        else if (!strcmp(key, "expect")) options.expect = value;
        else if (!strcmp(key, "warm")) options.warm = value;
        else if (!strcmp(key, "clients")) options.clients = atoi(value);
        else if (!strcmp(key, "depth")) options.depth = atoi(value);
        else if (!strcmp(key, "seconds")) options.seconds = atof(value);
        else if (!strcmp(key, "operations")) options.operations = strtoull(value, NULL, 10);
        else if (!strcmp(key, "first")) options.first = strtoull(value, NULL, 10);
        else if (!strcmp(key, "modulo")) options.modulo = strtoull(value, NULL, 10);
        else if (!strcmp(key, "rate")) options.rate = atof(value);
        else if (!strcmp(key, "server_key")) options.server_key = value;
        else if (!strcmp(key, "public_key")) options.public_key = value;
        else if (!strcmp(key, "secret_key")) options.secret_key = value;
        else {
            fprintf(stderr, "%s: unknown key %s\n", argv[0], key);
            exit(2);
        }
    }
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Run all clients and print what they saw. Throughput counts from the first start to the last reply. */
static int load_run(void)
{
    load_client *clients = calloc((size_t)options.clients, sizeof *clients);
    pthread_t *threads = calloc((size_t)options.clients, sizeof *threads);
    if (!clients || !threads || pthread_barrier_init(&load_barrier, NULL, (unsigned)options.clients))
        return 2;
    for (int i = 0; i < options.clients; i++) {
        clients[i].index = i;
        if (pthread_create(&threads[i], NULL, client_main, &clients[i]))
            return 2;
    }
    size_t count = 0;
    uint64_t errors = 0, first = UINT64_MAX, last = 0;
    for (int i = 0; i < options.clients; i++) {
        pthread_join(threads[i], NULL);
        count += clients[i].count;
        errors += clients[i].errors;
        first = clients[i].started_at < first ? clients[i].started_at : first;
        last = clients[i].ended_at > last ? clients[i].ended_at : last;
    }
    uint32_t *all = malloc((count + 1) * sizeof *all);
    if (!all)
        return 2;
    size_t used = 0;
    for (int i = 0; i < options.clients; i++) {
        if (clients[i].count)
            memcpy(all + used, clients[i].nanoseconds, clients[i].count * sizeof *all);
        used += clients[i].count;
    }
    qsort(all, count, sizeof *all, by_value);
    all[count] = 0;
    printf("{\"operations\":%zu,\"errors\":%llu,\"seconds\":%.6f,\"p50_us\":%.1f,\"p99_us\":%.1f}\n", count,
           (unsigned long long)errors, (double)(last - first) / 1e9, all[count / 2] / 1e3, all[count * 99 / 100] / 1e3);
    return 0;
}

#endif
