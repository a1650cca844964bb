"""The messages of etcd's gRPC interface that we use, with their field numbers.

They are built here instead of by protoc: its output works only with the versions of protobuf that are near its own.
Fields that we never read or write are left out, which the encoding allows.
"""

from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "messagehub.etcd"
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"int64": _FIELD.TYPE_INT64, "bool": _FIELD.TYPE_BOOL, "bytes": _FIELD.TYPE_BYTES}
_SCALARS |= {"string": _FIELD.TYPE_STRING, "int32": _FIELD.TYPE_INT32}

_MESSAGES = """
ResponseHeader: cluster_id int64 1, member_id int64 2, revision int64 3
KeyValue: key bytes 1, create_revision int64 2, mod_revision int64 3, value bytes 5, lease int64 6
RangeRequest: key bytes 1, range_end bytes 2, limit int64 3, revision int64 4, keys_only bool 8, \
min_mod_revision int64 10
RangeResponse: header ResponseHeader 1, kvs KeyValue* 2, more bool 3, count int64 4
PutRequest: key bytes 1, value bytes 2, lease int64 3
DeleteRangeRequest: key bytes 1, range_end bytes 2
Compare: result int32 1, target int32 2, key bytes 3, create_revision int64 5, mod_revision int64 6
RequestOp: request_range RangeRequest 1, request_put PutRequest 2, request_delete_range DeleteRangeRequest 3
ResponseOp: response_range RangeResponse 1
TxnRequest: compare Compare* 1, success RequestOp* 2, failure RequestOp* 3
TxnResponse: header ResponseHeader 1, succeeded bool 2, responses ResponseOp* 3
LeaseGrantRequest: TTL int64 1
LeaseGrantResponse: header ResponseHeader 1, ID int64 2, TTL int64 3
LeaseRevokeRequest: ID int64 1
LeaseRevokeResponse: header ResponseHeader 1
LeaseKeepAliveRequest: ID int64 1
LeaseKeepAliveResponse: header ResponseHeader 1, ID int64 2, TTL int64 3
WatchCreateRequest: key bytes 1, range_end bytes 2, start_revision int64 3
WatchRequest: create_request WatchCreateRequest 1
WatchedEvent: type int32 1, kv KeyValue 2
WatchResponse: header ResponseHeader 1, canceled bool 4, compact_revision int64 5, events WatchedEvent* 11
AuthenticateRequest: name string 1, password string 2
AuthenticateResponse: header ResponseHeader 1, token string 2
"""


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="messagehub/etcd.proto", package=_PACKAGE, syntax="proto3")
    for line in _MESSAGES.strip().splitlines():
        name, _, fields = line.partition(": ")
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            field_name, kind, number = text.split()
            label = _FIELD.LABEL_REPEATED if kind.endswith("*") else _FIELD.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=int(number), label=label)
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{kind.rstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    described = pool.Add(file) or pool.FindFileByName(file.name)
    return {name: message_factory.GetMessageClass(found) for name, found in described.message_types_by_name.items()}


_CLASSES = _build()
EQUAL, CREATE_REVISION, MOD_REVISION = 0, 1, 2
"""Values of `Compare.result` and `Compare.target`."""


class EtcdMethod(NamedTuple):
    """A method of the interface, and the classes of its messages."""

    path: str
    request: Any
    response: Any


def _method(path: str, name: str) -> EtcdMethod:
    return EtcdMethod(f"/etcdserverpb.{path}", _CLASSES[f"{name}Request"], _CLASSES[f"{name}Response"])


RANGE = _method("KV/Range", "Range")
TXN = _method("KV/Txn", "Txn")
LEASE_GRANT = _method("Lease/LeaseGrant", "LeaseGrant")
LEASE_REVOKE = _method("Lease/LeaseRevoke", "LeaseRevoke")
LEASE_KEEP_ALIVE = _method("Lease/LeaseKeepAlive", "LeaseKeepAlive")
WATCH = _method("Watch/Watch", "Watch")
AUTHENTICATE = _method("Auth/Authenticate", "Authenticate")
RangeRequest, TxnRequest = RANGE.request, TXN.request


def watch(key: bytes, *, after: int) -> Any:
    """Watch one key from the first change after a revision of etcd."""
    created = _CLASSES["WatchCreateRequest"](key=key, start_revision=after + 1)
    return WATCH.request(create_request=created)


def created_at(key: bytes, revision: int) -> Any:
    """Compare the etcd revision at which a key was created; 0: it is not there."""
    return _CLASSES["Compare"](result=EQUAL, target=CREATE_REVISION, key=key, create_revision=revision)


def changed_at(key: bytes, revision: int) -> Any:
    """Compare the etcd revision at which a key was changed last; 0: it is not there."""
    return _CLASSES["Compare"](result=EQUAL, target=MOD_REVISION, key=key, mod_revision=revision)


def put(key: bytes, value: bytes, *, lease: int = 0) -> Any:
    return _CLASSES["RequestOp"](request_put=_CLASSES["PutRequest"](key=key, value=value, lease=lease))


def delete(key: bytes) -> Any:
    return _CLASSES["RequestOp"](request_delete_range=_CLASSES["DeleteRangeRequest"](key=key))


def delete_beneath(prefix: bytes) -> Any:
    request = _CLASSES["DeleteRangeRequest"](key=prefix, range_end=end_of(prefix))
    return _CLASSES["RequestOp"](request_delete_range=request)


def get(key: bytes) -> Any:
    return _CLASSES["RequestOp"](request_range=RangeRequest(key=key))


def get_beneath(prefix: bytes, *, limit: int, changed_after: int = 0) -> Any:
    """Read keys that were changed after a revision of etcd; the `count` of the response is that of all of them."""
    request = RangeRequest(key=prefix, range_end=end_of(prefix), limit=limit, min_mod_revision=changed_after + 1)
    return _CLASSES["RequestOp"](request_range=request)


def end_of(prefix: bytes) -> bytes:
    """Return the first key that is greater than all keys with this prefix, which ends in no 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
