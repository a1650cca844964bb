"""Our own API: health, metrics and everything under /api/v1."""

from messagehub.admin.api import channels, events, health, schemas, services, tables, topics

ROUTES = [
    *health.operations,
    *channels.operations,
    *tables.operations,
    *topics.operations,
    *services.operations,
    *schemas.operations,
    *events.operations,
]
ENDPOINTS = tuple(route.operation for route in ROUTES)
