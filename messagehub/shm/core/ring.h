/* The protocol of a ring, layout 3: what its writer and its readers load and store, and in which order.
 *
 * This header knows nothing of Python. It needs C11 and the GCC/Clang atomic built-ins. The words of the block are
 * described in messagehub/shm/layout.py, those of a reader's file in messagehub/shm/rings/reader_files.py.
 *
 * Rule 1: every word has one writer. The ring is written by the owner of its writer lock, a reader's file by that reader.
 * Rule 2: a slot's sequence is n while item n is whole, n | CLAIM while the writer wants the slot and has not touched it,
 *         0 while it is written or empty.
 * Rule 3: the writer claims a slot, then looks at the pins; a reader pins a slot, then looks at its sequence. Each puts
 *         a sequentially consistent fence in between, so at least one of them sees the other.
 * Rule 4: the writer publishes an item, then looks who sleeps; a reader says that it sleeps, then looks for an item.
 *         Again both have a fence in between, so no wake-up is lost.
 */
#ifndef MESSAGEHUB_RING_H
#define MESSAGEHUB_RING_H

#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MH_CLAIM (UINT64_C(1) << 63)
#define MH_UNLIMITED UINT64_MAX
#define MH_NO_SLOT UINT32_MAX

/* Words of the block, and the state of a ring whose writer has not ended it. */
enum { MH_HEAD = 256, MH_EPOCH = 264, MH_STATE = 272, MH_WRITER_TICKET = 296 };
enum { MH_OPEN = 1 };
/* Words of a slot's line in the table. */
enum { MH_SEQUENCE = 0, MH_LENGTH = 1, MH_CHECKSUM = 2, MH_HINT = 3, MH_SHAPE = 4, MH_LINE_WORDS = 8 };
/* Words of a reader's file, all on one cache line; the pins follow, a byte for each slot. */
enum { MH_CURSOR = 0, MH_TICKET = 1, MH_LOSSLESS = 2, MH_HELD = 3, MH_PINS_OFFSET = 64 };
/* Words of a group's file: a line for each member, behind the first. */
enum { MH_GROUP_LINE_WORDS = 8 };

static inline uint64_t mh_load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline uint64_t mh_load_acquire(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline void mh_store(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
static inline void mh_store_release(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
#ifdef MH_CONTROL_WITHOUT_FENCES /* for the test that shows that the stress test can fail */
static inline void mh_fence(void) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
#else
static inline void mh_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#endif

static inline void mh_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline uint64_t mh_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* --- spinning ------------------------------------------------------------------------------------------------ */

/* Whether a short wait without sleeping is worth it: only where it paid lately. */
typedef struct {
    int credit;
    unsigned waits;
} mh_spin_credit;

static inline int mh_may_spin(mh_spin_credit *spin) { return spin->credit > 0 || (++spin->waits & 31) == 0; }

static inline void mh_spun(mh_spin_credit *spin, int paid) {
    if (paid)
        spin->credit = spin->credit > 6 ? 8 : spin->credit + 2;
    else if (spin->credit > 0)
        spin->credit--;
}

/* --- the block ------------------------------------------------------------------------------------------------ */

typedef struct {
    uint64_t *words; /* the whole block; a reader's mapping is read-only, and it stores nothing here */
    uint64_t table;  /* the first word of the slots' lines */
    uint64_t times;  /* the first word of the slots' times */
    uint64_t data_offset, stride_bytes, slot_bytes;
    uint32_t slot_count;
} mh_block;

static inline uint64_t *mh_line(const mh_block *block, uint64_t slot) {
    return block->words + block->table + slot * MH_LINE_WORDS;
}

static inline uint8_t *mh_payload(const mh_block *block, uint64_t slot) {
    return (uint8_t *)block->words + block->data_offset + slot * block->stride_bytes;
}

/* --- writing -------------------------------------------------------------------------------------------------- */

/* A reader as the writer sees it. */
typedef struct {
    const uint64_t *words;
    const uint8_t *pins;
    uint64_t woken_ticket;
    int fifo; /* -1 until it is opened */
} mh_peer;

/* A group of readers: the word of each member says how far it has come. */
typedef struct {
    const uint64_t *words;
    uint64_t count;
} mh_group;

typedef struct {
    mh_block block;
    int honours_readers;
    uint64_t head;
    uint64_t floor;       /* the highest sequence that every lossless reader and every group is done with */
    uint64_t *sequences;  /* of each slot; 0: empty or taken */
    uint32_t *next, *previous, oldest, newest; /* the slots that are not taken, by age */
    uint32_t parked_first, parked_last;        /* slots that were pinned when they were the oldest; linked by `next` */
    const uint64_t *index;                     /* its first word changes when a reader comes or goes */
    uint64_t token;                            /* that word when `peers` was made */
    mh_peer *peers;
    uint32_t peer_count;
    mh_group *groups;
    uint32_t group_count;
    uint64_t look_at_ns;   /* when to look next whether a reader that pins a slot lives */
    int has_unopened;      /* a reader sleeps whose FIFO is not open yet */
    mh_spin_credit spin;
} mh_writer;

enum mh_claimed {
    MH_CLAIMED,
    MH_REFRESH, /* readers came or went: list them anew, then try again */
    MH_LOOK,    /* a pinned slot was met, and its reader was not looked at for a while: it may be dead */
    MH_FULL,
};
#define MH_LOOK_NS UINT64_C(10000000)

static inline void mh_unlink(mh_writer *w, uint32_t slot) {
    uint32_t next = w->next[slot], previous = w->previous[slot];
    if (previous == MH_NO_SLOT)
        w->oldest = next;
    else
        w->next[previous] = next;
    if (next == MH_NO_SLOT)
        w->newest = previous;
    else
        w->previous[next] = previous;
}

static inline void mh_add_newest(mh_writer *w, uint32_t slot) {
    w->next[slot] = MH_NO_SLOT;
    w->previous[slot] = w->newest;
    if (w->newest == MH_NO_SLOT)
        w->oldest = slot;
    else
        w->next[w->newest] = slot;
    w->newest = slot;
}

static inline void mh_add_oldest(mh_writer *w, uint32_t slot) {
    w->previous[slot] = MH_NO_SLOT;
    w->next[slot] = w->oldest;
    if (w->oldest == MH_NO_SLOT)
        w->newest = slot;
    else
        w->previous[w->oldest] = slot;
    w->oldest = slot;
}

/* Put a slot back among the others by its age; those that were set aside are older than nearly all. */
static inline void mh_add_by_age(mh_writer *w, uint32_t slot) {
    uint32_t next = w->oldest, previous;
    while (next != MH_NO_SLOT && w->sequences[next] < w->sequences[slot])
        next = w->next[next];
    if (next == MH_NO_SLOT) {
        mh_add_newest(w, slot);
        return;
    }
    previous = w->previous[next];
    w->next[slot] = next;
    w->previous[slot] = previous;
    w->previous[next] = slot;
    if (previous == MH_NO_SLOT)
        w->oldest = slot;
    else
        w->next[previous] = slot;
}

/* Set a pinned slot aside, so that the claims that follow do not pass over it again. */
static inline void mh_park(mh_writer *w, uint32_t slot) {
    w->next[slot] = MH_NO_SLOT;
    if (w->parked_first == MH_NO_SLOT)
        w->parked_first = slot;
    else
        w->next[w->parked_last] = slot;
    w->parked_last = slot;
}

static inline uint32_t mh_take_parked(mh_writer *w) {
    uint32_t slot = w->parked_first;
    w->parked_first = w->next[slot];
    return slot;
}

static inline int mh_is_pinned(const mh_writer *w, uint32_t slot) {
    for (uint32_t i = 0; i < w->peer_count; i++)
        if (__atomic_load_n(&w->peers[i].pins[slot], __ATOMIC_ACQUIRE))
            return 1;
    return 0;
}

static inline uint64_t mh_floor(const mh_writer *w) {
    uint64_t lowest = MH_UNLIMITED;
    for (uint32_t i = 0; i < w->peer_count; i++)
        if (mh_load_acquire(w->peers[i].words + MH_LOSSLESS)) {
            uint64_t cursor = mh_load_acquire(w->peers[i].words + MH_CURSOR);
            lowest = cursor < lowest ? cursor : lowest;
        }
    for (uint32_t i = 0; i < w->group_count; i++)
        for (uint64_t member = 1; member <= w->groups[i].count; member++) {
            uint64_t done = mh_load_acquire(w->groups[i].words + member * MH_GROUP_LINE_WORDS);
            lowest = done < lowest ? done : lowest;
        }
    return lowest;
}

/* Wake every reader that sleeps, once for each ticket. The caller has put a fence before it. */
static inline void mh_wake(mh_writer *w) {
    for (uint32_t i = 0; i < w->peer_count; i++) {
        mh_peer *peer = &w->peers[i];
        uint64_t ticket = mh_load(peer->words + MH_TICKET);
        if (ticket == 0 || ticket == peer->woken_ticket)
            continue;
        if (peer->fifo < 0) {
            w->has_unopened = 1;
            continue;
        }
        peer->woken_ticket = ticket;
        ssize_t written = write(peer->fifo, "!", 1); /* full of wake-ups that were not read yet, or no owner: all the same */
        (void)written;
    }
}

/* Whether a pinned slot was met, and its reader is to be looked at: it may be dead. */
static inline int mh_must_look(mh_writer *w) {
    uint64_t now = mh_clock_ns(CLOCK_MONOTONIC_COARSE);
    if (now < w->look_at_ns)
        return 0;
    w->look_at_ns = now + MH_LOOK_NS;
    return 1;
}

/* Look again at one slot that was set aside, or at all: those that nobody pins any more may be taken again. */
static inline int mh_find_unpinned(mh_writer *w, int all) {
    uint32_t last = w->parked_last, slot;
    int found = 0;
    do {
        slot = mh_take_parked(w);
        if (mh_is_pinned(w, slot))
            mh_park(w, slot);
        else {
            mh_add_by_age(w, slot);
            found = 1;
        }
    } while (all && slot != last);
    return found;
}

static inline enum mh_claimed mh_claim_listed(mh_writer *w, uint32_t count, uint32_t *slots) {
    enum mh_claimed result = MH_FULL;
    uint32_t found = 0, next;
    int restored = 0;
    if (mh_load_acquire(w->index) != w->token)
        return MH_REFRESH;
    for (uint32_t slot = w->oldest; found < count && slot != MH_NO_SLOT; slot = next) {
        uint64_t *sequence = mh_line(&w->block, slot) + MH_SEQUENCE, old = w->sequences[slot];
        next = w->next[slot];
        if (w->honours_readers && old > w->floor) {
            w->floor = mh_floor(w);
            if (old > w->floor)
                break; /* all that follow are newer still */
        }
        if (mh_is_pinned(w, slot)) {
            mh_unlink(w, slot);
            mh_park(w, slot);
            if (mh_must_look(w)) {
                result = MH_LOOK;
                break;
            }
            continue;
        }
        mh_store(sequence, old | MH_CLAIM);
        mh_fence();
        if (mh_load_acquire(w->index) != w->token) {
            mh_store_release(sequence, old);
            restored = 1;
            result = MH_REFRESH;
            break;
        }
        if (mh_is_pinned(w, slot)) {
            mh_store_release(sequence, old);
            restored = 1;
            continue;
        }
        slots[found++] = slot;
    }
    if (found < count)
        for (uint32_t i = 0; i < found; i++) {
            mh_store_release(mh_line(&w->block, slots[i]) + MH_SEQUENCE, w->sequences[slots[i]]);
            restored = 1;
        }
    if (restored) { /* whoever saw a claim sleeps perhaps, with unread data in the slot */
        mh_fence();
        mh_wake(w);
    }
    if (found < count)
        return result;
    for (uint32_t i = 0; i < found; i++) {
        mh_unlink(w, slots[i]);
        w->sequences[slots[i]] = 0;
        mh_store(mh_line(&w->block, slots[i]) + MH_SEQUENCE, 0);
    }
    __atomic_thread_fence(__ATOMIC_RELEASE);
    return MH_CLAIMED;
}

/* Take `count` slots, the oldest that nobody needs or pins, and empty them; or take none, and change nothing. */
static inline enum mh_claimed mh_claim(mh_writer *w, uint32_t count, uint32_t *slots) {
    if (w->parked_first != MH_NO_SLOT && !mh_find_unpinned(w, 0) && mh_must_look(w))
        return MH_LOOK;
    enum mh_claimed result = mh_claim_listed(w, count, slots);
    if (result == MH_FULL && w->parked_first != MH_NO_SLOT && mh_find_unpinned(w, 1))
        result = mh_claim_listed(w, count, slots);
    return result;
}

/* Make a slot, whose payload is complete, the next item. Checksum and shape were stored by the caller. */
static inline uint64_t mh_publish(mh_writer *w, uint32_t slot, uint64_t length) {
    uint64_t sequence = w->head + 1, *line = mh_line(&w->block, slot);
    mh_store(line + MH_LENGTH, length);
    mh_store(w->block.words + w->block.times + slot, mh_clock_ns(CLOCK_REALTIME));
    mh_store(mh_line(&w->block, sequence % w->block.slot_count) + MH_HINT, slot);
    mh_store_release(line + MH_SEQUENCE, sequence);
    mh_store_release(w->block.words + MH_HEAD, sequence);
    w->head = sequence;
    w->sequences[slot] = sequence;
    mh_add_newest(w, slot);
    mh_fence();
    mh_wake(w);
    return sequence;
}

/* Give a taken slot back. It is empty, and the first to be taken again. */
static inline void mh_abandon(mh_writer *w, uint32_t slot) {
    mh_add_oldest(w, slot);
    mh_fence();
    mh_wake(w);
}

/* Try to take slots for `spin_ns`, where that paid lately. */
static inline enum mh_claimed mh_spin_claim(mh_writer *w, uint32_t count, uint32_t *slots, uint64_t spin_ns) {
    enum mh_claimed result = MH_FULL;
    if (!mh_may_spin(&w->spin))
        return result;
    uint64_t end = mh_clock_ns(CLOCK_MONOTONIC) + spin_ns;
    do {
        for (int i = 0; i < 16; i++)
            mh_pause();
        result = mh_claim(w, count, slots);
    } while (result == MH_FULL && mh_clock_ns(CLOCK_MONOTONIC) < end);
    mh_spun(&w->spin, result == MH_CLAIMED);
    return result;
}

/* --- reading -------------------------------------------------------------------------------------------------- */

typedef struct {
    mh_block block;
    uint64_t *file; /* the reader's own */
    uint8_t *pins;
    uint32_t *counts; /* of views of each slot */
    uint64_t cursor;
    mh_spin_credit spin;
} mh_reader;

static inline void mh_unpin(mh_reader *r, uint32_t slot) {
    if (--r->counts[slot] == 0) {
        mh_store(r->file + MH_HELD, mh_load(r->file + MH_HELD) - 1);
        __atomic_store_n(&r->pins[slot], 0, __ATOMIC_RELEASE);
        mh_fence(); /* the caller looks next whether the writer waits for a slot */
    }
}

/* Keep the writer from touching a slot while it holds item `wanted`; 0 if it does not hold it any more. */
static inline int mh_pin(mh_reader *r, uint32_t slot, uint64_t wanted) {
    if (r->counts[slot]++ == 0) {
        mh_store(r->file + MH_HELD, mh_load(r->file + MH_HELD) + 1);
        __atomic_store_n(&r->pins[slot], 1, __ATOMIC_RELEASE);
        mh_fence();
    }
    if (mh_load_acquire(mh_line(&r->block, slot) + MH_SEQUENCE) == wanted)
        return 1;
    mh_unpin(r, slot);
    return 0;
}

/* The slot that holds item `wanted` by its hint, or MH_NO_SLOT: search, or it is not there. */
static inline uint32_t mh_hinted(const mh_reader *r, uint64_t wanted) {
    if (wanted - 1 >= MH_CLAIM - 1 || mh_load_acquire(r->block.words + MH_HEAD) < wanted)
        return MH_NO_SLOT; /* no item has number 0, or one with CLAIM: the head was damaged */
    uint64_t slot = mh_load(mh_line(&r->block, wanted % r->block.slot_count) + MH_HINT);
    if (slot >= r->block.slot_count || mh_load_acquire(mh_line(&r->block, slot) + MH_SEQUENCE) != wanted)
        return MH_NO_SLOT;
    return (uint32_t)slot;
}

/* After a copy out of a slot that is not pinned: whether the writer left it alone meanwhile, or has claimed it at most. */
static inline int mh_is_unchanged(const mh_reader *r, uint32_t slot, uint64_t wanted) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return ((mh_load(mh_line(&r->block, slot) + MH_SEQUENCE) ^ wanted) & ~MH_CLAIM) == 0;
}

/* Say that everything up to `sequence` is read, and return whether the writer waits. */
static inline int mh_advance(mh_reader *r, uint64_t sequence) {
    r->cursor = sequence;
    mh_store_release(r->file + MH_CURSOR, sequence);
    mh_fence();
    return mh_load(r->block.words + MH_WRITER_TICKET) != 0;
}

/* Wait for an item after the cursor for `spin_ns`, where that paid lately; 1 if one came. */
static inline int mh_spin_read(mh_reader *r, uint64_t spin_ns) {
    int came = 0;
    if (!mh_may_spin(&r->spin))
        return 0;
    uint64_t end = mh_clock_ns(CLOCK_MONOTONIC) + spin_ns;
    do {
        for (int i = 0; i < 16 && !came; i++) {
            mh_pause();
            came = mh_load_acquire(r->block.words + MH_HEAD) > r->cursor;
        }
    } while (!came && mh_clock_ns(CLOCK_MONOTONIC) < end);
    mh_spun(&r->spin, came);
    return came;
}

#endif
