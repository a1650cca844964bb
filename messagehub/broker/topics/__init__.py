"""The proxy that forwards messages of topics, and the retained topics."""
