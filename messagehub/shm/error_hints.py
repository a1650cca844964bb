"""Ends of error messages: what to give instead of a schema or payload that cannot be used."""

from typing import Any


def schema_instead(schema: Any, name: str, taken: str) -> str:
    """Say what is wrong with what was given for a schema. `taken` is what the argument takes."""
    kind = type(schema)
    library = kind.__module__.partition(".")[0]
    if library == "pyarrow" and hasattr(schema, "schema"):
        return f"{name} is a pyarrow {kind.__name__}, not its schema: give .schema of it"
    if library == "pyarrow" and hasattr(schema, "bit_width"):
        return (
            f"{name} is the Arrow type {schema}, not a schema: give pa.schema([(name, type)]) for record batches, or a"
            " NumPy dtype for arrays"
        )
    if library == "pyarrow" and kind.__name__ == "Field":
        return f"{name} is an Arrow field, not a schema: give pa.schema([field])"
    if library == "pandas" and hasattr(schema, "dtypes"):
        return f"{name} is a pandas {kind.__name__}, not a schema: give pa.Schema.from_pandas(frame)"
    if library == "numpy" and hasattr(schema, "dtype") and hasattr(schema, "shape"):
        return f"{name} is a NumPy {kind.__name__}, not its dtype: give .dtype of it"
    return f"{name} {schema!r:.100} is {taken}"


def bytes_instead(payload: Any) -> str:
    """Say how to make bytes of a value that was written to a channel of raw bytes."""
    if isinstance(payload, str):
        return "Encode it: text.encode()."
    if hasattr(payload, "strides"):
        return "Its bytes are not in one piece: np.ascontiguousarray(array), or a producer with schema=array.dtype."
    if type(payload).__module__.partition(".")[0] in ("pyarrow", "pandas", "polars"):
        return "For Arrow data make the producer with schema=, an Arrow schema."
    return "Give bytes: json.dumps(value).encode() makes some, or make the producer with schema=."


def array_instead(payload: Any, dtype: Any) -> str:
    """Say how to make an array of a value that was written to a channel of arrays."""
    if hasattr(payload, "dtype"):
        return "Cast it, or open another channel for it."
    if isinstance(payload, int | float | complex | list | tuple):
        return f"Give a NumPy array or number: np.asarray(value, dtype={str(dtype)!r})."
    return "Give a NumPy array or number of that dtype."
