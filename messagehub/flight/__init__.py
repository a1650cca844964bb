"""Data between hosts by Arrow Flight: what clients and gateways say to each other, and the client's side of it."""
