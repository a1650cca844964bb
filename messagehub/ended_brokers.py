"""Endpoints of embedded brokers of this process that have ended: nobody will answer there any more."""

ENDPOINTS: set[str] = set()
