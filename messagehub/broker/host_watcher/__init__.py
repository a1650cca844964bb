"""What the broker sees of its own host: processes, the directory of channels, tables."""
