"""Parts in the memory of this host that manifests of other hosts name, or are going to name.

A task of Spark writes where it runs, and its job commits on the host of its driver. So the manifest is there, and here
is one small file for each such host, which says what parts of this host its manifests name.

Rule 1: a part that such a file names is in use, as if a manifest of this host named it.
Rule 2: only the hub of this host changes these files, by what the host of the manifests has told it. What a host tells
is taken from its directory at one moment, so a transaction that it calls committed is one whose parts it names.
Rule 3: while that host cannot be asked, everything stays.
"""

import hashlib
import json
import os
from collections.abc import Collection
from typing import Final

import msgspec

from messagehub.shm.errors import EntryDamaged, NothingThere
from messagehub.shm.identity import ProcessIdentity, host
from messagehub.shm.locks import Descriptor
from messagehub.shm.mapped_file import open_trusted, read_file, remove_file, replace_file
from registry.decoding import decodable

_SUFFIX: Final = ".parts"
_TRANSACTION: Final = ".txn"


@decodable
class NamedParts(msgspec.Struct, kw_only=True, frozen=True):
    """What the manifests of a host name here."""

    host: str
    parts: list[str]
    confirmed_at: float
    """When that host last said so."""


class OpenTransaction(msgspec.Struct, frozen=True):
    """What the file of a transaction says: whose it is, and since when it counts as begun."""

    keeper: ProcessIdentity
    begun_at: float


def transaction_bytes(keeper: ProcessIdentity, begun_at: float) -> bytes:
    return json.dumps({"keeper": keeper.to_json(), "begun_at": begun_at}).encode()


def read_transaction(path: str) -> OpenTransaction | None:
    """Return None where it has ended. EntryDamaged: no writer made this file."""
    try:
        descriptor = open_trusted(path, os.O_RDONLY)
    except NothingThere:
        return None
    try:
        value = json.loads(os.read(descriptor.fd, 65536))
        return OpenTransaction(ProcessIdentity.from_json(value["keeper"]), float(value["begun_at"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise EntryDamaged(path, repr(error)) from None
    finally:
        descriptor.close()


def open_transactions(directory: str) -> list[str]:
    return [name.removesuffix(_TRANSACTION) for name in os.listdir(directory) if name.endswith(_TRANSACTION)]


def transactions_of_others(directory: str) -> dict[str, list[str]]:
    """Return the transactions that are open here and whose jobs run on other hosts, by host."""
    found: dict[str, list[str]] = {}
    for transaction in open_transactions(directory):
        said = read_transaction(_transaction_path(directory, transaction))
        if said is not None and said.keeper.host != host():
            found.setdefault(said.keeper.host, []).append(transaction)
    return found


def named_by_others(directory: str, names: Collection[str]) -> list[NamedParts]:
    """Return what other hosts name, of the files of a directory."""
    return [found for name in names if name.endswith(_SUFFIX) and (found := _read(os.path.join(directory, name)))]


def has_any(directory: str) -> bool:
    """Return whether anything here may be of another host. It is cheap, and says True of own transactions too."""
    try:
        return any(name.endswith((_SUFFIX, _TRANSACTION)) for name in os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return False


def set_named(directory: str, of_host: str, parts: Collection[str], *, now: float) -> None:
    """Note what a host names here. The caller holds the lock of the tables."""
    path = _path(directory, of_host)
    if parts:
        said = NamedParts(host=of_host, parts=sorted(parts), confirmed_at=now)
        replace_file(path, msgspec.json.encode(said))
    else:
        remove_file(path)


def renew(directory: str, transaction: str, *, now: float) -> None:
    """Have a transaction count as begun now. The caller holds the lock of the tables."""
    path = _transaction_path(directory, transaction)
    said = read_transaction(path)
    if said is not None:
        replace_file(path, transaction_bytes(said.keeper, now))


def end(directory: str, transaction: str) -> None:
    """The caller holds the lock of the tables, and removes what nobody names then."""
    remove_file(_transaction_path(directory, transaction))


def _read(path: str) -> NamedParts | None:
    try:
        descriptor: Descriptor = open_trusted(path, os.O_RDONLY)
    except NothingThere:
        return None
    try:
        return msgspec.json.decode(read_file(descriptor, path), type=NamedParts)
    except msgspec.DecodeError as error:
        raise EntryDamaged(path, str(error)) from None
    finally:
        descriptor.close()


def _path(directory: str, of_host: str) -> str:
    """A host may be called anything, and a file may not."""
    return os.path.join(directory, hashlib.sha256(of_host.encode()).hexdigest()[:16] + _SUFFIX)


def _transaction_path(directory: str, transaction: str) -> str:
    return os.path.join(directory, transaction + _TRANSACTION)
