"""What every schema format answers with: differences, refusals and the parsed form."""

import msgspec


class Difference(msgspec.Struct, frozen=True):
    """One reason why data written with the old schema cannot be read with the new one."""

    kind: str
    path: str
    message: str
    counterexample: msgspec.Raw | None = None


class InvalidSchema(ValueError):
    """The text is not a schema of its type; `path` points at the offending part where that is known."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{message} (at {path})" if path else message)
        self.path = path


class BudgetExceeded(ValueError):
    """The input is larger than what is worth examining; the message names the budget and its value."""

    def __init__(self, budget: str, value: int) -> None:
        super().__init__(f"{budget} exceeds the budget of {value}")
        self.budget = budget
        self.value = value


class Parsed(msgspec.Struct):
    """A valid schema: equal canonical text means equal schema, and `hash` is its SHA-256."""

    schema_type: str
    canonical: str
    hash: str
