"""Tokens by which a hub of a site lets its clients read one channel through the gateway of another host.

Rule 1: a hub gives a token after it has checked the client's right to consume the channel (to produce it, where the
token is for removing a table), by its own keys and tokens.
The gateway trusts that, because only the hubs of the site know the secret of its host, which they read in etcd.
Rule 2: a token is for one host, one channel and a time. It is looked at before the first byte of a call.
Rule 3: the times in it are by the clock of the host that gave it, and the clocks of two hosts may differ by hours. So a
gateway takes a token for CLOCKS_APART_SECONDS longer than it says; whoever has it asks for another one in time.
"""

import base64
import hashlib
import hmac

import msgspec

from registry.decoding import decodable

TOKEN_SECONDS = 3600.0
CLOCKS_APART_SECONDS = 7200.0
PREFIX = "site."


@decodable
class GatewayClaim(msgspec.Struct, kw_only=True, frozen=True):
    host: str
    channel: str
    user: str
    """Who reads: the host of the hub that gave the token, and what that hub calls its client."""
    expires_at: float
    changes: bool = False
    """Whether it is for removing the channel's table, and not for reading."""


def signed_token(secret: str, claim: GatewayClaim) -> str:
    body = base64.urlsafe_b64encode(msgspec.json.encode(claim)).decode()
    return f"{PREFIX}{body}.{_signature(secret, body)}"


def claim_of(secret: str, token: str, *, host: str, now: float) -> GatewayClaim | None:
    """Return what a token claims, or None if it was not signed for this host, is over, or is no such token."""
    body, _, signature = token.removeprefix(PREFIX).partition(".")
    if not token.startswith(PREFIX) or not hmac.compare_digest(signature.encode(), _signature(secret, body).encode()):
        return None
    try:
        claim = msgspec.json.decode(base64.urlsafe_b64decode(body), type=GatewayClaim)
    except ValueError:
        return None
    return claim if claim.host == host and now < claim.expires_at + CLOCKS_APART_SECONDS else None


def _signature(secret: str, body: str) -> str:
    return hmac.new(secret.encode(), body.encode(errors="replace"), hashlib.sha256).hexdigest()
