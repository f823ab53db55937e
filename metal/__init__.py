"""Kernels for Apple GPUs. Code elsewhere asks `available()` and never looks at the platform."""


def available() -> bool:
    """Whether MLX can run on a Metal GPU here. Imports mlx, which takes a moment the first time."""
    import mlx.core as mx

    return bool(mx.metal.is_available())
