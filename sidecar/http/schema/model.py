"""Wire types of `GET /v1/models`."""

from __future__ import annotations

from msgspec import Struct


class Model(Struct, frozen=True, kw_only=True):
    """OpenAI's model object. `context_length` (tokens) and `max_model_len` are the names under
    which agents look for the context; the rest is Pillion's own."""

    id: str
    created: int
    context_length: int
    max_model_len: int
    family: str
    quantization: str
    parameters: int
    fingerprint: str
    object: str = "model"
    owned_by: str = "pillion"


class ModelList(Struct, frozen=True, kw_only=True):
    data: tuple[Model, ...]
    object: str = "list"
