"""Consumers: where a channel is, which blocks it has, and how threads and tasks read them."""
