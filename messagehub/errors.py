"""Every error a user can meet, by class and by wire code.

HubError                             registry/errors.py; has code, message, details, retryable
├── Refusal                          registry/errors.py: the registry said no
├── ProtocolError                    the bytes were not a request
│   ├── MalformedRequest             INVALID_REQUEST
│   ├── UnknownType                  UNKNOWN_TYPE
│   ├── MessageTooLarge              MESSAGE_TOO_LARGE
│   ├── NestedTooDeeply              NESTED_TOO_DEEPLY
│   └── UnsupportedProtocol          UNSUPPORTED_PROTOCOL
├── BrokerUnavailable                BROKER_UNAVAILABLE: nobody answers; raised by the client only
│   └── BrokerTimeout                also a RequestTimeout
├── RequestTimeout                   REQUEST_TIMEOUT: no answer came in time; also a TimeoutError
├── BrokerRequired                   BROKER_REQUIRED: this cannot be done without a broker
├── BrokerAlreadyRunning             BROKER_ALREADY_RUNNING
├── SendTimeout                      SEND_TIMEOUT: the broker did not take a message in time; also a TimeoutError
├── ReceiveTimeout                   RECEIVE_TIMEOUT: no message came in time; also a TimeoutError
├── SubscriptionClosed               SUBSCRIPTION_CLOSED: nothing more will come
├── SubscriberTooSlow                SUBSCRIBER_TOO_SLOW: the buffer overflowed, and that was to end the subscription
├── RouteError                       ROUTE_ERROR: a worker is registered but cannot be reached
├── MailboxFull                      MAILBOX_FULL: the worker has more to do than it takes
├── MailboxClosed                    MAILBOX_CLOSED: the worker takes nothing more
├── NoResponse                       NO_RESPONSE: the worker ended or dropped the request before it answered
├── HandlerFailed                    HANDLER_FAILED: the worker's handler raised
├── RequestCancelled                 REQUEST_CANCELLED: whoever asked wants no reply any more
├── NotInitialised                   NOT_INITIALISED: this hub object is closed
├── DataLost                         DATA_LOST: a consumer fell behind and asked to be told by an exception
├── GatewayUnavailable               GATEWAY_UNAVAILABLE: another host's data cannot be asked for, or not now
├── HomeHostUnavailable              HOME_HOST_UNAVAILABLE: the host that has a retained topic does not answer
├── StoreError                       STORE_ERROR: the database cannot be used as it is
│   └── StoreReadOnly                STORE_READ_ONLY: the disk is full or failing; reads go on
├── Unauthorized                     UNAUTHORIZED: who asks is not known here, or no longer
├── RateLimited                      RATE_LIMITED: too much at once; try again later
├── TooManyRegistrations             TOO_MANY_REGISTRATIONS: this peer holds as many as one may
├── TooManySubscriptions             TOO_MANY_SUBSCRIPTIONS: likewise
├── ConfigurationError               CONFIGURATION_ERROR
├── InternalError                    INTERNAL_ERROR: a defect in the broker
└── DataBlockError                   messagehub/shm/errors.py: between a process and shared memory
"""

from importlib import import_module
from typing import Any

from registry.errors import (
    AddressNotFound,
    ChannelAlreadyExists,
    ChannelClosed,
    ChannelHasTable,
    ChannelNotFound,
    ChannelNotReady,
    CompatibilityNotSet,
    ConsumerAlreadyRegistered,
    DuplicateRegistration,
    Evicted,
    Forbidden,
    HubError,
    IdMismatch,
    IdNotFound,
    InvalidName,
    InvalidRequest,
    InvalidRuleSet,
    InvalidSchema,
    ModeNotSet,
    NameNotFound,
    NotOwner,
    NotRegistered,
    OperationNotPermitted,
    PolicyMismatch,
    PoolEmpty,
    PoolNotEmpty,
    PoolNotFound,
    PositionNotFound,
    ProducerAlreadyRegistered,
    ReferenceExists,
    Refusal,
    RegistryError,
    SchemaHashMismatch,
    SchemaIncompatible,
    SchemaInUse,
    SchemaMismatch,
    SchemaNotFound,
    SchemaTooComplex,
    SchemaTooLarge,
    ServiceNotFound,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    TableNotFound,
    TableOnOtherHost,
    TopicAlreadyExists,
    TopicLimitExceeded,
    TopicNotFound,
    VersionNotFound,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
)

__all__ = [
    "BY_CODE",
    "AddressNotFound",
    "BrokerAlreadyRunning",
    "BrokerRequired",
    "BrokerTimeout",
    "BrokerUnavailable",
    "ChannelAlreadyExists",
    "ChannelClosed",
    "ChannelHasTable",
    "ChannelNotFound",
    "ChannelNotReady",
    "CompatibilityNotSet",
    "ConfigurationError",
    "ConsumerAlreadyRegistered",
    "DataLost",
    "DuplicateRegistration",
    "Evicted",
    "Forbidden",
    "GatewayUnavailable",
    "HandlerFailed",
    "HomeHostUnavailable",
    "HubError",
    "IdMismatch",
    "IdNotFound",
    "InternalError",
    "InvalidName",
    "InvalidRequest",
    "InvalidRuleSet",
    "InvalidSchema",
    "MailboxClosed",
    "MailboxFull",
    "MalformedRequest",
    "MessageTooLarge",
    "ModeNotSet",
    "NameNotFound",
    "NestedTooDeeply",
    "NoResponse",
    "NotInitialised",
    "NotOwner",
    "NotRegistered",
    "OperationNotPermitted",
    "PolicyMismatch",
    "PoolEmpty",
    "PoolNotEmpty",
    "PoolNotFound",
    "PositionNotFound",
    "ProducerAlreadyRegistered",
    "ProtocolError",
    "RateLimited",
    "ReceiveTimeout",
    "ReferenceExists",
    "Refusal",
    "RegistryError",
    "RequestCancelled",
    "RequestTimeout",
    "RouteError",
    "SchemaHashMismatch",
    "SchemaInUse",
    "SchemaIncompatible",
    "SchemaMismatch",
    "SchemaNotFound",
    "SchemaTooComplex",
    "SchemaTooLarge",
    "SendTimeout",
    "ServiceNotFound",
    "StoreError",
    "StoreReadOnly",
    "SubjectNotFound",
    "SubjectNotSoftDeleted",
    "SubjectSoftDeleted",
    "SubscriberTooSlow",
    "SubscriptionClosed",
    "TableNotFound",
    "TableOnOtherHost",
    "TooManyRegistrations",
    "TooManySubscriptions",
    "TopicAlreadyExists",
    "TopicLimitExceeded",
    "TopicNotFound",
    "Unauthorized",
    "UnknownType",
    "UnsupportedProtocol",
    "VersionNotFound",
    "VersionNotSoftDeleted",
    "VersionSoftDeleted",
    "from_wire",
    "is_not_found",
    "is_unable",
]


class ProtocolError(HubError):
    """Bytes that are not a request. `request_id` is the peer's id when it could be read, for the answer."""

    request_id: str | None = None


class MalformedRequest(ProtocolError):
    code = InvalidRequest.code


class UnknownType(ProtocolError):
    code = "UNKNOWN_TYPE"


class NestedTooDeeply(ProtocolError):
    code = "NESTED_TOO_DEEPLY"


class MessageTooLarge(ProtocolError):
    code = "MESSAGE_TOO_LARGE"


class UnsupportedProtocol(ProtocolError):
    code = "UNSUPPORTED_PROTOCOL"


class BrokerUnavailable(HubError):
    """`was_sent` says whether the broker may have got the request, and may yet do what it asks."""

    code = "BROKER_UNAVAILABLE"
    retryable = True
    was_sent: bool = True


class RequestTimeout(HubError, TimeoutError):
    code = "REQUEST_TIMEOUT"
    retryable = True


class BrokerTimeout(RequestTimeout, BrokerUnavailable):
    """The broker did not answer a request in time: it may be gone, or only slow."""


class BrokerRequired(HubError):
    code = "BROKER_REQUIRED"
    retryable = True


class BrokerAlreadyRunning(HubError):
    code = "BROKER_ALREADY_RUNNING"


class SendTimeout(HubError, TimeoutError):
    code = "SEND_TIMEOUT"
    retryable = True


class ReceiveTimeout(HubError, TimeoutError):
    code = "RECEIVE_TIMEOUT"
    retryable = True


class SubscriptionClosed(HubError):
    code = "SUBSCRIPTION_CLOSED"


class SubscriberTooSlow(HubError):
    code = "SUBSCRIBER_TOO_SLOW"


class RouteError(HubError):
    code = "ROUTE_ERROR"
    retryable = True


class MailboxFull(HubError):
    code = "MAILBOX_FULL"
    retryable = True


class MailboxClosed(HubError):
    code = "MAILBOX_CLOSED"
    retryable = True


class NoResponse(HubError):
    code = "NO_RESPONSE"


class HandlerFailed(HubError):
    code = "HANDLER_FAILED"


class RequestCancelled(HubError):
    code = "REQUEST_CANCELLED"


class NotInitialised(HubError):
    code = "NOT_INITIALISED"


class DataLost(HubError):
    code = "DATA_LOST"


class GatewayUnavailable(HubError):
    code = "GATEWAY_UNAVAILABLE"
    retryable = True


class HomeHostUnavailable(HubError):
    code = "HOME_HOST_UNAVAILABLE"
    retryable = True


class StoreError(HubError):
    """`written` is the revision up to which a write got before it failed, for a store that needs several steps.

    A store that has not answered may yet carry out what it was asked for.
    """

    code = "STORE_ERROR"
    written: int = 0
    has_answered: bool = True


class StoreReadOnly(StoreError):
    code = "STORE_READ_ONLY"
    retryable = True


class Unauthorized(HubError):
    code = "UNAUTHORIZED"


class RateLimited(HubError):
    code = "RATE_LIMITED"
    retryable = True


class TooManyRegistrations(HubError):
    code = "TOO_MANY_REGISTRATIONS"


class TooManySubscriptions(HubError):
    code = "TOO_MANY_SUBSCRIPTIONS"


class ConfigurationError(HubError):
    code = "CONFIGURATION_ERROR"


class InternalError(HubError):
    code = "INTERNAL_ERROR"


# What a broker says, or what is said of it, when it cannot do now what it is there for.
_UNABLE = (
    BrokerUnavailable,
    HomeHostUnavailable,
    StoreReadOnly,
    RateLimited,
    InternalError,
    UnsupportedProtocol,
    UnknownType,
)


def is_not_found(code: str) -> bool:
    """Whether an ERROR says that nothing is there: the answer to a question, which is not counted as a refusal."""
    return code.endswith("_NOT_FOUND")


def is_unable(error: HubError) -> bool:
    """Whether the broker could not help, in contrast to a refusal: whoever can goes on as if there were none.

    A newer broker may have codes of its own; those that it calls retryable are no refusals.
    """
    return isinstance(error, _UNABLE) or (type(error) is HubError and error.retryable)


def _subclasses(base: type[HubError]) -> list[type[HubError]]:
    return [found for child in base.__subclasses__() for found in (child, *_subclasses(child))]


BY_CODE = {kind.code: kind for kind in _subclasses(HubError) if "code" in vars(kind)} | {
    InvalidRequest.code: InvalidRequest
}


def from_wire(code: str, message: str, details: dict[str, Any], *, retryable: bool) -> HubError:
    """The exception for an ERROR reply. A code from a newer broker becomes a plain HubError that keeps it."""
    error = BY_CODE.get(code, HubError)(message)
    error.details = details
    if type(error) is HubError:
        error.code, error.retryable = code, retryable  # type: ignore[misc]  # of this instance only
    return error


def __getattr__(name: str) -> Any:
    """Give users the errors of shared memory too, which are defined in a layer above and loaded when asked for."""
    found = getattr(import_module("messagehub.shm.errors"), name, None)
    if not (isinstance(found, type) and issubclass(found, HubError)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
