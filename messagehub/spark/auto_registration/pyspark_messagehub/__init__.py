"""Found by Spark by its name: makes `format("messagehub")` known without a call to register it."""

from messagehub.spark.source import MessageHubSource as DefaultSource

__all__ = ["DefaultSource"]
