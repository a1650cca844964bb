"""What a hub says of the rights of all peers: another text than before means that somebody's have changed.

Workers of services then change their keys (`services/keys.py`). In a site, callers have rights at the hubs of their own
hosts, so every hub says something of all of them.
"""

from msgspec import UNSET, UnsetType

from messagehub.broker.access.access_control import AccessControl


class AccessVersion:
    def __init__(self, access_control: AccessControl | None) -> None:
        self.of_other_hubs = ""
        """The same of the other hubs of a site; empty if none of them has peers with rights of their own."""
        self._access_control = access_control

    @property
    def own(self) -> str:
        return self._access_control.access if self._access_control is not None else ""

    def current(self) -> str | UnsetType:
        if self.of_other_hubs:
            return f"{self.own}+{self.of_other_hubs}"
        return self.own or UNSET
