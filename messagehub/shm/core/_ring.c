/* The ring's protocol (ring.h) for Python: the types Writer and Reader, and the views that a reader hands out.
 *
 * They do what is done for every item; whatever is rare (waiting, dead readers, losses, errors) is left to Python, which
 * is told by a result of 0, None or a code. The interpreter's lock protects them, and a writer is used under a mutex of
 * its own besides, because long copies let other threads run. In a forked child they touch nothing.
 */
#define _GNU_SOURCE /* locks of descriptions, ppoll */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <structmember.h>

#include "ring.h"

#define LONG_COPY_BYTES (1 << 20)
#define OWNER_BYTE (INT64_C(1) << 40) /* locked by the writer of a ring; see messagehub/shm/locks.py */
#define MOST_FDS 8
#define MOST_SECONDS 1e9 /* more is for ever */
#define INTERFACE 2 /* of this module to Python: count it up with every change, here and in __init__.py */

static uint64_t fork_generation;
static PyTypeObject *view_type;
static PyObject *dtype_name, *origin_name;

static void count_fork(void) { fork_generation++; }

static void copy(void *to, const void *from, size_t size) {
    if (size > LONG_COPY_BYTES) {
        Py_BEGIN_ALLOW_THREADS;
        memcpy(to, from, size);
        Py_END_ALLOW_THREADS;
    } else
        memcpy(to, from, size);
}

/* Borrow the memory of an object for as long as `view` lives. */
static void *borrow(PyObject *object, Py_buffer *view, size_t least_bytes, int writable, const char *what) {
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return NULL;
    if ((size_t)view->len < least_bytes || (uintptr_t)view->buf % 8) {
        PyErr_Format(PyExc_ValueError, "%s: %zd bytes are too few or not aligned", what, view->len);
        PyBuffer_Release(view);
        return NULL;
    }
    return view->buf;
}

static int fill_block(mh_block *block, void *memory, size_t size) {
    uint64_t last_line = (block->table + (uint64_t)block->slot_count * MH_LINE_WORDS) * 8;
    uint64_t last_slot = block->data_offset + block->stride_bytes * block->slot_count;
    uint64_t last_time = (block->times + block->slot_count) * 8;
    if (!block->slot_count || block->slot_bytes > block->stride_bytes || last_line > size || last_slot > size || last_time > size) {
        PyErr_SetString(PyExc_ValueError, "the slots do not fit the block");
        return -1;
    }
    block->words = memory;
    return 0;
}

static void forget(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static void replace(PyObject **place, PyObject *value) {
    PyObject *before = *place;
    *place = Py_NewRef(value);
    Py_XDECREF(before);
}

/* --- Writer --------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    mh_writer w;
    uint64_t generation;
    Py_buffer block_view, index_view;
    Py_buffer *borrowed; /* the files of readers and groups */
    Py_ssize_t borrowed_count;
    PyObject *wake_unopened, *wake_unopened_alone; /* the second takes the mutex first */
    PyObject *plain_type, *plain_dtype;            /* what `put` takes; NULL: nothing */
    char is_taken, has_dropped, is_spinning;       /* `put` leaves it to a call under the mutex */
    uint32_t *claimed;
} Writer;

static void drop_readers(Py_buffer *borrowed, Py_ssize_t count, mh_peer *peers, mh_group *groups) {
    for (Py_ssize_t i = 0; i < count; i++)
        PyBuffer_Release(&borrowed[i]);
    PyMem_Free(borrowed);
    PyMem_Free(peers);
    PyMem_Free(groups);
}

static int writer_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"block", "table", "times", "data_offset", "stride_bytes", "slot_bytes", "slot_count",
                            "honours_readers", "head", "order", "index", "wake_unopened", NULL};
    Writer *self = (Writer *)object;
    PyObject *block, *order, *index, *wake_unopened;
    mh_block *b = &self->w.block;
    unsigned long long table, times, data_offset, stride_bytes, slot_bytes, head;
    unsigned int slot_count;
    if (self->w.sequences) {
        PyErr_SetString(PyExc_TypeError, "a writer is made once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OKKKKKIpKOOO", names, &block, &table, &times, &data_offset, &stride_bytes,
                                     &slot_bytes, &slot_count, &self->w.honours_readers, &head, &order, &index, &wake_unopened))
        return -1;
    b->table = table, b->times = times, b->data_offset = data_offset, b->stride_bytes = stride_bytes;
    b->slot_bytes = slot_bytes, b->slot_count = slot_count;
    self->w.head = head;
    void *memory = borrow(block, &self->block_view, 4096, 1, "block");
    if (!memory || fill_block(b, memory, (size_t)self->block_view.len) < 0)
        return -1;
    self->w.index = borrow(index, &self->index_view, 8, 0, "index");
    if (!self->w.index)
        return -1;
    self->w.sequences = PyMem_Calloc(slot_count, sizeof(uint64_t));
    self->w.next = PyMem_Calloc(slot_count, sizeof(uint32_t));
    self->w.previous = PyMem_Calloc(slot_count, sizeof(uint32_t));
    self->claimed = PyMem_Calloc(slot_count, sizeof(uint32_t));
    if (!self->w.sequences || !self->w.next || !self->w.previous || !self->claimed) {
        PyErr_NoMemory();
        return -1;
    }
    self->w.oldest = self->w.newest = self->w.parked_first = MH_NO_SLOT;
    self->w.floor = MH_UNLIMITED;
    if (PySequence_Size(order) != (Py_ssize_t)slot_count) {
        PyErr_SetString(PyExc_ValueError, "order: every slot once");
        return -1;
    }
    for (uint32_t i = 0; i < slot_count; i++) {
        PyObject *each = PySequence_GetItem(order, i);
        unsigned long slot = each ? PyLong_AsUnsignedLong(each) : 0;
        Py_XDECREF(each);
        if (PyErr_Occurred())
            return -1;
        if (slot >= slot_count) {
            PyErr_SetString(PyExc_ValueError, "order: no such slot");
            return -1;
        }
        self->w.sequences[slot] = mh_load(mh_line(b, slot) + MH_SEQUENCE);
        mh_add_newest(&self->w, (uint32_t)slot);
    }
    self->wake_unopened = Py_NewRef(wake_unopened);
    self->generation = fork_generation;
    return 0;
}

/* The readers' files, whose method `wake_unopened` is, refer to the writer's core in turn. */
static int writer_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((Writer *)object)->wake_unopened);
    Py_VISIT(((Writer *)object)->wake_unopened_alone);
    return 0;
}

static int writer_clear(PyObject *object) {
    Py_CLEAR(((Writer *)object)->wake_unopened);
    Py_CLEAR(((Writer *)object)->wake_unopened_alone);
    return 0;
}

static void writer_dealloc(PyObject *object) {
    Writer *self = (Writer *)object;
    PyObject_GC_UnTrack(object);
    drop_readers(self->borrowed, self->borrowed_count, self->w.peers, self->w.groups);
    if (self->block_view.obj)
        PyBuffer_Release(&self->block_view);
    if (self->index_view.obj)
        PyBuffer_Release(&self->index_view);
    PyMem_Free(self->w.sequences);
    PyMem_Free(self->w.next);
    PyMem_Free(self->w.previous);
    PyMem_Free(self->claimed);
    Py_XDECREF(self->wake_unopened);
    Py_XDECREF(self->wake_unopened_alone);
    Py_XDECREF(self->plain_type);
    Py_XDECREF(self->plain_dtype);
    forget(object);
}

/* Have Python open the FIFOs of readers that sleep, and wake these readers; -1 with an exception. */
static int finish_waking_by(Writer *self, PyObject *wake_unopened) {
    if (!self->w.has_unopened)
        return 0;
    self->w.has_unopened = 0;
    if (!wake_unopened)
        return 0; /* the garbage collector was here */
    PyObject *done = PyObject_CallNoArgs(wake_unopened);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int finish_waking(Writer *self) { return finish_waking_by(self, self->wake_unopened); }

static PyObject *writer_set_peers(PyObject *object, PyObject *args) {
    Writer *self = (Writer *)object;
    unsigned long long token;
    PyObject *peers, *groups;
    if (!PyArg_ParseTuple(args, "KOO", &token, &peers, &groups))
        return NULL;
    Py_ssize_t peer_count = PySequence_Size(peers), group_count = PySequence_Size(groups);
    if (peer_count < 0 || group_count < 0)
        return NULL;
    Py_ssize_t count = 0;
    Py_buffer *borrowed = PyMem_Calloc((size_t)(peer_count + group_count + 1), sizeof(Py_buffer));
    mh_peer *new_peers = PyMem_Calloc((size_t)peer_count + 1, sizeof(mh_peer));
    mh_group *new_groups = PyMem_Calloc((size_t)group_count + 1, sizeof(mh_group));
    if (!borrowed || !new_peers || !new_groups) {
        PyErr_NoMemory();
        goto refused;
    }
    for (Py_ssize_t i = 0; i < peer_count + group_count; i++) {
        int is_peer = i < peer_count;
        PyObject *memory;
        unsigned long long number, woken = 0;
        int fifo = -1;
        PyObject *each = PySequence_GetItem(is_peer ? peers : groups, is_peer ? i : i - peer_count);
        if (!each)
            goto refused;
        int parsed = is_peer ? PyArg_ParseTuple(each, "OiK", &memory, &fifo, &woken) : PyArg_ParseTuple(each, "OK", &memory, &number);
        uint64_t least = is_peer ? MH_PINS_OFFSET + self->w.block.slot_count : 0;
        if (parsed && !is_peer)
            least = number < (1u << 20) ? (1 + number) * MH_GROUP_LINE_WORDS * 8 : UINT64_MAX;
        void *words = parsed ? borrow(memory, &borrowed[count], least, 0, "a reader's file") : NULL;
        Py_DECREF(each);
        if (!words)
            goto refused;
        count++;
        if (is_peer)
            new_peers[i] = (mh_peer){words, (uint8_t *)words + MH_PINS_OFFSET, woken, fifo};
        else
            new_groups[i - peer_count] = (mh_group){words, number};
    }
    drop_readers(self->borrowed, self->borrowed_count, self->w.peers, self->w.groups);
    self->borrowed = borrowed, self->borrowed_count = count;
    self->w.peers = new_peers, self->w.peer_count = (uint32_t)peer_count;
    self->w.groups = new_groups, self->w.group_count = (uint32_t)group_count;
    self->w.token = token;
    self->w.floor = self->w.honours_readers ? mh_floor(&self->w) : MH_UNLIMITED;
    Py_RETURN_NONE;
refused: /* the readers before stay known: a writer that forgot one would overwrite what it holds */
    drop_readers(borrowed, count, new_peers, new_groups);
    return NULL;
}

static PyObject *writer_set_fifo(PyObject *object, PyObject *args) {
    Writer *self = (Writer *)object;
    unsigned int index;
    unsigned long long woken;
    int fifo;
    if (!PyArg_ParseTuple(args, "IiK", &index, &fifo, &woken))
        return NULL;
    if (index < self->w.peer_count) {
        self->w.peers[index].fifo = fifo;
        self->w.peers[index].woken_ticket = woken;
    }
    Py_RETURN_NONE;
}

static PyObject *claimed_slots(Writer *self, enum mh_claimed result, uint32_t count) {
    if (finish_waking(self) < 0)
        return NULL;
    if (result != MH_CLAIMED)
        return PyLong_FromLong(result);
    PyObject *slots = PyTuple_New(count);
    for (uint32_t i = 0; slots && i < count; i++) {
        PyObject *slot = PyLong_FromUnsignedLong(self->claimed[i]);
        if (!slot || PyTuple_SetItem(slots, i, slot) < 0)
            Py_CLEAR(slots);
    }
    return slots;
}

static int claimable(Writer *self, unsigned int count) {
    if (self->generation != fork_generation || !count || count > self->w.block.slot_count) {
        PyErr_SetString(PyExc_ValueError, "not that many slots, or not in this process");
        return 0;
    }
    return 1;
}

static enum mh_claimed spin_claim(Writer *self, uint32_t count, uint32_t *slots, uint64_t spin_us) {
    enum mh_claimed result;
    self->is_spinning = 1;
    Py_BEGIN_ALLOW_THREADS;
    result = mh_spin_claim(&self->w, count, slots, spin_us * 1000);
    Py_END_ALLOW_THREADS;
    self->is_spinning = 0;
    return result;
}

static PyObject *writer_claim(PyObject *object, PyObject *args) {
    Writer *self = (Writer *)object;
    unsigned int count;
    if (!PyArg_ParseTuple(args, "I", &count) || !claimable(self, count))
        return NULL;
    return claimed_slots(self, mh_claim(&self->w, count, self->claimed), count);
}

static PyObject *writer_spin_claim(PyObject *object, PyObject *args) {
    Writer *self = (Writer *)object;
    unsigned int count, spin_us;
    enum mh_claimed result;
    if (!PyArg_ParseTuple(args, "II", &count, &spin_us) || !claimable(self, count))
        return NULL;
    result = spin_claim(self, count, self->claimed, spin_us);
    return claimed_slots(self, result, count);
}

static int store_shape(Writer *self, uint32_t slot, PyObject *shape) {
    uint64_t *line = mh_line(&self->w.block, slot);
    for (int i = 0; i < 4; i++) {
        PyObject *word = PySequence_GetItem(shape, i);
        uint64_t value = word ? PyLong_AsUnsignedLongLong(word) : 0;
        Py_XDECREF(word);
        if (PyErr_Occurred())
            return -1;
        mh_store(line + MH_SHAPE + i, value);
    }
    return 0;
}

static PyObject *writer_publish(PyObject *object, PyObject *args) {
    Writer *self = (Writer *)object;
    unsigned int slot;
    unsigned long long length, checksum;
    PyObject *shape;
    if (!PyArg_ParseTuple(args, "IKKO", &slot, &length, &checksum, &shape))
        return NULL;
    if (slot >= self->w.block.slot_count || length > self->w.block.slot_bytes || self->generation != fork_generation) {
        PyErr_SetString(PyExc_ValueError, "no such slot, or more than it holds");
        return NULL;
    }
    mh_store(mh_line(&self->w.block, slot) + MH_CHECKSUM, checksum);
    if (shape != Py_None && store_shape(self, slot, shape) < 0)
        return NULL;
    uint64_t sequence = mh_publish(&self->w, slot, length);
    if (finish_waking(self) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(sequence);
}

static PyObject *writer_abandon(PyObject *object, PyObject *argument) {
    Writer *self = (Writer *)object;
    unsigned long slot = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred())
        return NULL;
    if (slot < self->w.block.slot_count && self->generation == fork_generation)
        mh_abandon(&self->w, (uint32_t)slot);
    if (finish_waking(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *writer_skip(PyObject *object, PyObject *argument) {
    Writer *self = (Writer *)object;
    unsigned long count = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred())
        return NULL;
    if (self->generation != fork_generation)
        Py_RETURN_NONE;
    self->w.head += count;
    mh_store_release(self->w.block.words + MH_HEAD, self->w.head);
    mh_fence();
    mh_wake(&self->w);
    if (finish_waking(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *writer_wake(PyObject *object, PyObject *Py_UNUSED(none)) {
    Writer *self = (Writer *)object;
    if (self->generation != fork_generation)
        Py_RETURN_NONE; /* the numbers of the FIFOs are those of other files by now */
    mh_fence();
    mh_wake(&self->w);
    if (finish_waking(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *writer_find_floor(PyObject *object, PyObject *Py_UNUSED(none)) {
    Writer *self = (Writer *)object;
    if (self->w.honours_readers)
        self->w.floor = mh_floor(&self->w);
    Py_RETURN_NONE;
}

static PyObject *writer_write(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Writer *self = (Writer *)object;
    Py_buffer payload;
    uint32_t slot;
    uint64_t sequence = 0;
    enum mh_claimed result;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "write takes a payload, a shape and microseconds");
        return NULL;
    }
    unsigned long spin_us = PyLong_AsUnsignedLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
    if (self->generation != fork_generation)
        return PyLong_FromLong(0);
    if (PyObject_GetBuffer(args[0], &payload, PyBUF_SIMPLE) < 0)
        return NULL;
    result = (uint64_t)payload.len <= self->w.block.slot_bytes ? mh_claim(&self->w, 1, &slot) : MH_FULL;
    if (result == MH_FULL && spin_us && (uint64_t)payload.len <= self->w.block.slot_bytes)
        result = spin_claim(self, 1, &slot, spin_us);
    if (result == MH_LOOK)
        self->w.look_at_ns = 0; /* nobody looks now: the claim that follows says it again */
    if (result == MH_CLAIMED) {
        copy(mh_payload(&self->w.block, slot), payload.buf, (size_t)payload.len);
        if (args[1] != Py_None && store_shape(self, slot, args[1]) < 0) {
            mh_abandon(&self->w, slot);
            PyBuffer_Release(&payload);
            return NULL;
        }
        sequence = mh_publish(&self->w, slot, (uint64_t)payload.len);
    }
    PyBuffer_Release(&payload);
    if (finish_waking(self) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(sequence);
}

static PyObject *writer_accept(PyObject *object, PyObject *args) {
    Writer *self = (Writer *)object;
    PyObject *type, *dtype, *wake_unopened_alone;
    if (!PyArg_ParseTuple(args, "OOO", &type, &dtype, &wake_unopened_alone))
        return NULL;
    replace(&self->plain_dtype, dtype);
    replace(&self->wake_unopened_alone, wake_unopened_alone);
    replace(&self->plain_type, type);
    Py_RETURN_NONE;
}

/* Borrow the bytes of a payload that `put` takes: bytes, or a flat array of its dtype. 0: it does not take it. */
static int borrow_plain(Writer *self, PyObject *payload, Py_buffer *view) {
    if ((PyObject *)Py_TYPE(payload) != self->plain_type)
        return 0;
    if (self->plain_dtype != Py_None) {
        PyObject *dtype = PyObject_GetAttr(payload, dtype_name);
        Py_XDECREF(dtype); /* the array has it */
        if (dtype != self->plain_dtype) {
            PyErr_Clear();
            return 0;
        }
    }
    if (PyObject_GetBuffer(payload, view, PyBUF_C_CONTIGUOUS) < 0) {
        PyErr_Clear(); /* whoever is asked next says what is wrong with it */
        return 0;
    }
    if (view->ndim == 1 && view->len <= LONG_COPY_BYTES && (uint64_t)view->len <= self->w.block.slot_bytes)
        return 1;
    PyBuffer_Release(view);
    return 0;
}

/* Without the mutex: nothing here lets another thread run before the item is published. */
static PyObject *writer_put(PyObject *object, PyObject *payload) {
    Writer *self = (Writer *)object;
    Py_buffer view;
    uint32_t slot;
    uint64_t sequence = 0;
    if (self->is_taken || self->has_dropped || self->is_spinning || self->generation != fork_generation ||
        !borrow_plain(self, payload, &view))
        return PyLong_FromLong(0);
    enum mh_claimed result = mh_claim(&self->w, 1, &slot);
    if (result == MH_LOOK)
        self->w.look_at_ns = 0; /* nobody looks now: the claim that follows says it again */
    if (result == MH_CLAIMED) {
        memcpy(mh_payload(&self->w.block, slot), view.buf, (size_t)view.len);
        if (self->plain_dtype != Py_None)
            for (int i = 0; i < 4; i++)
                mh_store(mh_line(&self->w.block, slot) + MH_SHAPE + i, 0);
        sequence = mh_publish(&self->w, slot, (uint64_t)view.len);
    }
    PyBuffer_Release(&view);
    if (finish_waking_by(self, self->wake_unopened_alone) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(sequence);
}

static PyMemberDef writer_members[] = {
    {"is_taken", T_BOOL, offsetof(Writer, is_taken), 0, "Whether somebody writes under the mutex who must not be passed."},
    {"has_dropped", T_BOOL, offsetof(Writer, has_dropped), 0, "Whether slots of dropped loans are to be abandoned."},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *writer_lent(PyObject *object, void *Py_UNUSED(closure)) {
    Writer *self = (Writer *)object;
    uint32_t free_slots = 0;
    for (uint32_t slot = self->w.oldest; slot != MH_NO_SLOT; slot = self->w.next[slot])
        free_slots++;
    for (uint32_t slot = self->w.parked_first; slot != MH_NO_SLOT; slot = self->w.next[slot])
        free_slots++;
    return PyLong_FromUnsignedLong(self->w.block.slot_count - free_slots);
}

static PyObject *writer_head(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(((Writer *)object)->w.head);
}

static PyGetSetDef writer_properties[] = {
    {"head", writer_head, NULL, "The number of the newest item.", NULL},
    {"lent", writer_lent, NULL, "How many slots were claimed and neither published nor abandoned.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef writer_methods[] = {
    {"accept", writer_accept, METH_VARARGS, 
     "accept(type, dtype or None, wake_unopened): what `put` takes, and what takes the mutex to wake readers for it."},
    {"put", writer_put, METH_O,
     "put(payload) -> the item's number, or 0 if that takes the mutex. The only method that may be called without it."},
    {"write", (PyCFunction)(void (*)(void))writer_write, METH_FASTCALL,
     "write(payload, shape, spin_us) -> the item's number, or 0 if no slot can be had in that time or the payload is too large."},
    {"claim", writer_claim, METH_VARARGS, "claim(count) -> the slots, now empty, or why none can be had: REFRESH, LOOK or FULL."},
    {"spin_claim", writer_spin_claim, METH_VARARGS, "spin_claim(count, spin_us): claim, trying for so many microseconds."},
    {"publish", writer_publish, METH_VARARGS, "publish(slot, length, checksum, shape or None) -> the item's number."},
    {"abandon", writer_abandon, METH_O, "abandon(slot): give a claimed slot back."},
    {"skip", writer_skip, METH_O, "skip(count): use up so many numbers without an item."},
    {"wake", writer_wake, METH_NOARGS, "Wake every reader that sleeps."},
    {"find_floor", writer_find_floor, METH_NOARGS, "Look anew how far the readers are."},
    {"set_peers", writer_set_peers, METH_VARARGS,
     "set_peers(token, [(file, fifo or -1, woken ticket)], [(group's file, members)]): who reads from now on."},
    {"set_fifo", writer_set_fifo, METH_VARARGS, "set_fifo(peer, fifo, woken ticket): its FIFO is open."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot writer_slots[] = {
    {Py_tp_doc, "The writer's side of a ring. Use it under a mutex."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, writer_init},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_traverse, writer_traverse},
    {Py_tp_clear, writer_clear},
    {Py_tp_methods, writer_methods},
    {Py_tp_members, writer_members},
    {Py_tp_getset, writer_properties},
    {0, NULL},
};
static PyType_Spec writer_spec = {"messagehub.shm.core._ring.Writer", sizeof(Writer), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, writer_slots};

/* --- Reader --------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    mh_reader r;
    uint64_t generation;
    Py_buffer block_view, file_view, held_view;
    int64_t *process_held; /* slots of this ring that this process holds, over all its readers */
    int64_t most_held, room_own, room_others, room_most;
    uint64_t room_until_ns;
    uint64_t small_bytes; /* payloads up to this size are copied */
    uint64_t views;
    unsigned long long sequence, written_ns, checksum; /* of the item that was handed out last */
    uint64_t shape[4];
    uint64_t ticket; /* of the last sleep */
    PyObject *look_for_room, *writer_waits, *last_released;
    PyObject *last_read, *producers, *decode; /* of `take_value`; decode is NULL for raw bytes */
    uint64_t epoch;                           /* that `producers` were listed in */
    unsigned long long value_sequence;        /* of the value that `take_value` handed out last */
    int is_closing;
} Reader;

typedef struct {
    PyObject_HEAD
    Reader *reader;
    void *start;
    Py_ssize_t size;
    uint32_t slot;
} View;

static int reader_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"block", "table", "times", "data_offset", "stride_bytes", "slot_bytes", "slot_count", "file",
                            "process_held", "most_held", "room_most", "small_bytes", "look_for_room", "writer_waits",
                            "last_released", NULL};
    Reader *self = (Reader *)object;
    PyObject *block, *file, *held, *look_for_room, *writer_waits, *last_released;
    unsigned long long table, times, data_offset, stride_bytes, slot_bytes, small_bytes;
    long long most_held, room_most;
    unsigned int slot_count;
    mh_block *b = &self->r.block;
    if (self->r.counts) {
        PyErr_SetString(PyExc_TypeError, "a reader is made once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OKKKKKIOOLLKOOO", names, &block, &table, &times, &data_offset,
                                     &stride_bytes, &slot_bytes, &slot_count, &file, &held, &most_held, &room_most,
                                     &small_bytes, &look_for_room, &writer_waits, &last_released))
        return -1;
    b->table = table, b->times = times, b->data_offset = data_offset, b->stride_bytes = stride_bytes;
    b->slot_bytes = slot_bytes, b->slot_count = slot_count;
    self->most_held = most_held, self->room_most = room_most, self->small_bytes = small_bytes;
    void *memory = borrow(block, &self->block_view, 4096, 0, "block");
    if (!memory || fill_block(b, memory, (size_t)self->block_view.len) < 0)
        return -1;
    self->r.file = borrow(file, &self->file_view, MH_PINS_OFFSET + (size_t)slot_count, 1, "the reader's file");
    if (!self->r.file)
        return -1;
    self->r.pins = (uint8_t *)self->r.file + MH_PINS_OFFSET;
    self->process_held = borrow(held, &self->held_view, 8, 1, "process_held");
    if (!self->process_held)
        return -1;
    self->r.counts = PyMem_Calloc(slot_count, sizeof(uint32_t));
    if (!self->r.counts) {
        PyErr_NoMemory();
        return -1;
    }
    self->look_for_room = Py_NewRef(look_for_room);
    self->writer_waits = Py_NewRef(writer_waits);
    self->last_released = Py_NewRef(last_released);
    self->generation = fork_generation;
    mh_fence(); /* the file was announced; what the caller sees in the block from now on, the writer keeps for it */
    return 0;
}

static void reader_dealloc(PyObject *object) {
    Reader *self = (Reader *)object;
    if (self->block_view.obj)
        PyBuffer_Release(&self->block_view);
    if (self->file_view.obj)
        PyBuffer_Release(&self->file_view);
    if (self->held_view.obj)
        PyBuffer_Release(&self->held_view);
    PyMem_Free(self->r.counts);
    Py_XDECREF(self->look_for_room);
    Py_XDECREF(self->writer_waits);
    Py_XDECREF(self->last_released);
    Py_XDECREF(self->last_read);
    Py_XDECREF(self->producers);
    Py_XDECREF(self->decode);
    forget(object);
}

/* Call from a finalizer as well: an error there has nobody to go to. */
static void call_quietly(PyObject *callable) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *done = PyObject_CallNoArgs(callable);
    if (!done)
        PyErr_WriteUnraisable(callable);
    Py_XDECREF(done);
    PyErr_Restore(type, value, trace);
}

static int advance(Reader *self, uint64_t sequence) {
    if (mh_advance(&self->r, sequence)) {
        PyObject *done = PyObject_CallNoArgs(self->writer_waits);
        Py_XDECREF(done);
        return done ? 0 : -1;
    }
    return 0;
}

static void unpin(Reader *self, uint32_t slot) {
    if (self->generation != fork_generation)
        return; /* the pins are the parent's */
    mh_unpin(&self->r, slot);
    if (self->r.counts[slot] == 0) {
        --*self->process_held;
        if (mh_load(self->r.block.words + MH_WRITER_TICKET))
            call_quietly(self->writer_waits);
    }
}

static int pin(Reader *self, uint32_t slot, uint64_t wanted) {
    int is_first = self->r.counts[slot] == 0;
    if (!mh_pin(&self->r, slot, wanted)) {
        if (is_first && mh_load(self->r.block.words + MH_WRITER_TICKET))
            call_quietly(self->writer_waits); /* it may have passed over the slot because of this pin */
        return 0;
    }
    *self->process_held += is_first;
    return 1;
}

/* Whether this process may keep one more value in its slot; -1 with an exception. */
static int has_room(Reader *self) {
    int64_t own = *self->process_held;
    if (own > self->most_held)
        return 0;
    if (self->room_most < 0)
        return 1; /* the caller manages what it holds */
    uint64_t now = mh_clock_ns(CLOCK_MONOTONIC_COARSE);
    if (own > self->room_own || now >= self->room_until_ns) {
        PyObject *found = PyObject_CallNoArgs(self->look_for_room); /* (held by others, until when that counts) */
        long long others;
        unsigned long long seconds_ns;
        int parsed = found && PyArg_ParseTuple(found, "LK", &others, &seconds_ns);
        Py_XDECREF(found);
        if (!parsed)
            return -1;
        self->room_own = own, self->room_others = others, self->room_until_ns = now + seconds_ns;
    }
    return self->room_others + own <= self->room_most;
}

static void note_origin(Reader *self, uint32_t slot, uint64_t sequence) {
    const uint64_t *line = mh_line(&self->r.block, slot);
    self->sequence = sequence;
    self->checksum = mh_load(line + MH_CHECKSUM);
    self->written_ns = mh_load(self->r.block.words + self->r.block.times + slot);
    for (int i = 0; i < 4; i++)
        self->shape[i] = mh_load(line + MH_SHAPE + i);
}

/* Hand out the payload of a slot: bytes where it is small, or this process holds too many slots, else a view that holds
 * the slot. None if the slot does not hold that item (any more), or states a length that cannot be.
 *
 * Another thread may close the reader while this one looks for room or makes a long copy; then nobody sees the pin any
 * more, as with a reader that has no file. */
static PyObject *hand_out(Reader *self, uint32_t slot, uint64_t wanted, uint64_t small_bytes) {
    uint64_t length = mh_load(mh_line(&self->r.block, slot) + MH_LENGTH);
    const uint8_t *start = mh_payload(&self->r.block, slot);
    if (length <= small_bytes && length <= self->r.block.slot_bytes) {
        PyObject *bytes = PyBytes_FromStringAndSize((const char *)start, (Py_ssize_t)length);
        if (!bytes)
            return NULL;
        note_origin(self, slot, wanted);
        if (mh_is_unchanged(&self->r, slot, wanted))
            return bytes;
        Py_DECREF(bytes);
        Py_RETURN_NONE;
    }
    if (!pin(self, slot, wanted))
        Py_RETURN_NONE;
    length = mh_load(mh_line(&self->r.block, slot) + MH_LENGTH);
    if (length > self->r.block.slot_bytes) {
        unpin(self, slot);
        Py_RETURN_NONE;
    }
    note_origin(self, slot, wanted);
    int room = has_room(self);
    if (room <= 0) {
        PyObject *bytes = room == 0 ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length) : NULL;
        if (bytes) {
            copy(PyBytes_AsString(bytes), start, (size_t)length);
            if (!mh_is_unchanged(&self->r, slot, wanted)) {
                Py_DECREF(bytes);
                bytes = Py_NewRef(Py_None);
            }
        }
        unpin(self, slot);
        return bytes;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(view_type, Py_tp_alloc);
    View *view = self->is_closing ? NULL : (View *)allocate(view_type, 0);
    if (!view) {
        unpin(self, slot);
        if (self->is_closing)
            Py_RETURN_NONE;
        return NULL;
    }
    view->reader = (Reader *)Py_NewRef((PyObject *)self);
    view->start = (void *)start;
    view->size = (Py_ssize_t)length;
    view->slot = slot;
    self->views++;
    return (PyObject *)view;
}

static PyObject *reader_take(PyObject *object, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)object;
    uint64_t wanted = self->r.cursor + 1;
    uint32_t slot = mh_hinted(&self->r, wanted);
    if (slot == MH_NO_SLOT || self->generation != fork_generation || self->is_closing)
        Py_RETURN_NONE;
    PyObject *found = hand_out(self, slot, wanted, self->small_bytes);
    if (found && found != Py_None && advance(self, wanted) < 0)
        Py_CLEAR(found);
    return found;
}

static PyObject *reader_follow(PyObject *object, PyObject *args) {
    Reader *self = (Reader *)object;
    PyObject *last_read, *producers, *decode;
    unsigned long long epoch;
    if (!PyArg_ParseTuple(args, "OKOO", &last_read, &epoch, &producers, &decode))
        return NULL;
    replace(&self->last_read, last_read);
    replace(&self->producers, producers);
    replace(&self->decode, decode);
    self->epoch = epoch;
    self->value_sequence = 0;
    Py_RETURN_NONE;
}

static PyObject *shape_of(Reader *self) {
    uint64_t *shape = self->shape;
    if (!shape[0])
        Py_RETURN_NONE;
    return Py_BuildValue("(KKKK)", shape[0], shape[1], shape[2], shape[3]);
}

/* As take, decoded, with its origin noted where the caller asked for it. One call is one step: other threads run only
 * once the item is taken. */
static PyObject *reader_take_value(PyObject *object, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)object;
    uint64_t wanted = self->r.cursor + 1;
    uint32_t slot = mh_hinted(&self->r, wanted);
    if (slot == MH_NO_SLOT || self->generation != fork_generation || self->is_closing || !self->last_read ||
        mh_load(self->r.block.words + MH_EPOCH) != self->epoch)
        Py_RETURN_NONE;
    PyObject *value = hand_out(self, slot, wanted, self->small_bytes);
    if (!value || value == Py_None)
        return value;
    PyObject *shape = self->decode == Py_None ? NULL : shape_of(self);
    PyObject *sequence = PyLong_FromUnsignedLongLong(wanted);
    PyObject *written_ns = PyLong_FromUnsignedLongLong(self->written_ns);
    PyObject *origin = sequence && written_ns ? PyTuple_Pack(3, sequence, written_ns, self->producers) : NULL;
    int is_noted = origin && (shape || self->decode == Py_None) && advance(self, wanted) == 0 &&
                   PyObject_SetAttr(self->last_read, origin_name, origin) == 0;
    if (is_noted) {
        self->value_sequence = wanted;
        PyObject *payload = value;
        if (shape)
            value = PyObject_CallFunctionObjArgs(self->decode, payload, shape, NULL);
        else if (PyBytes_CheckExact(payload) && (uint64_t)PyBytes_Size(payload) <= self->small_bytes)
            value = Py_NewRef(payload);
        else
            value = PyMemoryView_FromObject(payload);
        Py_DECREF(payload);
    } else
        Py_CLEAR(value);
    Py_XDECREF(shape);
    Py_XDECREF(sequence);
    Py_XDECREF(written_ns);
    Py_XDECREF(origin);
    return value;
}

static PyObject *reader_pin(PyObject *object, PyObject *args) {
    Reader *self = (Reader *)object;
    unsigned long long wanted;
    unsigned int slot;
    int is_pinned = 0;
    if (!PyArg_ParseTuple(args, "KI|p", &wanted, &slot, &is_pinned))
        return NULL;
    if (slot >= self->r.block.slot_count || self->generation != fork_generation || self->is_closing)
        Py_RETURN_NONE;
    return hand_out(self, slot, wanted, is_pinned ? 0 : self->small_bytes);
}

static PyObject *reader_advance(PyObject *object, PyObject *argument) {
    Reader *self = (Reader *)object;
    uint64_t sequence = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred() || (self->generation == fork_generation && advance(self, sequence) < 0))
        return NULL;
    Py_RETURN_NONE;
}

/* The caller looks next whether there is anything to read. */
static void store_ticket(Reader *self, uint64_t ticket) {
    mh_store(self->r.file + MH_TICKET, ticket);
    mh_fence();
}

static int spin(Reader *self, uint64_t spin_us) {
    int came;
    Py_BEGIN_ALLOW_THREADS;
    came = mh_spin_read(&self->r, spin_us * 1000);
    Py_END_ALLOW_THREADS;
    return came;
}

static PyObject *reader_set_ticket(PyObject *object, PyObject *argument) {
    Reader *self = (Reader *)object;
    uint64_t ticket = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred())
        return NULL;
    if (self->generation == fork_generation)
        store_ticket(self, ticket);
    Py_RETURN_NONE;
}

static PyObject *reader_next_ticket(PyObject *object, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)object;
    if (self->generation == fork_generation)
        store_ticket(self, ++self->ticket);
    Py_RETURN_NONE;
}

/* Whether nothing is there, and something may come: the ring is open, and its writer lives. The ticket was stored. */
static int may_sleep(Reader *self, int block_fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = OWNER_BYTE, .l_len = 1};
    return mh_load_acquire(self->r.block.words + MH_HEAD) <= self->r.cursor &&
           mh_load(self->r.block.words + MH_STATE) == MH_OPEN && !self->is_closing &&
           fcntl(block_fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Sleep until one of the descriptors is ready; the first is the FIFO, which is emptied. 1: the FIFO alone was ready.
 * 0: another, none in time, or a signal came; -1 with an exception. */
static int sleep_on(struct pollfd *fds, nfds_t count, uint64_t until_ns) {
    struct timespec left, *limit = NULL;
    char wake_ups[256];
    int ready;
    if (until_ns != UINT64_MAX) {
        uint64_t now = mh_clock_ns(CLOCK_MONOTONIC), ns = until_ns > now ? until_ns - now : 0;
        left = (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
        limit = &left;
    }
    Py_BEGIN_ALLOW_THREADS;
    ready = ppoll(fds, count, limit, NULL);
    if (ready > 0 && fds[0].revents & POLLIN) {
        ssize_t emptied = read(fds[0].fd, wake_ups, sizeof(wake_ups)); /* what is left wakes the next sleep in vain */
        (void)emptied;
    }
    Py_END_ALLOW_THREADS;
    if (ready < 0)
        return errno == EINTR && PyErr_CheckSignals() < 0 ? -1 : 0;
    return ready == 1 && fds[0].revents == POLLIN;
}

static int wait_arguments(PyObject *const *args, Py_ssize_t count, struct pollfd *fds, uint64_t *until_ns) {
    double seconds = count > 1 && args[1] != Py_None ? PyFloat_AsDouble(args[1]) : 0;
    if (count < 4 || count - 3 > MOST_FDS) {
        PyErr_SetString(PyExc_TypeError, "wait takes microseconds, seconds or None, the block and descriptors");
        return -1;
    }
    for (Py_ssize_t i = 3; i < count; i++)
        fds[i - 3] = (struct pollfd){(int)PyLong_AsLong(args[i]), POLLIN, 0};
    if (PyErr_Occurred())
        return -1;
    *until_ns = UINT64_MAX;
    if (args[1] != Py_None && !(seconds > MOST_SECONDS))
        *until_ns = mh_clock_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds > 0 ? seconds * 1e9 : 0);
    return (int)(count - 3);
}

/* One call is: wait without sleeping where that pays, say that this reader sleeps, look once more, sleep. Whatever but
 * an item comes is left to the caller. */
static PyObject *reader_wait(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)object;
    struct pollfd fds[MOST_FDS];
    uint64_t until_ns;
    int fd_count = wait_arguments(args, count, fds, &until_ns);
    if (fd_count < 0)
        return NULL;
    uint64_t spin_us = PyLong_AsUnsignedLongLong(args[0]);
    long block_fd = PyLong_AsLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
    if (self->generation != fork_generation)
        Py_RETURN_FALSE;
    int is_woken = 0;
    if (spin_us == 0 || !spin(self, spin_us)) {
        do {
            store_ticket(self, ++self->ticket);
            if (!may_sleep(self, (int)block_fd))
                break;
            is_woken = sleep_on(fds, (nfds_t)fd_count, until_ns);
        } while (is_woken > 0 && mh_load_acquire(self->r.block.words + MH_HEAD) <= self->r.cursor);
        store_ticket(self, 0);
    }
    return is_woken < 0 ? NULL : PyBool_FromLong(mh_load_acquire(self->r.block.words + MH_HEAD) > self->r.cursor);
}

static PyObject *reader_spin(PyObject *object, PyObject *argument) {
    Reader *self = (Reader *)object;
    uint64_t spin_us = PyLong_AsUnsignedLongLong(argument);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(spin(self, spin_us));
}

static PyObject *reader_close(PyObject *object, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)object;
    if (!self->is_closing) {
        self->is_closing = 1;
        if (self->views == 0)
            call_quietly(self->last_released);
    }
    Py_RETURN_NONE;
}

static PyObject *reader_cursor(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(((Reader *)object)->r.cursor);
}

static PyObject *reader_shape(PyObject *object, void *Py_UNUSED(closure)) {
    return shape_of((Reader *)object);
}

static PyMemberDef reader_members[] = {
    {"sequence", T_ULONGLONG, offsetof(Reader, sequence), READONLY, "Of the item that was handed out last."},
    {"written_ns", T_ULONGLONG, offsetof(Reader, written_ns), READONLY, "When that was written."},
    {"value_sequence", T_ULONGLONG, offsetof(Reader, value_sequence), READONLY,
     "Of the value that `take_value` handed out last; 0 if none since `follow`."},
    {"checksum", T_ULONGLONG, offsetof(Reader, checksum), READONLY, "What its writer stored with it; the slot may have another by now."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef reader_properties[] = {
    {"cursor", reader_cursor, NULL, "The number of the item that was read last.", NULL},
    {"shape", reader_shape, NULL, "The shape of the item that was handed out last; None for what is flat.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef reader_methods[] = {
    {"take", reader_take, METH_NOARGS, "The next item's payload if it is where it should be, else None: search for it."},
    {"follow", reader_follow, METH_VARARGS,
     "follow(last_read, epoch, producers, decode or None): have `take_value` note origins in last_read, in that epoch."},
    {"take_value", reader_take_value, METH_NOARGS, "As take, decoded, its origin noted. None too in another epoch: `follow` it."},
    {"wait", (PyCFunction)(void (*)(void))reader_wait, METH_FASTCALL,
     "wait(spin_us, seconds or None, block, fifo, descriptors...) -> whether an item came; if not: look what happened."},
    {"pin", reader_pin, METH_VARARGS, "pin(sequence, slot, is_pinned=False) -> the item's payload, or None if it is not there any more."},
    {"advance", reader_advance, METH_O, "advance(sequence): everything up to it is read or lost."},
    {"next_ticket", reader_next_ticket, METH_NOARGS, "Say that this reader sleeps."},
    {"set_ticket", reader_set_ticket, METH_O, "set_ticket(ticket): say that this reader sleeps; 0: that it does not."},
    {"spin", reader_spin, METH_O, "spin(microseconds) -> whether an item came meanwhile."},
    {"close", reader_close, METH_NOARGS, "Hand out nothing any more, and call last_released once the last view is gone."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, "A reader's side of a ring."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, reader_init},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_methods, reader_methods},
    {Py_tp_members, reader_members},
    {Py_tp_getset, reader_properties},
    {0, NULL},
};
static PyType_Spec reader_spec = {"messagehub.shm.core._ring.Reader", sizeof(Reader), 0, Py_TPFLAGS_DEFAULT, reader_slots};

/* --- View ----------------------------------------------------------------------------------------------------- */

static void view_dealloc(PyObject *object) {
    View *self = (View *)object;
    Reader *reader = self->reader;
    if (reader) {
        unpin(reader, self->slot);
        reader->views--;
        if (reader->is_closing && reader->views == 0 && reader->generation == fork_generation)
            call_quietly(reader->last_released);
        Py_DECREF(reader);
    }
    forget(object);
}

static int view_getbuffer(PyObject *object, Py_buffer *buffer, int flags) {
    View *self = (View *)object;
    return PyBuffer_FillInfo(buffer, object, self->start, self->size, 1, flags);
}

static Py_ssize_t view_length(PyObject *object) { return ((View *)object)->size; }

static PyType_Slot view_slots[] = {
    {Py_tp_doc, "The payload of a slot, which it holds until the last reference to it is gone."},
    {Py_tp_dealloc, view_dealloc},
    {Py_bf_getbuffer, view_getbuffer},
    {Py_sq_length, view_length},
    {0, NULL},
};
static PyType_Spec view_spec = {"messagehub.shm.core._ring.View", sizeof(View), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, view_slots};

/* --- the module ----------------------------------------------------------------------------------------------- */

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyTypeObject **kept) {
    PyObject *type = PyType_FromSpec(spec);
    if (!type)
        return -1;
    if (kept)
        *kept = (PyTypeObject *)Py_NewRef(type);
    int result = PyModule_AddObjectRef(module, name, type);
    Py_DECREF(type);
    return result;
}

static PyObject *module_fence(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    mh_fence();
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"fence", module_fence, METH_NOARGS, "Let no load or store pass this point, for what Python itself loads and stores."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_ring", "The ring's protocol in C.", -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__ring(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    dtype_name = PyUnicode_InternFromString("dtype");
    origin_name = PyUnicode_InternFromString("origin");
    if (!dtype_name || !origin_name || pthread_atfork(NULL, NULL, count_fork) || add_type(module, &writer_spec, "Writer", NULL) < 0 ||
        add_type(module, &reader_spec, "Reader", NULL) < 0 || add_type(module, &view_spec, "View", &view_type) < 0 ||
        PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0 || PyModule_AddIntConstant(module, "REFRESH", MH_REFRESH) < 0 || PyModule_AddIntConstant(module, "LOOK", MH_LOOK) < 0 ||
        PyModule_AddIntConstant(module, "FULL", MH_FULL) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
