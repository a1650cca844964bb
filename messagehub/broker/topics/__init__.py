"""The proxy that passes messages of topics on, and the store of retained ones."""
