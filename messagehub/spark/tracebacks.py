"""A refusal of ours reaches the user as its message, without the stack of the Python worker that raised it.

Spark sends the text of an exception from a worker to the driver, with the stack first, so that the message stands at
the end of thirty lines. A worker that has sent one ends, so hiding its stack hides that of no other error.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from messagehub.errors import HubError

_HIDES_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Spark looks at this variable of the worker's environment when it writes the text of an exception."""
_Class = TypeVar("_Class", bound=type)


@contextmanager
def message_only() -> Iterator[None]:
    """In a worker of Spark, let a HubError through with its message alone; other errors keep their stack."""
    try:
        yield
    except HubError:
        main = getattr(sys.modules["__main__"], "__spec__", None)
        if main is not None and main.name.startswith("pyspark."):
            os.environ[_HIDES_TRACEBACK] = "1"
        raise


def messages_only(kind: _Class) -> _Class:
    """Do so for all public methods of a class, which Spark calls."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _wrapped(method))
    return kind


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with message_only():
                yield from method(*args, **kwargs)

        return generate

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with message_only():
            return method(*args, **kwargs)

    return call
