"""Who may come in: keys of peers and tokens for HTTP, under /api/v1/keys and /api/v1/tokens. For administrators.

A new secret is in the answer to its making, and nowhere else: tokens are stored as hashes, of keys the public half.
"""

from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec
from fastapi import Depends
from starlette.concurrency import run_in_threadpool

from messagehub.admin.api.parameters import Name
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.errors import HttpError
from messagehub.admin.routes import JsonBody, Operations
from messagehub.errors import ConfigurationError
from messagehub.security.credentials import (
    AccessFile,
    KeyPair,
    ListedCredential,
    allow_key,
    allow_token,
    check_key,
    remove_revoked_key,
    revoke,
    server_keys,
    server_public_key,
)
from messagehub.settings import Settings
from registry import names
from registry.access import Rights

operations = Operations()
T = TypeVar("T")
RightTexts = Annotated[list[Annotated[str, msgspec.Meta(max_length=300)]], msgspec.Meta(min_length=1, max_length=100)]


class AccessAnswer(msgspec.Struct, kw_only=True):
    """What needs neither a listed token nor a listed key. `anonymous` are the rights of callers on the hub's host that
    give no token; `owner_token` is whether the token in `http.token` is taken, which may do everything; `shared` is
    whether the hub lets keys in over TCP."""

    anonymous: list[str]
    owner_token: bool
    shared: bool


class TokenBody(msgspec.Struct, forbid_unknown_fields=True):
    """Rights are written ROLE or ROLE:PATTERN."""

    name: str
    rights: RightTexts


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """Without a public key a pair is made, whose secret half is in the answer."""

    name: str
    rights: RightTexts
    public: str | None = None


class TokenAnswer(msgspec.Struct, kw_only=True):
    name: str
    rights: list[str]
    created_at: float


class NewToken(TokenAnswer, kw_only=True):
    """`token` is shown this once."""

    token: str


class KeyAnswer(msgspec.Struct, kw_only=True):
    name: str
    public: str
    rights: list[str]
    created_at: float


class NewKey(KeyAnswer, kw_only=True):
    """`secret` is shown this once, and null where the public key was given. A key file holds public, secret and
    server_key as JSON."""

    secret: str | None
    server_key: str | None


class KeysAnswer(msgspec.Struct):
    server_key: str | None
    keys: list[KeyAnswer]


class RevokedAnswer(msgspec.Struct):
    name: str


@operations.add("GET", "/api/v1/access", "admin")
async def everybody(backend: BrokerClient) -> AccessAnswer:
    """What is allowed without a listed token or key."""
    public = await run_in_threadpool(server_public_key, backend.hub.settings.keys_path)
    return AccessAnswer(
        anonymous=[str(right) for right in backend.callers.anonymous.all],
        owner_token=backend.callers.has_owner_token,
        shared=public is not None,
    )


@operations.add("GET", "/api/v1/tokens", "admin")
async def tokens(backend: BrokerClient) -> list[TokenAnswer]:
    """The tokens for HTTP, by name; not the tokens themselves, which nobody has."""
    listed = (await run_in_threadpool(_access(backend).read)).tokens
    return [_token(name, one) for name, one in sorted(listed.items())]


@operations.add("POST", "/api/v1/tokens", "admin", writes=True, codes=(409, 422, 42208))
async def new_token(backend: BrokerClient, body: Annotated[TokenBody, Depends(JsonBody(TokenBody))]) -> NewToken:
    """Make a token with these rights. The answer has it, this once."""
    names.check_role("token", body.name)
    Rights.parse(body.rights)
    access = _access(backend)
    token = await _changed(backend, "TOKEN_NEW", body.name, lambda: allow_token(access, body.name, body.rights))
    listed = access.read().tokens[body.name]
    return NewToken(name=body.name, rights=listed.rights, created_at=listed.created_at, token=token)


@operations.add("DELETE", "/api/v1/tokens/{name}", "admin", writes=True, codes=(404,))
async def revoke_token(backend: BrokerClient, name: Name) -> RevokedAnswer:
    """Take a token no longer."""
    access = _access(backend)
    if name not in access.read().tokens:
        raise HttpError(404, 404, f"no token {name!r} is listed")
    await _changed(backend, "TOKEN_REVOKE", name, lambda: revoke(access, "token", name))
    return RevokedAnswer(name)


@operations.add("GET", "/api/v1/keys", "admin")
async def keys(backend: BrokerClient) -> KeysAnswer:
    """The hub's public key, and the keys of peers that are let in over TCP."""
    settings = backend.hub.settings
    listed = (await run_in_threadpool(_access(backend).read)).keys
    shown = [_key(name, one) for name, one in sorted(listed.items())]
    return KeysAnswer(await run_in_threadpool(server_public_key, settings.keys_path), shown)


@operations.add("POST", "/api/v1/keys", "admin", writes=True, codes=(409, 422, 42208))
async def new_key(backend: BrokerClient, body: Annotated[KeyBody, Depends(JsonBody(KeyBody))]) -> NewKey:
    """Let a key in with these rights. Without a public key a pair is made; its secret is in the answer, this once."""
    names.check_role("key", body.name)
    Rights.parse(body.rights)
    access, settings = _access(backend), backend.hub.settings
    if body.name in access.read().keys:
        raise HttpError(409, 409, f"there is a key {body.name!r} already: revoke it first, or choose another name")
    pair = None if body.public is not None else await run_in_threadpool(_new_pair, settings)
    public = _checked_key(body.public) if pair is None else pair.public
    await _changed(backend, "KEY_ALLOW", body.name, lambda: allow_key(access, body.name, public, body.rights))
    listed = access.read().keys[body.name]
    return NewKey(
        name=body.name,
        public=public,
        rights=listed.rights,
        created_at=listed.created_at,
        secret=None if pair is None else pair.secret,
        server_key=server_public_key(settings.keys_path),
    )


@operations.add("DELETE", "/api/v1/keys/{name}", "admin", writes=True, codes=(404,))
async def revoke_key(backend: BrokerClient, name: Name) -> RevokedAnswer:
    """Let a key in no longer; what it asks on open connections is refused from now on."""
    access, settings = _access(backend), backend.hub.settings
    if name not in access.read().keys:
        raise HttpError(404, 404, f"no key {name!r} is listed")
    gone = await _changed(backend, "KEY_REVOKE", name, lambda: revoke(access, "key", name))
    remove_revoked_key(settings.keys_path / f"{name}.key", gone)
    return RevokedAnswer(name)


def _access(backend: BrokerClient) -> AccessFile:
    return AccessFile(backend.hub.settings.access_path)


async def _changed(backend: BrokerClient, request: str, name: str, change: Callable[[], T]) -> T:
    """Change the list, and note who did it."""
    try:
        made = await run_in_threadpool(change)
    except ConfigurationError as refused:  # the name or the key is listed already, or too many are
        raise HttpError(409, 409, refused.message) from None
    backend.callers.note_change(request, name)
    return made


def _new_pair(settings: Settings) -> KeyPair:
    return KeyPair.new(server_keys(settings.keys_path).public)


def _checked_key(public: str | None) -> str:
    try:
        return check_key(public or "")
    except ConfigurationError as refused:
        raise HttpError(422, 422, refused.message) from None


def _token(name: str, listed: ListedCredential) -> TokenAnswer:
    return TokenAnswer(name=name, rights=listed.rights, created_at=listed.created_at)


def _key(name: str, listed: ListedCredential) -> KeyAnswer:
    return KeyAnswer(name=name, public=listed.proof, rights=listed.rights, created_at=listed.created_at)
