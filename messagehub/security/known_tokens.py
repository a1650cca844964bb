"""The tokens that let callers in: that of whoever runs the hub, and those that `access.json` lists, as they are now."""

import hmac
from typing import NamedTuple

from messagehub.errors import ConfigurationError
from messagehub.security.credentials import (
    AccessFile,
    AccessList,
    ListedCredential,
    OwnerToken,
    token_hash,
    token_owner,
)
from registry.access import ADMIN, Rights

OWNER = "owner"


class TokenHolder(NamedTuple):
    name: str
    """`owner`, or `token:NAME`."""
    rights: Rights
    listed: ListedCredential
    """The token's entry as it was."""


class KnownTokens:
    def __init__(self, file: AccessFile, own: OwnerToken | None) -> None:
        """`own` is the token of whoever runs the hub, which may do everything."""
        self._own = own
        self._file = file
        self._version = file.version()
        self._list = file.read()
        self._rights = _rights(self._list)

    def holder(self, token: str) -> TokenHolder | None:
        """Return whose token it is; None of one that is not known, or was revoked."""
        if self._own is not None:
            own = self._own.listed()
            if hmac.compare_digest(token_hash(token), own.proof):
                return TokenHolder(OWNER, ADMIN, own)
        self._look()
        name = token_owner(self._list.tokens, token)
        return None if name is None else TokenHolder(f"token:{name}", self._rights[name], self._list.tokens[name])

    def is_current(self, name: str, listed: ListedCredential) -> bool:
        """Return whether the entry of a token is still what it was."""
        if name == OWNER:
            return self._own is not None and self._own.listed() == listed
        self._look()
        return self._list.tokens.get(name.removeprefix("token:")) == listed

    def _look(self) -> None:
        version = self._file.version()
        if version != self._version:
            try:
                self._list = self._file.read()
            except (ConfigurationError, OSError):
                return  # the broker's log says so; what was listed stays in force
            self._version, self._rights = version, _rights(self._list)


def _rights(listed: AccessList) -> dict[str, Rights]:
    return {name: Rights.parse(token.rights) for name, token in listed.tokens.items()}
