/* A stress of ring.h without Python: a writer and readers over one shared mapping.
 *
 * As processes they are killed with SIGKILL at random and replaced; as threads (built with ThreadSanitizer) they only run.
 * The first half of the rings overwrite, the second half block for their readers. Every payload carries its number in
 * every word; readers check it when they get it and again before they let go of it.
 *
 * ring_stress SECONDS SEED [threads]
 *
 * Prints one line of counts; the exit status is 0 if nothing bad was found. "torn": a payload with words of another item,
 * "lost": a gap in front of a reader that must not lose anything, "stalls": unread items, or room, that nobody was woken for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "ring.h"

enum { SLOTS = 4, SLOT_WORDS = 64, STRIDE = SLOT_WORDS * 8, READERS = 3, RINGS = 2, HELD = 2, STALL_MS = 4000 };
enum { TABLE = 512, TIMES = 1024, DATA_OFFSET = 16384 };

typedef struct {
    uint64_t words[DATA_OFFSET / 8 + SLOTS * SLOT_WORDS];
    _Alignas(64) uint64_t token;
    _Alignas(64) uint64_t lives[READERS];              /* set by the parent: the reader's lock */
    _Alignas(64) uint64_t files[READERS][8 + SLOTS];   /* the words, then the pins */
    _Alignas(64) uint64_t read_total, written, torn, lost, stalls, kills, restored;
    _Alignas(64) uint64_t is_over;
} Ring;

static Ring *rings;
static int reader_pipes[RINGS][READERS][2], writer_pipes[RINGS][2];

static void add(uint64_t *word, uint64_t value) { __atomic_fetch_add(word, value, __ATOMIC_RELAXED); }

static uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13, *state ^= *state >> 17, *state ^= *state << 5;
    return *state;
}

static int is_over(const Ring *ring) { return mh_load(&ring->is_over) != 0; }

static void wake(const int pipe[2]) {
    ssize_t written = write(pipe[1], "!", 1);
    (void)written;
}

/* Whether somebody woke us. */
static int sleep_on(int fd) {
    struct pollfd polled = {fd, POLLIN, 0};
    char bytes[64];
    int woken = poll(&polled, 1, STALL_MS) > 0;
    if (woken && read(fd, bytes, sizeof bytes) < 0 && errno != EAGAIN)
        abort();
    return woken;
}

static mh_block block_of(Ring *ring) {
    return (mh_block){ring->words, TABLE, TIMES, DATA_OFFSET, STRIDE, STRIDE, SLOTS};
}

/* --- the writer */

typedef struct {
    mh_writer w;
    uint64_t sequences[SLOTS];
    uint32_t next[SLOTS], previous[SLOTS];
    mh_peer peers[READERS];
} Writing;

static void list_readers(Ring *ring, int number, mh_writer *w) {
    w->token = mh_load_acquire(&ring->token);
    mh_fence();
    w->peer_count = 0;
    for (int i = 0; i < READERS; i++)
        if (mh_load_acquire(&ring->lives[i]))
            w->peers[w->peer_count++] = (mh_peer){ring->files[i], (uint8_t *)(ring->files[i] + 8), 0, reader_pipes[number][i][1]};
    w->floor = w->honours_readers ? mh_floor(w) : MH_UNLIMITED;
}

static void take_over(Ring *ring, int number, Writing *writing) {
    mh_writer *w = &writing->w;
    memset(writing, 0, sizeof *writing);
    w->block = block_of(ring);
    w->honours_readers = number % 2;
    w->sequences = writing->sequences, w->next = writing->next, w->previous = writing->previous;
    w->peers = writing->peers, w->index = &ring->token;
    w->oldest = w->newest = w->parked_first = MH_NO_SLOT;
    w->head = mh_load(ring->words + MH_HEAD);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        uint64_t *sequence = mh_line(&w->block, slot) + MH_SEQUENCE;
        if (mh_load(sequence) & MH_CLAIM)
            mh_store(sequence, mh_load(sequence) & ~MH_CLAIM), add(&ring->restored, 1);
        w->sequences[slot] = mh_load(sequence);
        w->head = w->sequences[slot] > w->head ? w->sequences[slot] : w->head;
    }
    for (uint32_t taken = 0; taken < SLOTS; taken++) { /* by age */
        uint32_t best = MH_NO_SLOT;
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            int is_linked = 0;
            for (uint32_t at = w->oldest; at != MH_NO_SLOT; at = w->next[at])
                is_linked |= at == slot;
            if (!is_linked && (best == MH_NO_SLOT || w->sequences[slot] < w->sequences[best]))
                best = slot;
        }
        mh_add_newest(w, best);
    }
    mh_store(ring->words + MH_WRITER_TICKET, 0);
    mh_store_release(ring->words + MH_HEAD, w->head);
    list_readers(ring, number, w);
    mh_fence();
    mh_wake(w);
}

static void write_for_ever(int number, uint32_t seed) {
    Ring *ring = &rings[number];
    Writing writing;
    mh_writer *w = &writing.w;
    uint64_t ticket = (uint64_t)seed << 32;
    uint32_t slots[2];
    int was_woken = 1;
    take_over(ring, number, &writing);
    while (!is_over(ring)) {
        uint32_t count = next_random(&seed) % 16 ? 1 : 2;
        enum mh_claimed result = mh_claim(w, count, slots);
        if (result == MH_REFRESH || result == MH_LOOK) {
            list_readers(ring, number, w);
            continue;
        }
        if (result == MH_FULL) {
            mh_store(ring->words + MH_WRITER_TICKET, ++ticket);
            mh_fence();
            list_readers(ring, number, w);
            result = mh_claim(w, count, slots);
            if (result == MH_FULL)
                was_woken = sleep_on(writer_pipes[number][0]);
            if (result != MH_CLAIMED)
                continue;
        }
        if (!was_woken)
            add(&ring->stalls, 1);
        was_woken = 1;
        if (mh_load(ring->words + MH_WRITER_TICKET))
            mh_store(ring->words + MH_WRITER_TICKET, 0);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t *payload = (uint64_t *)mh_payload(&w->block, slots[i]);
            if (next_random(&seed) % 64 == 0) {
                mh_abandon(w, slots[i]);
                continue;
            }
            for (int word = 0; word < SLOT_WORDS; word++)
                payload[word] = w->head + 1;
            mh_publish(w, slots[i], STRIDE);
            add(&ring->written, 1);
        }
        if (next_random(&seed) % 256 == 0)
            sched_yield();
    }
}

/* --- a reader */

static int is_torn(const uint64_t *payload, uint64_t number) {
    for (int word = 0; word < SLOT_WORDS; word++)
        if (payload[word] != number)
            return 1;
    return 0;
}

static void wake_writer(Ring *ring, int number) {
    if (mh_load(ring->words + MH_WRITER_TICKET))
        wake(writer_pipes[number]);
}

typedef struct {
    uint32_t slot;
    uint64_t sequence;
} View;

static void let_go(Ring *ring, int number, mh_reader *r, View *view) {
    if (is_torn((uint64_t *)mh_payload(&r->block, view->slot), view->sequence))
        add(&ring->torn, 1);
    mh_unpin(r, view->slot);
    wake_writer(ring, number);
    view->sequence = 0;
}

/* The slot that holds an item, or is claimed with it; MH_NO_SLOT: lost. */
static uint32_t search(const mh_reader *r, uint64_t wanted, int *is_claimed) {
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        uint64_t sequence = mh_load_acquire(mh_line(&r->block, slot) + MH_SEQUENCE);
        if ((sequence & ~MH_CLAIM) == wanted) {
            *is_claimed = sequence != wanted;
            return slot;
        }
    }
    return MH_NO_SLOT;
}

static void read_for_ever(int number, int index, uint32_t seed, int only_pinned) {
    Ring *ring = &rings[number];
    uint32_t counts[SLOTS] = {0};
    View held[HELD] = {{0, 0}, {0, 0}};
    uint64_t ticket = (uint64_t)seed << 32;
    int is_lossless = number % 2;
    mh_reader reader = {block_of(ring), ring->files[index], (uint8_t *)(ring->files[index] + 8), counts, 0, {0, 0}}, *r = &reader;
    mh_store(r->file + MH_LOSSLESS, (uint64_t)is_lossless);
    add(&ring->token, 1); /* the parent has emptied the file: its cursor is 0 */
    mh_fence();
    mh_advance(r, mh_load_acquire(ring->words + MH_HEAD));
    wake_writer(ring, number);
    while (!is_over(ring)) {
        uint64_t wanted = r->cursor + 1;
        int is_claimed = 0;
        uint32_t slot = mh_hinted(r, wanted);
        if (slot == MH_NO_SLOT && mh_load_acquire(ring->words + MH_HEAD) >= wanted) {
            slot = search(r, wanted, &is_claimed);
            if (slot == MH_NO_SLOT) {
                if (is_lossless)
                    add(&ring->lost, 1);
                mh_advance(r, wanted);
                wake_writer(ring, number);
                continue;
            }
        }
        if (slot != MH_NO_SLOT && !is_claimed) {
            const uint64_t *payload = (uint64_t *)mh_payload(&r->block, slot);
            if (!only_pinned && next_random(&seed) % 2) {
                uint64_t copied[SLOT_WORDS];
                memcpy(copied, payload, sizeof copied);
                if (!mh_is_unchanged(r, slot, wanted))
                    continue;
                if (is_torn(copied, wanted))
                    add(&ring->torn, 1);
            } else {
                int is_first = counts[slot] == 0;
                if (!mh_pin(r, slot, wanted)) {
                    if (is_first)
                        wake_writer(ring, number);
                    continue;
                }
                View *view = &held[next_random(&seed) % HELD];
                if (view->sequence)
                    let_go(ring, number, r, view);
                *view = (View){slot, wanted};
                if (is_torn(payload, wanted))
                    add(&ring->torn, 1);
            }
            if (mh_advance(r, wanted))
                wake_writer(ring, number);
            add(&ring->read_total, 1);
            if (next_random(&seed) % 8 == 0)
                for (int i = 0; i < HELD; i++)
                    if (held[i].sequence)
                        let_go(ring, number, r, &held[i]);
            continue;
        }
        for (int i = 0; i < HELD; i++)
            if (held[i].sequence)
                let_go(ring, number, r, &held[i]);
        mh_store(r->file + MH_TICKET, ++ticket);
        mh_fence();
        if (mh_hinted(r, wanted) == MH_NO_SLOT && !sleep_on(reader_pipes[number][index][0]))
            if (mh_load_acquire(ring->words + MH_HEAD) >= wanted && !is_over(ring))
                add(&ring->stalls, 1);
        mh_store(r->file + MH_TICKET, 0);
    }
}

/* --- the parent */

typedef struct {
    int number, index; /* -1: the writer */
    uint32_t seed;
    pthread_t thread;
    pid_t pid;
} Worker;

static void *run_as_thread(void *argument) {
    Worker *worker = argument;
    if (worker->index < 0)
        write_for_ever(worker->number, worker->seed);
    else
        read_for_ever(worker->number, worker->index, worker->seed, 1);
    return NULL;
}

static void start(Worker *worker, uint32_t seed) {
    Ring *ring = &rings[worker->number];
    if (worker->index >= 0) { /* whose lock is taken before its file can be seen */
        memset(ring->files[worker->index], 0, sizeof ring->files[worker->index]);
        mh_store_release(&ring->lives[worker->index], 1);
    }
    worker->seed = seed | 1;
    worker->pid = fork();
    if (worker->pid < 0)
        perror("fork"), exit(2);
    if (worker->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (worker->index < 0)
            write_for_ever(worker->number, worker->seed);
        else
            read_for_ever(worker->number, worker->index, worker->seed, 0);
        _exit(0);
    }
}

static void kill_worker(Worker *worker) {
    Ring *ring = &rings[worker->number];
    int status;
    kill(worker->pid, SIGKILL);
    if (waitpid(worker->pid, &status, 0) != worker->pid || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        fprintf(stderr, "a process ended by itself: %x\n", status), exit(3);
    add(&ring->kills, 1);
    if (worker->index >= 0) {
        mh_store_release(&ring->lives[worker->index], 0);
        add(&ring->token, 1); /* a new one has the same file: the writer must not take the pins of the dead for its */
        mh_fence();
        wake(writer_pipes[worker->number]); /* which asks for the locks of its readers now and then */
    } else
        for (int i = 0; i < READERS; i++) /* as the death of a process that they watch does */
            wake(reader_pipes[worker->number][i]);
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 2;
    uint32_t seed = argc > 2 ? (uint32_t)atoi(argv[2]) | 1 : 1;
    int as_threads = argc > 3;
    Worker workers[RINGS * (1 + READERS)];
    int count = 0;
    signal(SIGPIPE, SIG_IGN);
    rings = mmap(NULL, sizeof(Ring) * RINGS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (rings == MAP_FAILED)
        return 2;
    for (int number = 0; number < RINGS; number++) {
        for (int i = 0; i < READERS; i++)
            if (pipe2(reader_pipes[number][i], O_NONBLOCK))
                return 2;
        if (pipe2(writer_pipes[number], O_NONBLOCK))
            return 2;
        for (int index = -1; index < READERS; index++)
            workers[count++] = (Worker){number, index, 0, 0, 0};
    }
    uint64_t end = mh_clock_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9);
    for (int i = 0; i < count; i++)
        if (as_threads) {
            workers[i].seed = next_random(&seed) | 1;
            if (workers[i].index >= 0)
                mh_store_release(&rings[workers[i].number].lives[workers[i].index], 1);
            if (pthread_create(&workers[i].thread, NULL, run_as_thread, &workers[i]))
                return 2;
        } else
            start(&workers[i], next_random(&seed));
    while (mh_clock_ns(CLOCK_MONOTONIC) < end) {
        usleep(500 + next_random(&seed) % 4000);
        if (as_threads)
            continue;
        Worker *worker = &workers[next_random(&seed) % (uint32_t)count];
        kill_worker(worker);
        start(worker, next_random(&seed));
    }
    for (int number = 0; number < RINGS; number++)
        mh_store(&rings[number].is_over, 1);
    for (int number = 0; number < RINGS; number++)
        for (int i = -1; i < READERS; i++)
            wake(i < 0 ? writer_pipes[number] : reader_pipes[number][i]);
    for (int i = 0; i < count; i++) {
        int status = 0;
        if (as_threads)
            pthread_join(workers[i].thread, NULL);
        else if (waitpid(workers[i].pid, &status, 0) != workers[i].pid || status)
            fprintf(stderr, "a process ended with %x\n", status), exit(3);
    }
    uint64_t bad = 0;
    for (int number = 0; number < RINGS; number++) {
        Ring *ring = &rings[number];
        printf("%s: written %lu read %lu kills %lu claims restored %lu torn %lu lost %lu stalls %lu\n", number % 2 ? "block" : "overwrite",
               (unsigned long)ring->written, (unsigned long)ring->read_total, (unsigned long)ring->kills,
               (unsigned long)ring->restored, (unsigned long)ring->torn, (unsigned long)ring->lost, (unsigned long)ring->stalls);
        bad += ring->torn + ring->lost + ring->stalls;
    }
    return bad != 0;
}
