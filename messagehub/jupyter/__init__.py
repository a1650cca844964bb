"""Jupyter kernels whose outputs arrive as correlated streams."""

try:
    import jupyter_client  # noqa: F401
except ImportError as missing:
    raise ImportError(
        'Jupyter kernels need an extra: pip install "messagehub[jupyter]"', name=missing.name
    ) from missing
