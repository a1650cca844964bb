"""MessageHub in Spark: `format("messagehub")`, and one line for each way through it. Needs `messagehub[spark]`.

    from messagehub import spark as hub_spark

    hub_spark.publish(df, "sales")                  # every process on this host can map it now
    df = hub_spark.read(spark, "sales")

Spark starts a Python process for every step, and each imports this package: what only a user's process needs is
imported when it is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from messagehub.spark.frames import Published, publish, read, register

__all__ = ["Published", "publish", "read", "register"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from messagehub.spark import frames

    return getattr(frames, name)
