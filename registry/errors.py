"""Refusals: one class per condition, each with the stable code that travels on the wire.

HubError
└── Refusal                          the registry said no; nothing changed
    ├── InvalidRequest               INVALID_REQUEST
    ├── InvalidName                  INVALID_NAME
    ├── Forbidden                    FORBIDDEN
    ├── ChannelNotFound              CHANNEL_NOT_FOUND
    ├── ChannelNotReady              CHANNEL_NOT_READY
    ├── ChannelClosed                CHANNEL_CLOSED
    ├── ChannelAlreadyExists         CHANNEL_ALREADY_EXISTS
    ├── ChannelHasTable              CHANNEL_HAS_TABLE
    ├── TableNotFound                TABLE_NOT_FOUND
    ├── TableOnOtherHost             TABLE_ON_OTHER_HOST
    ├── NotOwner                     NOT_OWNER
    ├── NotRegistered                NOT_REGISTERED
    ├── ProducerAlreadyRegistered    PRODUCER_ALREADY_REGISTERED
    ├── ConsumerAlreadyRegistered    CONSUMER_ALREADY_REGISTERED
    ├── PolicyMismatch               POLICY_MISMATCH
    ├── SchemaMismatch               SCHEMA_MISMATCH
    ├── SchemaHashMismatch           SCHEMA_HASH_MISMATCH
    ├── IdMismatch                   ID_MISMATCH
    ├── SchemaIncompatible           SCHEMA_INCOMPATIBLE
    ├── SchemaNotFound               SCHEMA_NOT_FOUND
    │   ├── SubjectNotFound          SUBJECT_NOT_FOUND
    │   └── VersionNotFound          VERSION_NOT_FOUND
    ├── SubjectSoftDeleted           SUBJECT_SOFT_DELETED
    ├── SubjectNotSoftDeleted        SUBJECT_NOT_SOFT_DELETED
    ├── VersionSoftDeleted           VERSION_SOFT_DELETED
    ├── VersionNotSoftDeleted        VERSION_NOT_SOFT_DELETED
    ├── CompatibilityNotSet          COMPATIBILITY_NOT_SET
    ├── ModeNotSet                   MODE_NOT_SET
    ├── OperationNotPermitted        OPERATION_NOT_PERMITTED
    ├── ReferenceExists              REFERENCE_EXISTS
    ├── SchemaInUse                  SCHEMA_IN_USE
    ├── TopicNotFound                TOPIC_NOT_FOUND
    ├── TopicAlreadyExists           TOPIC_ALREADY_EXISTS
    ├── TopicLimitExceeded           TOPIC_LIMIT_EXCEEDED
    ├── PositionNotFound             POSITION_NOT_FOUND
    ├── SchemaTooLarge               SCHEMA_TOO_LARGE
    ├── SchemaTooComplex             SCHEMA_TOO_COMPLEX
    ├── AddressNotFound              never raised itself
    │   ├── IdNotFound               ID_NOT_FOUND
    │   ├── NameNotFound             NAME_NOT_FOUND
    │   ├── ServiceNotFound          SERVICE_NOT_FOUND
    │   └── PoolNotFound             POOL_NOT_FOUND
    ├── PoolEmpty                    POOL_EMPTY
    ├── PoolNotEmpty                 POOL_NOT_EMPTY
    ├── DuplicateRegistration        DUPLICATE_REGISTRATION
    ├── RegistryError                REGISTRY_ERROR
    ├── InvalidRuleSet               INVALID_RULE_SET
    └── InvalidSchema                INVALID_SCHEMA
"""

from typing import Any, ClassVar


class HubError(Exception):
    """Anything MessageHub refuses or fails at.

    `retryable` says whether the same request can succeed later without anybody changing it.
    """

    code: ClassVar[str] = "INTERNAL_ERROR"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        """What is wrong, in a sentence."""
        self.details = details
        """The names and values that the sentence is about."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error with everything set on it, also a code that only a newer broker knows."""
        return type(self), (self.message,), self.__dict__


class Refusal(HubError):
    """A rule of the registry was broken; the state is as it was before."""


class InvalidRequest(Refusal):
    code = "INVALID_REQUEST"


class InvalidName(Refusal):
    code = "INVALID_NAME"


class Forbidden(Refusal):
    """The peer is known, but has no right to this."""

    code = "FORBIDDEN"


class ChannelNotFound(Refusal):
    code = "CHANNEL_NOT_FOUND"
    retryable = True


class ChannelNotReady(Refusal):
    code = "CHANNEL_NOT_READY"
    retryable = True


class ChannelClosed(Refusal):
    code = "CHANNEL_CLOSED"


class Evicted(Refusal):
    """An operator has ended the registration of this producer or consumer. For a term of a lease the same process is
    refused under the same name."""

    code = "EVICTED"


class ChannelAlreadyExists(Refusal):
    code = "CHANNEL_ALREADY_EXISTS"


class ChannelHasTable(Refusal):
    """A channel is not destroyed while it has a table, unless that is asked for too."""

    code = "CHANNEL_HAS_TABLE"


class TableNotFound(Refusal):
    code = "TABLE_NOT_FOUND"
    retryable = True


class TableOnOtherHost(Refusal):
    """Only a process on the table's own host can remove it from memory."""

    code = "TABLE_ON_OTHER_HOST"


class NotOwner(Refusal):
    code = "NOT_OWNER"


class NotRegistered(Refusal):
    code = "NOT_REGISTERED"


class ProducerAlreadyRegistered(Refusal):
    code = "PRODUCER_ALREADY_REGISTERED"
    retryable = True


class ConsumerAlreadyRegistered(Refusal):
    code = "CONSUMER_ALREADY_REGISTERED"
    retryable = True


class PolicyMismatch(Refusal):
    code = "POLICY_MISMATCH"


class SchemaMismatch(Refusal):
    code = "SCHEMA_MISMATCH"


class SchemaHashMismatch(Refusal):
    code = "SCHEMA_HASH_MISMATCH"


class IdMismatch(Refusal):
    code = "ID_MISMATCH"


class SchemaIncompatible(Refusal):
    code = "SCHEMA_INCOMPATIBLE"


class SchemaNotFound(Refusal):
    code = "SCHEMA_NOT_FOUND"
    retryable = True


class SubjectNotFound(SchemaNotFound):
    code = "SUBJECT_NOT_FOUND"


class VersionNotFound(SchemaNotFound):
    code = "VERSION_NOT_FOUND"


class SubjectSoftDeleted(Refusal):
    code = "SUBJECT_SOFT_DELETED"


class SubjectNotSoftDeleted(Refusal):
    code = "SUBJECT_NOT_SOFT_DELETED"


class VersionSoftDeleted(Refusal):
    code = "VERSION_SOFT_DELETED"


class VersionNotSoftDeleted(Refusal):
    code = "VERSION_NOT_SOFT_DELETED"


class CompatibilityNotSet(Refusal):
    code = "COMPATIBILITY_NOT_SET"


class ModeNotSet(Refusal):
    code = "MODE_NOT_SET"


class OperationNotPermitted(Refusal):
    code = "OPERATION_NOT_PERMITTED"


class ReferenceExists(Refusal):
    code = "REFERENCE_EXISTS"


class SchemaInUse(Refusal):
    code = "SCHEMA_IN_USE"


class TopicNotFound(Refusal):
    code = "TOPIC_NOT_FOUND"
    retryable = True


class TopicAlreadyExists(Refusal):
    code = "TOPIC_ALREADY_EXISTS"


class PositionNotFound(Refusal):
    code = "POSITION_NOT_FOUND"


class TopicLimitExceeded(Refusal):
    code = "TOPIC_LIMIT_EXCEEDED"


class SchemaTooLarge(Refusal):
    code = "SCHEMA_TOO_LARGE"


class SchemaTooComplex(Refusal):
    code = "SCHEMA_TOO_COMPLEX"


class InvalidRuleSet(Refusal):
    code = "INVALID_RULE_SET"


class InvalidSchema(Refusal):
    code = "INVALID_SCHEMA"


class AddressNotFound(Refusal):
    """Nobody serves the address. Each kind of address has an error of its own below this one."""

    retryable = True


class IdNotFound(AddressNotFound):
    code = "ID_NOT_FOUND"


class NameNotFound(AddressNotFound):
    code = "NAME_NOT_FOUND"


class ServiceNotFound(AddressNotFound):
    code = "SERVICE_NOT_FOUND"


class PoolNotFound(AddressNotFound):
    code = "POOL_NOT_FOUND"


class PoolEmpty(Refusal):
    code = "POOL_EMPTY"
    retryable = True


class PoolNotEmpty(Refusal):
    code = "POOL_NOT_EMPTY"
    retryable = True


class DuplicateRegistration(Refusal):
    code = "DUPLICATE_REGISTRATION"
    retryable = True


class RegistryError(Refusal):
    """The registry of services cannot take any more."""

    code = "REGISTRY_ERROR"
    retryable = True
