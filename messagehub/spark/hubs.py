"""The hub that a process of Spark talks through."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from messagehub.errors import BrokerRequired, HubError, is_unable
from messagehub.spark.options import Options

if TYPE_CHECKING:
    from messagehub.hub import MessageHub


T = TypeVar("T")
AGAIN_SECONDS = 0.2
PLANNING_SECONDS, RUNNING_SECONDS = 5.0, 30.0
"""How long a broker may be away: while a query begins, when there may be none at all, and later."""


@contextlib.contextmanager
def hub_of(options: Options, *, is_users_process: bool = False) -> Iterator["MessageHub"]:
    """The process's singleton. Where that one is of another hub, or the user has not made it: one for this call."""
    from messagehub.hub import MessageHub

    settings = options.settings()
    named = {name: value for name in ("dir", "endpoint", "domain") if (value := getattr(options, name)) is not None}
    try:
        hub = None if is_users_process and named else MessageHub.get_instance(**named)
    except HubError:
        hub = None  # it was made with other settings
    if hub is not None and hub.settings == settings:
        yield hub
    else:
        with MessageHub(settings) as own:
            yield own


def patiently(call: Callable[[], T], seconds: float) -> T:
    """Return what `call` returns. While no broker can help, call again: it may just be restarting."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except HubError as error:
            is_away = is_unable(error) or isinstance(error, BrokerRequired)
            if not is_away or time.monotonic() > deadline:
                raise
        time.sleep(AGAIN_SECONDS)
