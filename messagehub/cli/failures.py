"""From an error to an exit code, a sentence and what to do next: the one place where that is decided."""

import errno
from typing import Any

from typer import BadParameter, Exit
from typer.core import TyperCommand

from messagehub.cli.output import complain, drop_unwritten, echo_json
from messagehub.display.values import shown
from messagehub.errors import BrokerUnavailable, HubError

REFUSED, NO_BROKER = 1, 3

_START = "start one with `messagehub serve`, or say where it is with --dir or --endpoint; `messagehub doctor` explains"
_SEE_CHANNELS = "`messagehub channels` lists those that exist"
_SEE_SCHEMAS = "`messagehub schemas` lists what is registered"
_SEE_SERVICES = "`messagehub services` lists who serves what; --retries 100 waits for a worker until --timeout"
_NEXT_STEPS = {
    "ID_NOT_FOUND": _SEE_SERVICES,
    "NAME_NOT_FOUND": _SEE_SERVICES,
    "SERVICE_NOT_FOUND": _SEE_SERVICES,
    "POOL_NOT_FOUND": _SEE_SERVICES,
    "POOL_EMPTY": _SEE_SERVICES,
    "NO_RESPONSE": "the request may have been handled: ask again if it may be done twice",
    "BROKER_UNAVAILABLE": _START,
    "REQUEST_TIMEOUT": "it may be busy or stopped: give it a longer --timeout, or ask `messagehub doctor`",
    "CHANNEL_NOT_FOUND": f"{_SEE_CHANNELS}; `messagehub discover NAME --wait` waits for one",
    "CHANNEL_NOT_READY": "start its producer, or wait longer with --timeout",
    "CHANNEL_CLOSED": "somebody destroyed it: run this again if that is wanted",
    "CHANNEL_ALREADY_EXISTS": "`messagehub channels describe NAME` shows how it is declared",
    "PRODUCER_ALREADY_REGISTERED": "end that producer, or have all of them register with --access shared",
    "SCHEMA_MISMATCH": "`messagehub channels describe NAME` shows the schema that the channel has",
    "SCHEMA_HASH_MISMATCH": "leave --schema-hash out: the hub computes it from --schema",
    "SCHEMA_NOT_FOUND": _SEE_SCHEMAS,
    "SUBJECT_NOT_FOUND": _SEE_SCHEMAS,
    "VERSION_NOT_FOUND": "`messagehub schemas SUBJECT` lists its versions",
    "SCHEMA_INCOMPATIBLE": "change the schema so that it goes with `messagehub schemas get SUBJECT`,"
    " or use another subject",
    "SCHEMA_IN_USE": "end the channel's producers first, or delete it anyway with --force",
    "SUBJECT_NOT_SOFT_DELETED": "run it without --permanent first",
    "VERSION_NOT_SOFT_DELETED": "run it without --permanent first",
    "POLICY_MISMATCH": "`messagehub channels describe NAME` shows what its producers agreed on",
    "UNAUTHORIZED": "have your key listed (`messagehub keys allow` at the hub), name it with MESSAGEHUB_KEY",
    "FORBIDDEN": "ask whoever runs the hub for that right: `messagehub keys allow` or `messagehub tokens new`;"
    " members of its group get theirs from group_roles in its messagehub.toml",
    "STORE_READ_ONLY": "free disk space where the hub's directory lies; it goes on by itself",
    "UNSUPPORTED_PROTOCOL": "run the same version of messagehub on both sides",
}


_OF_SITE = {
    "STORE_READ_ONLY": "the registry of site {site} is in etcd: see `messagehub hosts` and `messagehub doctor`, and"
    " whether etcd can be reached; it goes on by itself",
}
"""Where the details name a site: its registry is not in the hub's directory."""
_OF_COMMAND = {
    ("stop", "BROKER_UNAVAILABLE"): "there is nothing to stop; another hub's directory is named with --dir",
}
"""Where the step of the table would be wrong."""


class HubCommand(TyperCommand):
    """A command whose errors end as messages and exit codes, never as tracebacks."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HubError as error:
            report(error, as_json=bool(ctx.params.get("as_json")), command=ctx.info_name)
            raise Exit(NO_BROKER if isinstance(error, BrokerUnavailable) else REFUSED) from error
        except UnicodeEncodeError as error:  # what a shell passed on may be any bytes; a name may not
            raise BadParameter(f"{shown(error.object)} is not UTF-8.") from error
        except BrokenPipeError as error:  # whoever reads has seen enough
            drop_unwritten()
            raise Exit(0) from error
        except OSError as error:
            drop_unwritten()
            if isinstance(error, PermissionError) and error.filename is not None:
                complain(f"messagehub: permission denied for {shown(error.filename)}: only its owner may do this")
                raise Exit(REFUSED) from error
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            complain(f"messagehub: {'the disk is full: ' if is_full else ''}{shown(error)}")
            raise Exit(REFUSED) from error


def report(error: HubError, *, as_json: bool, command: str | None = None) -> None:
    if as_json:
        said = {"code": error.code, "message": error.message, "details": error.details, "retryable": error.retryable}
        echo_json({"error": said})
    complain("messagehub: " + "\n  ".join(map(shown, error.message.splitlines())))
    if (step := _next_step(error, command)) is not None:
        complain(f"  {step}")


def _next_step(error: HubError, command: str | None) -> str | None:
    if "site" in error.details and error.code in _OF_SITE:
        return _OF_SITE[error.code].format(site=shown(error.details["site"]))
    return _OF_COMMAND.get((command or "", error.code)) or _NEXT_STEPS.get(error.code)
