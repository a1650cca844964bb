/* A reader of a ring in C: a full member, for which a blocking producer waits, and which is woken when it sleeps.
 *
 *     cc -O2 -I messagehub/shm/core examples/c/ring_reader.c -o ring_reader
 *     ./ring_reader /dev/shm/pylabhub_CHANNEL
 *
 * It prints the number, the length and the sum of the bytes of every item, from the oldest that is there, until the
 * producer ends the stream. docs/reference/blocks.md describes the bytes, ring.h the steps.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "ring.h"

#define OWNER ((off_t)1 << 40)
#define STATE_WORD 272
#define STATE_ENDED 2
#define RAW 1

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* Take a lock that ends with this process, or ask who holds one (F_OFD_GETLK). */
static struct flock lock(int fd, int command, short kind, off_t byte) {
    struct flock request = {.l_type = kind, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    if (fcntl(fd, command, &request) < 0)
        fail("lock");
    return request;
}

static void *map(int fd, size_t size, int protection) {
    void *memory = mmap(NULL, size, protection, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
    return memory;
}

static uint64_t up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

/* Where things are, by the block's header, which is compared with the size of the file before it is believed. */
static mh_block block_of(const uint8_t *header, size_t size) {
    uint32_t layout, format;
    uint64_t sizes[6]; /* slot bytes, slots, page bytes, schema bytes, scratch bytes, file bytes */
    memcpy(&layout, header + 16, sizeof layout);
    memcpy(&format, header + 32, sizeof format);
    memcpy(sizes, header + 40, sizeof sizes);
    uint64_t table = up(4096 + up(sizes[3], 64) + sizes[4], 64), data = up(table + sizes[1] * 64, 4096);
    mh_block block = {.words = (uint64_t *)header,
                      .table = table / 8,
                      .times = (table - up(8 * sizes[1], 64)) / 8,
                      .data_offset = data,
                      .stride_bytes = up(sizes[0], sizes[2] ? sizes[2] : 1),
                      .slot_bytes = sizes[0],
                      .slot_count = (uint32_t)sizes[1]};
    if (memcmp(header, "MHUBDATA", 8) || layout != 3 || format != RAW || sizes[1] < 1 || sizes[1] > 1 << 20 ||
        sizes[5] > size || data + block.stride_bytes * sizes[1] > size) {
        fprintf(stderr, "no ring of layout 3 with raw bytes\n");
        exit(1);
    }
    return block;
}

/* The path of a file of this reader, or of the ring's readers; valid until the next call. */
static const char *in(const char *directory, const char *name, const char *suffix) {
    static char path[PATH_MAX + 128];
    snprintf(path, sizeof path, "%s/%.64s%s", directory, name, suffix);
    return path;
}

/* Make the reader's file: complete, and locked, before it has a name. */
static uint64_t *make_file(const char *directory, const char *name, uint32_t slots) {
    size_t size = up(MH_PINS_OFFSET + slots, 4096);
    char from[64];
    int fd = open(directory, O_TMPFILE | O_RDWR, 0600);
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)size))
        fail(directory);
    uint64_t *file = map(fd, size, PROT_READ | PROT_WRITE);
    file[MH_LOSSLESS] = 1;
    file[4] = (uint64_t)getpid();
    lock(fd, F_OFD_SETLK, F_WRLCK, OWNER);
    snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, from, AT_FDCWD, in(directory, name, ".reader"), AT_SYMLINK_FOLLOW))
        fail(directory);
    return file; /* the descriptor stays open: with it the lock would go */
}

/* Tell the writer that readers came or went. */
static void announce(const char *directory) {
    uint64_t token;
    int fd = open(in(directory, "index", ""), O_RDWR);
    if (fd < 0 || getrandom(&token, sizeof token, 0) != sizeof token)
        fail(directory);
    uint64_t *index = map(fd, 4096, PROT_READ | PROT_WRITE);
    mh_store_release(index, token);
    mh_fence();
    munmap(index, 4096);
    close(fd);
}

/* The lowest sequence from `lowest` on, and its slot; 0 if there is none. A claim counts: its item is still there. */
static uint64_t search(const mh_block *block, uint64_t lowest, uint32_t *slot) {
    uint64_t found = 0;
    for (uint32_t i = 0; i < block->slot_count; i++) {
        uint64_t sequence = mh_load_acquire(mh_line(block, i)) & ~MH_CLAIM;
        if (sequence >= lowest && (!found || sequence < found))
            found = sequence, *slot = i;
    }
    return found;
}

static int has_writer(int ring) { return lock(ring, F_OFD_GETLK, F_WRLCK, OWNER).l_type != F_UNLCK; }

/* Pin an item. One that its writer had claimed when it died is untouched; a successor sees the pin first. */
static int hold(mh_reader *r, uint32_t slot, uint64_t wanted, int ring) {
    if (mh_pin(r, slot, wanted))
        return 1;
    if (!mh_pin(r, slot, wanted | MH_CLAIM))
        return 0;
    if (!has_writer(ring) && mh_is_unchanged(r, slot, wanted | MH_CLAIM))
        return 1;
    mh_unpin(r, slot);
    return 0;
}

int main(int count, char **arguments) {
    char directory[PATH_MAX], name[32], copy[PATH_MAX];
    if (count != 2 || strlen(arguments[1]) >= sizeof copy) {
        fprintf(stderr, "usage: ring_reader /dev/shm/pylabhub_CHANNEL\n");
        return 2;
    }
    int ring = open(arguments[1], O_RDONLY | O_NOFOLLOW);
    struct stat status;
    if (ring < 0 || fstat(ring, &status) || status.st_size < 4096)
        fail(arguments[1]);
    lock(ring, F_OFD_SETLK, F_RDLCK, OWNER + 1); /* while it is held, nobody removes the ring */
    const uint8_t *header = map(ring, (size_t)status.st_size, PROT_READ);
    mh_reader r = {.block = block_of(header, (size_t)status.st_size)};
    snprintf(directory, sizeof directory, "%s/%.512s", dirname(strcpy(copy, arguments[1])), (const char *)header + 880);
    snprintf(name, sizeof name, "c-%d", getpid());
    r.file = make_file(directory, name, r.block.slot_count);
    r.pins = (uint8_t *)r.file + MH_PINS_OFFSET;
    r.counts = calloc(r.block.slot_count, sizeof *r.counts);
    if (!r.counts || mkfifo(in(directory, name, ".fifo"), 0600))
        fail(directory);
    int fifo = open(in(directory, name, ".fifo"), O_RDWR | O_NONBLOCK), writer_fifo = -1;
    announce(directory); /* from here on a blocking writer overwrites nothing, because the cursor is 0 */
    uint32_t slot = 0;
    uint64_t oldest = search(&r.block, 1, &slot), ticket = 1, lost = 0;
    mh_advance(&r, oldest ? oldest - 1 : mh_load(r.block.words + MH_HEAD));
    for (;;) {
        uint64_t wanted = r.cursor + 1, head = mh_load_acquire(r.block.words + MH_HEAD);
        int writer_waits = 0;
        slot = mh_hinted(&r, wanted);
        if (slot == MH_NO_SLOT && head >= wanted) {
            uint64_t next = search(&r.block, wanted, &slot);
            if (next != wanted) { /* what is between was overwritten */
                lost += (next && next <= head ? next : head + 1) - wanted;
                writer_waits = mh_advance(&r, (next && next <= head ? next : head + 1) - 1);
                slot = MH_NO_SLOT;
            }
        }
        if (slot != MH_NO_SLOT && head >= wanted && hold(&r, slot, wanted, ring)) {
            uint64_t length = mh_load(mh_line(&r.block, slot) + MH_LENGTH), sum = 0;
            for (uint64_t i = 0; i < length && i < r.block.slot_bytes; i++)
                sum += mh_payload(&r.block, slot)[i]; /* nobody changes these bytes while they are pinned */
            printf("%llu %llu %llu\n", (unsigned long long)wanted, (unsigned long long)length, (unsigned long long)sum);
            mh_unpin(&r, slot);
            writer_waits = mh_advance(&r, wanted);
        } else if (head < wanted && !mh_spin_read(&r, 50000)) {
            struct pollfd woken = {.fd = fifo, .events = POLLIN};
            char bytes[64];
            mh_store(r.file + MH_TICKET, ++ticket);
            mh_fence();
            int has_ended = mh_load_acquire(r.block.words + STATE_WORD) == STATE_ENDED;
            if (mh_load_acquire(r.block.words + MH_HEAD) < wanted) {
                if (has_ended || !has_writer(ring))
                    break; /* the producer has closed the ring, or is dead */
                fflush(stdout);
                poll(&woken, 1, 250); /* a dead producer wakes nobody */
                while (read(fifo, bytes, sizeof bytes) > 0)
                    continue;
            }
            mh_store(r.file + MH_TICKET, 0);
        }
        if (writer_waits) {
            if (writer_fifo < 0)
                writer_fifo = open(in(directory, "writer", ".fifo"), O_WRONLY | O_NONBLOCK);
            if (writer_fifo >= 0 && write(writer_fifo, "!", 1) < 0 && errno != EAGAIN)
                close(writer_fifo), writer_fifo = -1;
        }
    }
    unlink(in(directory, name, ".fifo"));
    unlink(in(directory, name, ".reader"));
    announce(directory);
    fprintf(stderr, "%llu lost\n", (unsigned long long)lost);
    return 0;
}
