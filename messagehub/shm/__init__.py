"""Shared memory: blocks, tables, lanes and the directory of them, with no broker and no daemon."""
