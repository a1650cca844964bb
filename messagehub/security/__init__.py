"""Keys and tokens, files that only their owner may read, rate limits, the audit log."""
