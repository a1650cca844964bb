"""MessageHub in Spark: `format("messagehub")` and what makes it one line. Needs `messagehub[spark]`."""
