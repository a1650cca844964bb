"""Endpoints of embedded brokers of this process that have ended, until a hub is made for one of them again.

`MessageHub.get_instance` closes a hub that was connected to such a broker.
"""

ENDPOINTS: set[str] = set()
