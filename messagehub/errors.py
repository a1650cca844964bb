"""Every error a user can meet, by class and by wire code.

HubError                             registry/errors.py; has code, message, details, retryable
├── Refusal                          registry/errors.py: the registry said no
├── ProtocolError                    the bytes were not a request
│   ├── MalformedRequest             INVALID_REQUEST
│   ├── UnknownType                  UNKNOWN_TYPE
│   ├── MessageTooLarge              MESSAGE_TOO_LARGE
│   └── UnsupportedProtocol          UNSUPPORTED_PROTOCOL
├── BrokerUnavailable                BROKER_UNAVAILABLE: nobody answers; raised by the client only
│   └── RequestTimeout               REQUEST_TIMEOUT
├── BrokerRequired                   BROKER_REQUIRED: this cannot be done without a broker
├── BrokerAlreadyRunning             BROKER_ALREADY_RUNNING
├── StoreError                       STORE_ERROR: the database cannot be used as it is
│   └── StoreReadOnly                STORE_READ_ONLY: the disk is full or failing; reads go on
├── ConfigurationError               CONFIGURATION_ERROR
└── InternalError                    INTERNAL_ERROR: a defect in the broker
"""

from typing import Any

from registry import errors as _registry_errors
from registry.errors import HubError, InvalidRequest, Refusal


class ProtocolError(HubError):
    """Bytes that are not a request. `request_id` is the peer's id when it could be read, for the answer."""

    request_id: str | None = None


class MalformedRequest(ProtocolError):
    code = InvalidRequest.code


class UnknownType(ProtocolError):
    code = "UNKNOWN_TYPE"


class MessageTooLarge(ProtocolError):
    code = "MESSAGE_TOO_LARGE"


class UnsupportedProtocol(ProtocolError):
    code = "UNSUPPORTED_PROTOCOL"


class BrokerUnavailable(HubError):
    code = "BROKER_UNAVAILABLE"
    retryable = True


class RequestTimeout(BrokerUnavailable):
    code = "REQUEST_TIMEOUT"


class BrokerRequired(HubError):
    code = "BROKER_REQUIRED"
    retryable = True


class BrokerAlreadyRunning(HubError):
    code = "BROKER_ALREADY_RUNNING"


class StoreError(HubError):
    code = "STORE_ERROR"


class StoreReadOnly(StoreError):
    code = "STORE_READ_ONLY"
    retryable = True


class ConfigurationError(HubError):
    code = "CONFIGURATION_ERROR"


class InternalError(HubError):
    code = "INTERNAL_ERROR"


def _by_code() -> dict[str, type[HubError]]:
    classes = [*vars(_registry_errors).values(), *globals().values()]
    found = {c.code: c for c in classes if isinstance(c, type) and issubclass(c, HubError) and "code" in vars(c)}
    return found | {InvalidRequest.code: InvalidRequest}


BY_CODE = _by_code()


def from_wire(code: str, message: str, details: dict[str, Any], *, retryable: bool) -> HubError:
    """The exception for an ERROR reply. A code from a newer broker becomes a plain HubError that keeps it."""
    error = BY_CODE.get(code, HubError)(message)
    error.details = details
    if type(error) is HubError:
        error.code, error.retryable = code, retryable  # type: ignore[misc]  # of this instance only
    return error


__all__ = ["BY_CODE", "HubError", "InvalidRequest", "Refusal", "from_wire"] + sorted(
    c.__name__ for c in BY_CODE.values()
)
