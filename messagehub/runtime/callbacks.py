"""Functions that users hand in (callbacks, handlers): checked at once, and awaited where they are asynchronous."""

import functools
import inspect
from collections.abc import Awaitable
from typing import Any

from messagehub.errors import ConfigurationError


def check_callback(
    callback: Any, *, name: str, arguments: tuple[str, ...], may_stream: bool = False, may_await: bool = True
) -> None:
    """Raise ConfigurationError if every call would fail.

    Calling a generator function does not run its body. That is a mistake, unless the caller takes what the generator
    yields as a stream (`may_stream`). Nor does calling an `async def`, unless the caller awaits it (`may_await`).
    """
    called = f"{name}({', '.join(arguments)})"
    if not callable(callback):
        raise ConfigurationError(f"{name} is called as {called}: {callback!r} is not callable")
    function = _function(callback)
    if not may_stream and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise ConfigurationError(f"{name} {callback!r} is a generator function, whose body a call does not run")
    if not may_await and inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"{name} {callback!r} is an async function, and nobody awaits it here: give a plain one"
        )
    try:
        inspect.signature(callback).bind(*arguments)
    except ValueError:
        return  # nothing is known of a callable without a signature
    except TypeError as error:
        raise ConfigurationError(f"{name} {callback!r} is not called as {called}: {error}") from None


def is_async(callback: Any) -> bool:
    """Whether a call gives something to await, or an asynchronous generator."""
    function = _function(callback)
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


async def awaited(value: Awaitable[Any]) -> Any:
    return await value


def _function(callback: Any) -> Any:
    """The function that a call runs: of a partial the inner one, of an object its `__call__`."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    is_plain = inspect.isroutine(callback) or inspect.isclass(callback)
    return callback if is_plain else getattr(callback, "__call__", callback)  # noqa: B004  the method is wanted
