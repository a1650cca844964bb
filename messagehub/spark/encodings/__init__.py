"""Payloads of the registry's formats in Spark: `payloads` is what they share, `formats` chooses one."""
