"""Everything that computes. This facade imports no mlx; `start` loads it in the engine thread."""

from engine.client import Backend, Codec, Detokenizer, EngineClient, Reply, error_of
from engine.errors import (
    ContextLengthExceeded,
    EngineError,
    ModelError,
    NotReady,
    Overloaded,
    PillionError,
    RequestError,
)
from engine.messages import (
    Chunk,
    EngineOptions,
    EngineStatus,
    Event,
    Exactness,
    Failed,
    Finished,
    GenerateRequest,
    ModelInfo,
    Prefilling,
    Priority,
    RenderedPrompt,
    Sampling,
    Totals,
)

__all__ = [
    "Backend",
    "Chunk",
    "Codec",
    "ContextLengthExceeded",
    "Detokenizer",
    "EngineClient",
    "EngineError",
    "EngineOptions",
    "EngineStatus",
    "Event",
    "Exactness",
    "Failed",
    "Finished",
    "GenerateRequest",
    "ModelError",
    "ModelInfo",
    "NotReady",
    "Overloaded",
    "PillionError",
    "Prefilling",
    "Priority",
    "RenderedPrompt",
    "Reply",
    "RequestError",
    "Sampling",
    "Totals",
    "engine_client",
    "error_of",
]


def engine_client(options: EngineOptions) -> EngineClient:
    """A client of a real engine (not started yet). Imports no mlx until its thread runs."""
    from engine.engine import Engine

    return EngineClient(Engine(options))
