"""MessageHub in Spark: `format("messagehub")`, and one line for each way through it. Needs `messagehub[spark]`.

    from messagehub import spark as hub_spark

    hub_spark.publish(df, "sales")                  # every process on this host can map it now
    df = hub_spark.read(spark, "sales")

Spark starts a Python process for every step, and each imports this package: what only a user's process needs is
imported when it is used.
"""

from typing import TYPE_CHECKING, Any

try:
    import pyspark  # noqa: F401
except ImportError as missing:
    raise ImportError('Spark needs an extra: pip install "messagehub[spark]"', name=missing.name) from missing

if TYPE_CHECKING:
    from messagehub.spark.frames import Published, publish, read, register
    from messagehub.spark.registry_functions import from_registry, to_registry

__all__ = ["Published", "from_registry", "publish", "read", "register", "to_registry"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("from_registry", "to_registry"):
        from messagehub.spark import registry_functions as module
    else:
        from messagehub.spark import frames as module  # type: ignore[no-redef]

    return getattr(module, name)
