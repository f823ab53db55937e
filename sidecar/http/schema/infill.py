"""Wire types of `POST /infill`, `GET /props`, `POST /tokenize` and `POST /detokenize`: those of
llama.cpp's server, as llama.vim and llama.vscode use them."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from engine import RequestError
from sidecar.http.schema.bounds import Choices, EditorStops, MinP, Temperature, TopK, TopP
from sidecar.http.schema.usage import ReplyFacts


class ExtraFile(Struct, frozen=True):
    text: str
    filename: str = ""


class InfillRequest(Struct, frozen=True, kw_only=True):
    """prompt: the text between the prefix and the cursor, on its line. n_predict 0 computes
    the prompt's state and decodes nothing. t_max_predict_ms: of decoding, in milliseconds.
    response_fields: what the answer is to consist of, such as ``timings/prompt_ms``. n_cmpl: so
    many answers, in a list. `draft` is an extension; what else llama.cpp knows is ignored."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraFile] | None = None
    prompt: str = ""
    model: str | None = None
    n_predict: int | None = None
    n_cmpl: Choices | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    seed: int | None = None
    stop: EditorStops | None = None
    stream: bool | None = None
    t_max_predict_ms: float | None = None
    response_fields: list[str] | None = None
    draft: bool | None = None

    def __post_init__(self) -> None:
        if self.stream:
            raise RequestError(
                "stream is not supported here; leave it out",
                field="stream",
                code="unsupported_value",
            )


class Timings(Struct, frozen=True, kw_only=True):
    """prompt_n: tokens that were computed, cache_n: that were not."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class Infill(Struct, frozen=True, kw_only=True):
    """stop_type: ``eos``, ``limit`` or ``word``."""

    content: str
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    stop_type: str
    stopping_word: str
    has_new_line: bool
    timings: Timings
    generation_settings: dict[str, Any]
    pillion: ReplyFacts
    index: int = 0
    id_slot: int = 0
    stop: bool = True
    truncated: bool = False
    prompt: str = ""


class DefaultSettings(Struct, frozen=True):
    n_ctx: int


class Props(Struct, frozen=True, kw_only=True):
    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    build_info: str
    chat_template: str = ""


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """content: or, as vLLM calls it, `prompt`. add_special: with the model's own beginning.
    parse_special: control tokens that it spells are control tokens. with_pieces: say what each
    token is."""

    content: str | None = None
    prompt: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class TokenPiece(Struct, frozen=True):
    """piece: text, or the bytes of a token that is no whole character."""

    id: int
    piece: str | tuple[int, ...]


class Tokenized(Struct, frozen=True, kw_only=True):
    tokens: tuple[int | TokenPiece, ...]
    count: int
    max_model_len: int


class DetokenizeRequest(Struct, frozen=True):
    tokens: list[int]


class Detokenized(Struct, frozen=True, kw_only=True):
    content: str
    prompt: str | UnsetType = UNSET
