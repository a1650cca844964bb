"""What the logs of a hub's processes have in common: their form, and a bound to what others can cause.

Rule 1: every record begins with its time.
Rule 2: a text that a peer chose stays on its line, and reaches no terminal as control characters.
Rule 3: no schema text is written to a log, so neither are the refusals that quote it.
Rule 4: what a peer can cause again and again is written so many times a second at most; the rest is counted and said.
"""

import json
import logging
import time
from time import monotonic

from messagehub.errors import ConfigurationError
from messagehub.setting_checks import LOG_LEVELS

_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
PER_SECOND = 50
MAX_CHARACTERS = 500
_QUOTING_SCHEMAS = frozenset(("INVALID_SCHEMA", "SCHEMA_INCOMPATIBLE", "INVALID_RULE_SET", "SCHEMA_MISMATCH"))


class JsonLines(logging.Formatter):
    """One JSON object a record, with the time in UTC: what log collectors take without a rule of their own."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False)


def set_up(level: str, log_format: str) -> None:
    """Have the logs of a hub's process written to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else logging.Formatter(_LINE))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.captureWarnings(log_format == "json")  # else a warning of Python would be lines of another form


def set_client_level(level: str | None) -> None:
    """Log nothing below this level in a program that uses the package. None leaves that to the program."""
    if not level:
        return
    if level.upper() not in LOG_LEVELS:
        raise ConfigurationError(f"MESSAGEHUB_LOG {level!r} is not one of {', '.join(LOG_LEVELS)}")
    logging.getLogger("messagehub").setLevel(level.upper())


def one_line(text: str) -> str:
    """The text with escapes in the place of what cannot be printed, and cut where it is endless."""
    cut = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def reason(code: str, message: str) -> str:
    """What a refusal said, as far as a log may have it."""
    return "its sender was told where" if code in _QUOTING_SCHEMAS else message


class LimitedLog:
    """A log at INFO of one kind of record, which peers cause."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        """`what` names the kind of record, in the plural."""
        self._log = log
        self._what = what
        self._until = 0.0
        self._written = self._left_out = 0

    def info(self, message: str, *values: object) -> None:
        """As `Logger.info`; texts among the values are made to fit on the line."""
        if not self._log.isEnabledFor(logging.INFO):
            return
        now = monotonic()
        if now >= self._until:
            left_out, self._left_out, self._written, self._until = self._left_out, 0, 0, now + 1.0
            if left_out:
                self._log.info("%d more %s were left out of this log", left_out, self._what)
        if self._written >= PER_SECOND:
            self._left_out += 1
            return
        self._written += 1
        self._log.info(message, *(one_line(value) if isinstance(value, str) else value for value in values))
