"""The HTTP side: the Confluent Schema Registry API at the root, our own under /api/v1.

It runs in a process of its own, supervised by `messagehub serve`, as an ordinary client of the broker.
"""
