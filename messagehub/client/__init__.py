"""The client's side of the wire: one connection, its heartbeats and what it watches."""
