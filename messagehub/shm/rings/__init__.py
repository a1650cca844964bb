"""Rings: a stream of items in fixed slots, with one writer and any number of readers."""
