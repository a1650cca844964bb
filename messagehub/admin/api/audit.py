"""The audit logs of the hub: /api/v1/audit."""

from functools import partial
from typing import Annotated, Any

from fastapi import Query

from messagehub.admin.api.parameters import Limit, NotGiven, Seconds
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.routes import Operations
from messagehub.security.audit_reading import Entry, newest_entries

operations = Operations()


@operations.add("GET", "/api/v1/audit", "admin", codes=(42202,))
async def audit(
    backend: BrokerClient,
    who: str = "",
    event: str = "",
    code: str = "",
    request_type: Annotated[str, Query(alias="request")] = "",
    name: str = "",
    since: Seconds | NotGiven = None,
    until: Seconds | NotGiven = None,
    limit: Limit = 100,
) -> list[dict[str, Any]]:
    """Changes and refusals, newest first: of the broker, of HTTP, and of the list of keys and tokens."""

    def is_wanted(entry: Entry) -> bool:
        at = entry.get("at", 0.0)
        return (
            (since is None or at >= since)
            and (until is None or at <= until)
            and event in ("", entry.get("event"))
            and code in ("", entry.get("code"))
            and all(text in str(entry.get(field, "")) for field, text in contained.items() if text)
        )

    contained = {"who": who, "request": request_type, "name": name}
    return await backend.run_for_monitor(partial(newest_entries, backend.hub.settings.dir, limit, is_wanted))
