"""Arguments of public calls: what an annotation promises is checked at the edge, before anything is done.

Rule 1: a number of NumPy is a number. It arrives inside as the Python number of the same value.
Rule 2: what is refused is refused by its name, with what it takes (ConfigurationError).
Rule 3: only the kind of a value is checked here. Ranges belong to whoever uses the number.
"""

import functools
import inspect
import math
import operator
import types
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin

from messagehub.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")
_Class = TypeVar("_Class", bound=type)
_Check = Callable[[Any, str], Any]
_JSON_RULE = (
    "takes what JSON can hold: texts, finite numbers, booleans, None, lists, and dicts with texts as keys. Convert it"
    " first"
)
MOST_SECONDS = 1e6
"""As long as any wait lasts: `poll` takes no more than 24 days."""
_LEAST_INTEGER, _MOST_INTEGER = -(1 << 63), (1 << 64) - 1


# -- single values -----------------------------------------------------------------------------------------


def whole(value: Any, name: str) -> int:
    """An integer of Python or NumPy, as Python's."""
    if type(value) is int:
        return value
    try:
        if not isinstance(value, bool):
            return int(operator.index(value))
    except TypeError:
        pass  # refused below
    raise ConfigurationError(f"{name} takes a whole number, not {_shown(value)}")


def whole_from(value: Any, name: str, least: int, most: int) -> int:
    try:
        number = whole(value, name)
    except ConfigurationError:
        number = least - 1
    if not least <= number <= most:
        raise ConfigurationError(f"{name} {_shown(value)} is not a whole number from {least} to {most}")
    return number


def number(value: Any, name: str) -> float:
    """A finite number of Python or NumPy, as Python's."""
    found = _number(value)
    if found is None or not math.isfinite(found):
        raise ConfigurationError(f"{name} takes a finite number, not {_shown(value)}")
    return found


def seconds(timeout: Any, name: str = "timeout") -> float:
    """Return a number of seconds, of Python or NumPy, as a float. Infinity becomes the longest wait of the kernel.

    A NumPy float is not merely accepted: a deadline computed with a float32 would be minutes off.
    """
    found = timeout if type(timeout) in (float, int) else _number(timeout)
    if found is None or math.isnan(found):
        raise ConfigurationError(f"{name} takes a number of seconds, not {_shown(timeout)}")
    return float(min(found, MOST_SECONDS))


def _number(value: Any) -> float | None:
    """Return None for what is not a number. Arrays and texts are not, although `float` takes some of them."""
    if isinstance(value, str | bytes | bytearray | bool) or getattr(value, "ndim", 0) != 0:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} takes a text (str), not {_shown(value)}")
    return value if type(value) is str else str.__str__(value)  # of NumPy, or a member of an enumeration


def flag(value: Any, name: str) -> bool:
    """True or False, also of NumPy, and 1 or 0. A text such as "no" would count as true."""
    if type(value) is bool:
        return value
    try:
        if operator.index(value) in (0, 1):
            return bool(value)
    except TypeError:
        if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
            return bool(value)
    raise ConfigurationError(f"{name} takes True or False, not {_shown(value)}")


def choice(value: Any, name: str, known: tuple[str, ...]) -> Any:
    if not (isinstance(value, str) and value in known):
        raise ConfigurationError(f"{name} {_shown(value)} is not one of {', '.join(known)}")
    return text(value, name)


def json_object(value: Any, name: str) -> dict[str, Any]:
    """A dict as JSON would give it back, with Python's numbers in the place of NumPy's; None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigurationError(f"{name} takes a dict, not {_shown(value)}")
    try:
        found: dict[str, Any] = _json(value, name)
    except RecursionError:
        raise ConfigurationError(f"{name} is nested too deeply") from None
    return found


def plain(value: Any) -> Any:
    """The Python number of the same value for one of NumPy; anything else as it is."""
    return value.item() if is_numpy_number(value) else value


def is_numpy_number(value: Any) -> bool:
    """Whether a Python number of the same value exists: not so of long doubles, complex numbers and times."""
    if type(value).__module__ != "numpy" or not hasattr(value, "item") or getattr(value, "ndim", 1) != 0:
        return False
    kind, size = value.dtype.kind, value.dtype.itemsize
    return kind in "biu" or (kind == "f" and size <= 8)


def _json(value: Any, place: str) -> Any:
    value = plain(value)
    if value is None or type(value) in (str, bool):
        return value
    if type(value) is int and _LEAST_INTEGER <= value <= _MOST_INTEGER:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, list):
        return [_json(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ConfigurationError(f"{place} has the key {_shown(key)}, and {_JSON_RULE}")
        return {key: _json(item, f"{place}[{key!r:.100}]") for key, item in value.items()}
    raise ConfigurationError(f"{place} is {_shown(value)}, and {_JSON_RULE}")


def _shown(value: Any) -> str:
    """The value where it is short, else its type."""
    if isinstance(value, str | int | float | None):
        return f"{value!r:.100}"
    said = repr(value)
    kind = type(value).__name__
    return said if len(said) <= 60 and "\n" not in said and kind in said else f"a {kind}"


# -- whole classes -----------------------------------------------------------------------------------------


def checked(*, but: tuple[str, ...] = ()) -> Callable[[_Class], _Class]:
    """Check the arguments of all public methods of a class, as `checks_arguments` does, inherited ones included.

    `but` names methods that are called so often that they check for themselves.
    """

    def decorate(cls: _Class) -> _Class:
        for name in dir(cls):
            found = inspect.getattr_static(cls, name)
            if not name.startswith("_") and name not in but and inspect.isfunction(found):
                setattr(cls, name, checks_arguments(found))
        return cls

    return decorate


def checks_arguments(method: Callable[P, T]) -> Callable[P, T]:
    """Check the arguments of a method by their annotations.

    Numbers, texts, flags and choices (`Literal`) are, also where None is allowed; all else the method checks.
    """
    checks: dict[str, _Check] | None = None
    positional: tuple[str, ...] = ()
    part_of: Callable[[Any], Any] | None = getattr(method, "part_of", None)  # of a delegated one, called in one step
    run: Callable[..., Any] = method if part_of is None else method.__wrapped__  # type: ignore[attr-defined]

    def check(given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        nonlocal checks, positional
        if checks is None:  # at the first call: most programs use few methods
            positional, checks = _checks_of(method)
        for name, value in named.items():
            if name in checks:
                named[name] = checks[name](value, name)
        if given:
            names = positional[: len(given)]
            pairs = zip(names, given, strict=False)  # a call with too many is refused by the method
            taken = [checks[name](value, name) if name in checks else value for name, value in pairs]
            return (*taken, *given[len(names) :])
        return given

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(self: Any, /, *given: Any, **named: Any) -> Any:
            return await run(self if part_of is None else part_of(self), *check(given, named), **named)

        return cast("Callable[P, T]", call_async)

    if part_of is not None:

        @functools.wraps(method)
        def call_part(self: Any, /, *given: Any, **named: Any) -> Any:
            return run(part_of(self), *check(given, named), **named)

        return cast("Callable[P, T]", call_part)

    @functools.wraps(method)
    def call(self: Any, /, *given: Any, **named: Any) -> Any:
        return run(self, *check(given, named), **named)

    return cast("Callable[P, T]", call)


def _checks_of(method: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, _Check]]:
    """The names of positional parameters behind `self`, and how each parameter that can be checked is."""
    try:
        parameters = inspect.signature(method, eval_str=True).parameters.values()
    except NameError:  # an annotation for type checkers alone
        parameters = inspect.signature(method).parameters.values()
    positional = tuple(
        each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    )[1:]
    checks = {}
    for each in parameters:
        check = None if each.kind is each.VAR_KEYWORD else _check_of(each.annotation)
        if check is not None:
            checks[each.name] = _or_none(seconds) if each.name in _DURATIONS else check
    return positional, checks


def _check_of(annotation: Any) -> _Check | None:
    """None for what is not checked here."""
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = get_args(annotation)
        inner = [kind for kind in kinds if kind is not types.NoneType]
        check = _check_of(inner[0]) if len(inner) == 1 else None
        return _or_none(check) if check is not None and len(inner) < len(kinds) else check
    if get_origin(annotation) is Literal:
        return functools.partial(_chosen, get_args(annotation))
    return _BY_TYPE.get(annotation) if isinstance(annotation, type) else None


_DURATIONS = ("timeout", "timeout_seconds", "drain_seconds")
_BY_TYPE: dict[type, _Check] = {int: whole, float: number, str: text, bool: flag}


def _chosen(known: tuple[str, ...], value: Any, name: str) -> Any:
    return choice(value, name, known)


def _or_none(check: _Check) -> _Check:
    return lambda value, name: None if value is None else check(value, name)
