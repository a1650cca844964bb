"""One table from error class to HTTP status and to the registry API's `error_code`; no other place knows either."""

from typing import Any

import msgspec
from starlette.responses import Response

from messagehub import errors
from messagehub.errors import HubError

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"

STATUS: dict[type[HubError], tuple[int, int]] = {
    errors.SubjectNotFound: (404, 40401),
    errors.VersionNotFound: (404, 40402),
    errors.SchemaNotFound: (404, 40403),
    errors.SubjectSoftDeleted: (404, 40404),
    errors.SubjectNotSoftDeleted: (404, 40405),
    errors.VersionSoftDeleted: (404, 40406),
    errors.VersionNotSoftDeleted: (404, 40407),
    errors.CompatibilityNotSet: (404, 40408),
    errors.ModeNotSet: (404, 40409),
    errors.ChannelNotFound: (404, 404),
    errors.NotRegistered: (404, 404),
    errors.TopicNotFound: (404, 404),
    errors.PositionNotFound: (404, 404),
    errors.TopicAlreadyExists: (409, 409),
    errors.TopicLimitExceeded: (409, 409),
    errors.SchemaIncompatible: (409, 409),
    errors.SchemaMismatch: (409, 409),
    errors.ChannelAlreadyExists: (409, 409),
    errors.ChannelNotReady: (409, 409),
    errors.ChannelClosed: (409, 409),
    errors.ChannelHasTable: (409, 409),
    errors.TableNotFound: (404, 404),
    errors.TableOnOtherHost: (409, 409),
    errors.DataLost: (409, 409),
    errors.ProducerAlreadyRegistered: (409, 409),
    errors.ConsumerAlreadyRegistered: (409, 409),
    errors.PolicyMismatch: (409, 409),
    errors.Evicted: (409, 409),
    errors.NotOwner: (403, 403),
    errors.Forbidden: (403, 40301),
    errors.Unauthorized: (401, 40101),
    errors.SchemaInUse: (409, 409),
    errors.InvalidSchema: (422, 42201),
    errors.SchemaHashMismatch: (422, 42201),
    errors.OperationNotPermitted: (422, 42205),
    errors.IdMismatch: (422, 42207),
    errors.ReferenceExists: (422, 42206),
    errors.InvalidName: (422, 42208),
    errors.SchemaTooLarge: (422, 42209),
    errors.InvalidRuleSet: (422, 42210),
    errors.SchemaTooComplex: (422, 42209),
    errors.NestedTooDeeply: (422, 42209),
    errors.MessageTooLarge: (422, 42209),
    errors.InvalidRequest: (422, 422),
    errors.MalformedRequest: (422, 422),
    errors.UnknownType: (422, 422),
    errors.UnsupportedProtocol: (500, 500),
    errors.RateLimited: (429, 429),
    errors.TooManyRegistrations: (429, 429),
    errors.TooManySubscriptions: (429, 429),
    errors.StoreReadOnly: (503, 50001),
    errors.StoreError: (500, 50001),
    errors.RequestTimeout: (500, 50002),
    errors.BrokerTimeout: (500, 50002),
    errors.BrokerUnavailable: (503, 503),
    errors.GatewayUnavailable: (503, 503),
    errors.HomeHostUnavailable: (503, 503),
    errors.BrokerRequired: (503, 503),
    errors.SendTimeout: (503, 503),
    errors.ReceiveTimeout: (504, 504),
    errors.SubscriptionClosed: (409, 409),
    errors.IdNotFound: (404, 404),
    errors.NameNotFound: (404, 404),
    errors.ServiceNotFound: (404, 404),
    errors.PoolNotFound: (404, 404),
    errors.PoolEmpty: (503, 503),
    errors.PoolNotEmpty: (409, 409),
    errors.DuplicateRegistration: (409, 409),
    errors.RegistryError: (503, 503),
    errors.RouteError: (503, 503),
    errors.MailboxFull: (503, 503),
    errors.MailboxClosed: (503, 503),
    errors.NoResponse: (500, 500),
    errors.RequestCancelled: (503, 503),
    errors.HandlerFailed: (500, 500),
    errors.NotInitialised: (500, 500),
    errors.SubscriberTooSlow: (409, 409),
    errors.BrokerAlreadyRunning: (500, 500),
    errors.ConfigurationError: (500, 500),
    errors.InternalError: (500, 500),
}


SAID: dict[type[HubError], str] = {
    errors.SubjectNotFound: "Subject '{subject}' not found.",
    errors.VersionNotFound: "Version {version} not found.",
    errors.SubjectSoftDeleted: "Subject '{subject}' was soft deleted. Set permanent=true to delete permanently",
    errors.SubjectNotSoftDeleted: "Subject '{subject}' was not deleted first before being permanently deleted",
    errors.VersionSoftDeleted: "Subject '{subject}' Version {version} was soft deleted."
    " Set permanent=true to delete permanently",
    errors.VersionNotSoftDeleted: "Subject '{subject}' Version {version} was not deleted first before being"
    " permanently deleted",
    errors.CompatibilityNotSet: "Subject '{subject}' does not have subject-level compatibility configured",
    errors.ModeNotSet: "Subject '{subject}' does not have subject-level mode configured",
}
"""Words that clients of the registry API look for; all other messages are the hub's own."""
_RETRY_SOON = {"Retry-After": "1"}


class HttpError(Exception):
    """A refusal of HTTP's own: path, method, media type, token, parameter."""

    def __init__(self, status: int, error_code: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code
        self.message = message
        self.headers = headers


def answer(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    if status == 429:  # buckets fill within a second
        headers = _RETRY_SOON | (headers or {})
    return Response(msgspec.json.encode(value), status, headers, MEDIA_TYPE)


def error_answer(status: int, error_code: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return answer(status, error_body(error_code, message), headers)


def hub_error_answer(error: HubError) -> Response:
    status, body = hub_error_body(error)
    return answer(status, body, _RETRY_SOON if status == 503 and error.retryable else None)


def refusal(error: HttpError | HubError) -> Response:
    if isinstance(error, HttpError):
        return error_answer(error.status, error.error_code, error.message, error.headers)
    return hub_error_answer(error)


def error_body(error_code: int, message: str) -> dict[str, Any]:
    return {"error_code": error_code, "message": message}


def hub_error_body(error: HubError) -> tuple[int, dict[str, Any]]:
    """Return the status and the body: the fields that the API's clients know, and our own code and details."""
    status, error_code = STATUS.get(type(error), (500, 500))
    return status, error_body(error_code, _said(error)) | {"code": error.code, "details": error.details}


def _said(error: HubError) -> str:
    if type(error) is errors.SchemaNotFound:
        return "Schema not found: " + error.message
    try:
        return SAID[type(error)].format_map(error.details)
    except KeyError:
        return error.message
