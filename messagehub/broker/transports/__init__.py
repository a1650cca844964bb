"""How requests reach the broker and replies leave it: ZeroMQ for everybody, a unix socket for clients of this host."""
