"""How a hub's settings say where etcd is."""

from pathlib import Path

from messagehub.settings import Settings
from messagehub.store.etcd.access import EtcdAccess


def etcd_access(settings: Settings) -> EtcdAccess:
    """Return how etcd is reached; raise ConfigurationError for what cannot be used. Nothing connects."""
    access = EtcdAccess(
        endpoints=tuple(url.strip() for url in settings.etcd.split(",") if url.strip()),
        user=settings.etcd_user,
        password_file=_path(settings.etcd_password_file),
        ca=_path(settings.etcd_ca),
        cert=_path(settings.etcd_cert),
        key=_path(settings.etcd_key),
    ).checked()
    access.certificates()
    if access.user:
        access.password()
    return access


def _path(text: str) -> Path | None:
    return Path(text) if text else None
