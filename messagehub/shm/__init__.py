"""Shared memory: blocks, tables, reader files and the directory of them, with no broker and no daemon."""
