"""Connections between callers and workers on different hosts of a site: by ZeroMQ over TCP, with CURVE."""
