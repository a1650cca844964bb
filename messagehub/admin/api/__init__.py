"""Our own API: health, metrics and everything under /api/v1."""

from messagehub.admin.api import (
    access,
    audit,
    channels,
    events,
    flow,
    health,
    hosts,
    hub,
    me,
    schema_graph,
    schemas,
    services,
    tables,
    tail,
    topics,
)

ROUTES = [
    *health.operations,
    *me.operations,
    *hub.operations,
    *hosts.operations,
    *flow.operations,
    *channels.operations,
    *tables.operations,
    *tail.operations,
    *topics.operations,
    *services.operations,
    *schemas.operations,
    *schema_graph.operations,
    *access.operations,
    *audit.operations,
    *events.operations,
]
ENDPOINTS = tuple(route.operation for route in ROUTES)
