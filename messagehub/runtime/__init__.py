"""Threads, event loops, signals, callbacks and the end of the process: what every part of the hub runs on."""
