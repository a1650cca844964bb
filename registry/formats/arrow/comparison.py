"""Arrow compatibility at two levels.

`differences`: a reader selects its columns by name and casts them. Old tables must give every column that it
needs, without nulls where it allows none, and no cast may lose or change a value.

`layout_differences`: a reader takes the old bytes as they are. Columns are found by position, and each must
be stored in exactly the way that the new schema says; only trailing columns may be left unread.
"""

from registry.formats.arrow.fields import ArrowField
from registry.formats.arrow.types import UNITS, ArrowType, spell
from registry.formats.differences import Difference

# Decimal digits that the largest value of an integer type takes.
DIGITS = {("int", 8): 3, ("int", 16): 5, ("int", 32): 10, ("int", 64): 19}
DIGITS |= {("uint", 8): 3, ("uint", 16): 5, ("uint", 32): 10, ("uint", 64): 20}
MANTISSA_BITS = {16: 11, 32: 24, 64: 53}
UNIONS = ("dense_union", "sparse_union")
LISTS = ("list", "fixed_size_list")


def differences(old: list[ArrowField], new: list[ArrowField]) -> list[Difference]:
    found: list[Difference] = []
    _columns(old, new, "", found)
    return found


def _path(parent: str, name: str) -> str:
    return f"{parent}/{name.replace('~', '~0').replace('/', '~1')}"


def _columns(old: list[ArrowField], new: list[ArrowField], path: str, found: list[Difference]) -> None:
    written = {field.name: field for field in old}
    for field in new:
        here = _path(path, field.name)
        if field.name in written:
            _field(written[field.name], field, here, found)
        elif not field.is_nullable:
            message = (
                f'The field "{field.name}" is new and takes no nulls, but what was written before lacks it. Make it'
                " nullable (the fields of a NumPy dtype never are: give an Arrow schema), use another channel, or lower"
                " the compatibility of the subject."
            )
            found.append(Difference("FIELD_ADDED_NOT_NULLABLE", here, message))


def _field(old: ArrowField, new: ArrowField, path: str, found: list[Difference]) -> None:
    if old.is_nullable and not new.is_nullable:
        found.append(_not_nullable(new, path))
    before, after = old.type.logical, new.type.logical
    if before.kind == "null":
        return
    if before.kind == after.kind == "struct":
        _columns(old.children, new.children, path, found)
    elif before.kind == after.kind == "map":
        _sorting(old, new, path, found)
        for was, now in zip(old.children, new.children, strict=True):
            _field(was, now, _path(path, now.name), found)
    elif before.kind in LISTS and (after.kind == "list" or before == after):
        _field(old.children[0], new.children[0], _path(path, "item"), found)
    elif before.kind in UNIONS and after.kind in UNIONS:
        _members(old, new, path, found)
    elif before.kind == after.kind == "timestamp" and bool(before.zone) != bool(after.zone):
        message = f'The field "{new.name}" changed between instants and local times.'
        found.append(Difference("TIMEZONE_CHANGED", path, message))
    elif not _widens(before, after):
        found.append(_changed(old, new, path))


def _not_nullable(field: ArrowField, path: str) -> Difference:
    message = f'The field "{field.name}" takes no nulls any more, but old tables may have some.'
    return Difference("FIELD_BECAME_NOT_NULLABLE", path, message)


def _changed(old: ArrowField, new: ArrowField, path: str) -> Difference:
    message = f'The field "{new.name}" changed from {spell(old.type)} to {spell(new.type)}.'
    return Difference("TYPE_CHANGED", path, message)


def _sorting(old: ArrowField, new: ArrowField, path: str, found: list[Difference]) -> None:
    if new.type.is_sorted and not old.type.is_sorted:
        message = f'The keys of the map "{new.name}" are now taken as sorted, which old tables do not promise.'
        found.append(Difference("KEYS_NOT_SORTED", path, message))


def _members(old: ArrowField, new: ArrowField, path: str, found: list[Difference]) -> None:
    after = dict(zip(new.type.codes, new.children, strict=True))
    for code, member in zip(old.type.codes, old.children, strict=True):
        if code in after:
            _field(member, after[code], _path(path, str(code)), found)
        else:
            message = f'The union "{new.name}" has no member with code {code} any more.'
            found.append(Difference("UNION_MEMBER_REMOVED", _path(path, str(code)), message))


def _widens(old: ArrowType, new: ArrowType) -> bool:
    """Whether every value of the old type is a value of the new one."""
    if old == new:
        return True
    match old.kind, new.kind:
        case "int", "int":
            return old.width <= new.width
        case "uint", "uint" | "int":
            return old.width < new.width
        case "int" | "uint", "float":
            return old.width - (old.kind == "int") <= MANTISSA_BITS[new.width]
        case "int" | "uint", "decimal":
            return new.scale >= 0 and new.precision - new.scale >= DIGITS[old.kind, old.width]
        case "float", "float":
            return old.width <= new.width
        case "decimal", "decimal":
            return new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
        case "date", "date":
            return True  # date64 holds whole days too, in milliseconds
        case "time", "time":
            return UNITS.index(old.unit) <= UNITS.index(new.unit)
        case ("timestamp", "timestamp") | ("duration", "duration"):
            # Nanoseconds in 64 bits end in the year 2262: coarser values may not fit.
            return UNITS.index(old.unit) <= UNITS.index(new.unit) and new.unit != "ns"
        case "utf8" | "fixed_size_binary", "binary":
            return True
    return False


def layout_differences(old: list[ArrowField], new: list[ArrowField]) -> list[Difference]:
    found: list[Difference] = []
    _positions(old, new, "", found)
    return found


def _positions(old: list[ArrowField], new: list[ArrowField], path: str, found: list[Difference]) -> None:
    for position, field in enumerate(new):
        here = _path(path, field.name)
        if position >= len(old):
            message = f'The field "{field.name}" is not in the bytes of old tables.'
            found.append(Difference("FIELD_ADDED", here, message))
        elif old[position].name != field.name:
            message = f'At position {position}, where "{field.name}" is expected, lies "{old[position].name}".'
            found.append(Difference("FIELD_MOVED", here, message))
        else:
            _stored(old[position], field, here, found)


def _stored(old: ArrowField, new: ArrowField, path: str, found: list[Difference]) -> None:
    if old.is_nullable and not new.is_nullable:
        found.append(_not_nullable(new, path))
    if (old.index, old.run_ends) != (new.index, new.run_ends) or (new.is_ordered and not old.is_ordered):
        message = f'The field "{new.name}" is encoded as {_encoding(new)}, and old bytes as {_encoding(old)}.'
        found.append(Difference("ENCODING_CHANGED", path, message))
    if not _same_bytes(old.type, new.type):
        found.append(_changed(old, new, path))
        return
    if new.type.kind == "map":
        _sorting(old, new, path, found)
    if len(new.children) < len(old.children):
        message = f'"{new.name}" has fewer parts, so what follows it would be read from the wrong place.'
        found.append(Difference("FIELD_REMOVED", path, message))
    _positions(old.children, new.children, path, found)


def _same_bytes(old: ArrowType, new: ArrowType) -> bool:
    """Equal types, and those of which the new one reads the same bytes as the same values."""
    match old.kind, new.kind:
        case "timestamp", "timestamp":
            return old.unit == new.unit and bool(old.zone) == bool(new.zone)
        case "decimal", "decimal":
            return (old.width, old.scale) == (new.width, new.scale) and old.precision <= new.precision
        case "utf8", "binary":
            return old.width == new.width
        case "map", "map":
            return True
    return old == new


def _encoding(field: ArrowField) -> str:
    if field.index:
        return f"{'an ordered' if field.is_ordered else 'a'} dictionary with {field.index} indexes"
    return f"runs that end at {field.run_ends}" if field.run_ends else "plain values"
