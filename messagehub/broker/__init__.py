"""The broker: one thread that owns the registry, its sockets and the order of everything that happens."""
