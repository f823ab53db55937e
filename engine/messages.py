"""Frozen, plain-Python messages that cross from the doors to the engine thread and back.

Nothing here holds an `mx.array`: a lazy array evaluated on another thread raises.
"""

from __future__ import annotations

import enum
import math

from msgspec import Struct

from engine.decoding.cost_curve import CostCurve
from engine.decoding.round_log import Round
from engine.decoding.surplus_report import RegimeSurplus, Span
from engine.errors import RequestError
from engine.prefix_cache.messages import CacheStatus, CacheUse, Segment


class Priority(enum.IntEnum):
    """Lower runs first. INTERACTIVE: a keystroke; AGENT: chat, bulk; IDLE: audit, pre-warming."""

    INTERACTIVE = 0
    AGENT = 1
    IDLE = 2


class Sampling(Struct, frozen=True, kw_only=True):
    """How one token is chosen from its logits (see `engine.decoding.sampling.choose`).

    Order: logit_bias, repetition_penalty (prompt and output, as in CTRL, arXiv:1909.05858),
    presence and frequency penalties (output only, as OpenAI documents them), temperature, top-k,
    top-p over what top-k kept, min-p. Temperature 0 is greedy.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0.0, 100.0)
        _within("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _within("top_k", self.top_k, 0, 2**31 - 1)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        for token, bias in self.logit_bias:
            if token < 0:
                raise RequestError(f"logit_bias: {token} is not a token id", field="logit_bias")
            _within("logit_bias", bias, -100.0, 100.0)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Whether the choice depends on which tokens came before."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def _within(field: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    below = value <= low if open_low else value < low
    if not math.isfinite(value) or below or value > high:
        bracket = "(" if open_low else "["
        raise RequestError(
            f"{field} must be in {bracket}{low:g}, {high:g}], got {value:g}", field=field
        )


class ReplyFormat(Struct, frozen=True, kw_only=True):
    """What a reply has to be, in a caller's words; `Grammar` is what becomes of it.

    schema: a JSON schema (JSON text) that the reply satisfies; None if it is to be no JSON.
    calls: tool calls are a reply, too. tool: the name of the only tool that may be called.
    several: as many calls as the model likes. reasons: the model may reason first.
    """

    schema: str | None = None
    calls: bool = False
    tool: str | None = None
    several: bool = True
    reasons: bool = False


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call that a reply made; arguments: JSON text of an object. repaired: what had to be put
    right to read it, empty for most."""

    name: str
    arguments: str
    repaired: str = ""


class Grammar(Struct, frozen=True, kw_only=True):
    """Which replies are allowed. It holds from a reply's first token to its last.

    text: in llguidance's dialect of Lark. field: of the request, named in errors.
    """

    text: str
    field: str = "grammar"


DRAFTERS = ("copy", "prediction", "dflash", "none")
"""Whom a request's `drafters` can name."""

POLICIES = ("surplus", "always", "switch", "watch")
"""How a request's `policy` can say when to draft."""


class GenerateRequest(Struct, frozen=True, kw_only=True):
    """One reply to decode. The engine answers it with events and ends it with exactly one of
    `Finished` or `Failed`.

    id: unique among open requests.
    prompt: token ids, at least one.
    max_tokens: at most this many new tokens, EOS included; None means up to the context's end.
    seed: for sampled choices; None lets the engine draw one (reported in `Finished.seed`).
    stop: strings; the reply's text ends before the first one found.
    stop_token_ids: end the reply like EOS does (for FIM and file separators).
    ignore_eos: keep going after EOS (benchmarks).
    must_start_with: token healing. The prompt lacks these characters at its end; the reply is
        forced to begin with them and its text leaves them out again.
    grammar: the reply is held to it, and ends when it is complete. Not with must_start_with.
    prediction: token ids that the reply may turn out to be, but for changes.
    logprobs: report the log-probability of each token, and of so many likely ones in its place.
    draft: False decodes target-only; the tokens are the same.
    drafters: whose turn it is to draft, round by round and then again from the first: ``copy``,
        ``prediction``, ``dflash`` or ``none``. Empty leaves it to the engine. For comparisons and
        proofs.
    policy: when to draft: ``surplus``, while it pays; ``always``; ``switch``, at random each round;
        ``watch``, never, but ask every drafter. All but the first are what surplus is measured and
        exactness proven with.
    draft_seed: of the drafter's noise; None shares the verifier's. To measure what sharing gains.
    boundaries: prompt lengths at which stable segments end; hints for prefix snapshots.
    segments: the files in the prompt, in order; the ends of segments are boundaries, too.
    warm: compute the prompt's state and keep it, decode nothing. It ends as ``warmed``, without a
        token. At IDLE priority it costs other requests at most one prompt chunk.
    session: requests of one name belong together. A hint for retention and for turns, never needed
        for correctness. tools: whether the prompt has any; see `engine.sessions`.
    margins: report the top-2 gap at every token (costs a sort; `pillion verify` uses it).
    explain: report a timeline and a log of the rounds.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int | None = None
    sampling: Sampling = Sampling()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    must_start_with: str = ""
    grammar: Grammar | None = None
    prediction: tuple[int, ...] = ()
    logprobs: int | None = None
    draft: bool = True
    drafters: tuple[str, ...] = ()
    policy: str = "surplus"
    draft_seed: int | None = None
    priority: Priority = Priority.AGENT
    boundaries: tuple[int, ...] = ()
    segments: tuple[Segment, ...] = ()
    warm: bool = False
    session: str | None = None
    tools: bool = False
    margins: bool = False
    explain: bool = False

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise RequestError(
                f"policy: {self.policy!r} is none of {', '.join(POLICIES)}", field="policy"
            )
        if not self.prompt:
            raise RequestError("the prompt is empty", field="prompt")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(
                f"max_tokens must be at least 1, got {self.max_tokens}", field="max_tokens"
            )
        ends = [segment.end for segment in self.segments]
        if ends != sorted(ends) or (ends and not 0 < ends[0] <= ends[-1] <= len(self.prompt)):
            raise RequestError(
                f"segments: ends {ends} are not in order inside a prompt of {len(self.prompt)}",
                field="segments",
            )
        for drafter in self.drafters:
            if drafter not in DRAFTERS:
                raise RequestError(
                    f"drafters: {drafter!r} is none of {', '.join(DRAFTERS)}", field="drafters"
                )
        if any(not stop for stop in self.stop):
            raise RequestError("stop must not contain an empty string", field="stop")
        if self.grammar is not None and self.must_start_with:
            raise RequestError(
                "a reply held to a grammar cannot begin with must_start_with",
                field="must_start_with",
            )


class Prefilling(Struct, frozen=True, kw_only=True, tag=True):
    """Progress through the prompt: `done` of `total` tokens are cached, `cached` came free."""

    id: str
    done: int
    total: int
    cached: int


class TokenLogprob(Struct, frozen=True):
    """The model's own log-probability of a token, before penalties, masks and temperature. likely:
    the most probable ids in its place, best first, each with its own."""

    token: int
    logprob: float
    likely: tuple[tuple[int, float], ...] = ()


class Chunk(Struct, frozen=True, kw_only=True, tag=True):
    """Newly committed tokens and the text they complete.

    The text never splits a character and never runs ahead of a possible stop string, so it may be
    empty while tokens arrive. Concatenated over a reply it is the whole text. logprobs: of the
    tokens, when asked for.
    """

    id: str
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Finished(Struct, frozen=True, kw_only=True, tag=True):
    """The one good ending of a request.

    finish_reason: ``stop`` (EOS or a stop string), ``length``, ``cancelled``, or ``warmed``.
    cache: where the cached tokens came from.
    stop_sequence: the stop string that ended it, if one did.
    tokens: all new token ids, in order (EOS included when it was produced).
    token_hash: SHA-256 (hex) over the ids as little-endian uint32.
    exact: whether this reply is proven equal to serial decoding; `inexact_reason` says why not.
    width: the widest verify forward this reply was allowed (rows; 1 means target-only);
        `width_reason` says why it is less than what was asked for.
    rounds: target forwards after prefill. accepted / rejected: draft tokens.
    margins: when asked for, the top-2 gap of the scores at each token.
    regimes: what decoding took and gained, by kind of text. The first token comes from prefill,
        so it is not counted.
    timeline, log: when asked for (`GenerateRequest.explain`), the rounds, joined and one by one.
    served_by: who decoded it, where that was an upstream; then its ids are not known: `tokens` has
        -1 for each and `token_hash` is empty. fallback: why an upstream did not.
    """

    id: str
    finish_reason: str
    tokens: tuple[int, ...]
    token_hash: str
    seed: int
    prompt_tokens: int
    cached_tokens: int = 0
    cache: CacheUse = CacheUse()
    accepted: int = 0
    rejected: int = 0
    rounds: int = 0
    width: int = 1
    exact: bool = True
    inexact_reason: str | None = None
    width_reason: str | None = None
    stop_sequence: str | None = None
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    margins: tuple[float, ...] = ()
    regimes: tuple[RegimeSurplus, ...] = ()
    timeline: tuple[Span, ...] = ()
    log: tuple[Round, ...] = ()
    served_by: str = ""
    fallback: str = ""

    @property
    def tokens_per_round(self) -> float:
        """Committed tokens per target forward. The first token comes from prefill, so it is
        not counted."""
        return (len(self.tokens) - 1) / self.rounds if self.rounds else 0.0


class Failed(Struct, frozen=True, kw_only=True, tag=True):
    """The one bad ending of a request; `code` as in `engine.errors`."""

    id: str
    code: str
    message: str
    field: str | None = None


Event = Prefilling | Chunk | Finished | Failed


class EngineOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the engine is started with; the doors' `[engine]` configuration maps onto it.

    model: ``builtin``, ``smollm2-135m``, a Hub id or a local folder.
    revision: Hub branch, tag or commit to pin.
    context: tokens; None takes the model's own maximum.
    draft: ``auto`` (the drafter published for the model, and copying), ``copy``, ``none``
        (target-only), or a drafter's Hub id or folder.
    draft_bits: quantise the drafter to 4 or 8 bits; 0 keeps its precision; None decides by target.
    max_width: most rows of one verify forward (anchor included); None takes what the probe allows.
    fast: use widths that did not probe equal. Replies then say ``exact: false``.
    prefill_chunk: prompt tokens per forward, also the longest wait of an INTERACTIVE request; None
        measures at load what takes about half a second.
    max_active: requests that hold caches at once; max_queue: requests waiting behind them.
    dtype: ``auto``, ``bfloat16`` or ``float32``: activations and unquantised weights.
    kernels: ``auto`` uses Pillion's own where they are exact and faster, with the best instruction
        set; a name of `engine.cpu.INSTRUCTION_SETS` forces that one; ``off`` is stock MLX.
    audit: decode past drafted replies again, target-only, in idle time.
    """

    model: str = "builtin"
    revision: str | None = None
    context: int | None = None
    draft: str = "auto"
    draft_bits: int | None = None
    max_width: int | None = None
    fast: bool = False
    prefill_chunk: int | None = None
    max_active: int = 8
    max_queue: int = 256
    dtype: str = "auto"
    kernels: str = "auto"
    audit: bool = True


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What is loaded. Bytes are of this process; `context` is in tokens."""

    id: str
    path: str
    family: str
    context: int
    vocab_size: int
    parameters: int
    weight_bytes: int
    cache_bytes_per_token: int
    quantization: str
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    has_fim: bool
    fingerprint: str
    default_sampling: Sampling = Sampling()


class InstalledModel(Struct, frozen=True, kw_only=True):
    """A model that is on this machine, read from its files without loading it. Sizes in bytes.

    drafting: ``speculative`` or ``target-only``. state_bytes: of the caches that do not grow.
    drafter: the one it gets, ``copy`` when it has no other; drafter_bytes: 0 while it is not here.
    limit_bytes: what models may take on this machine; largest_context: fits into that (tokens).
    problem: why it cannot be loaded; then the other facts are as far as they could be read.
    """

    name: str
    path: str
    family: str = ""
    drafting: str = ""
    quantization: str = ""
    parameters: int = 0
    context: int = 0
    weight_bytes: int = 0
    cache_bytes_per_token: int = 0
    state_bytes: int = 0
    drafter: str = ""
    drafter_bytes: int = 0
    limit_bytes: int = 0
    largest_context: int = 0
    problem: str = ""

    @property
    def total_bytes(self) -> int:
        """Weights and caches of one sequence as long as the context."""
        return self.weight_bytes + self.state_bytes + self.context * self.cache_bytes_per_token


class Exactness(Struct, frozen=True, kw_only=True):
    """What the load-time probe found: verify rows of these widths equal one-row decoding or not.

    width: the largest width at which all widths up to it probed equal (1: none did).
    asked: the largest width probed. prefill: whether chunked prefill equals one-row decoding.
    reason: empty when every width probed equal, else what differed, where and by how much.
    """

    exact: bool
    width: int
    asked: int
    prefill: bool
    reason: str = ""


class Totals(Struct, frozen=True, kw_only=True):
    """Counted since the engine started."""

    requests: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    accepted: int = 0
    rejected: int = 0
    decode_seconds: float = 0.0
    prefill_seconds: float = 0.0
    audits: int = 0
    audit_differences: int = 0


class EngineStatus(Struct, frozen=True, kw_only=True):
    """state: ``loading``, ``ready``, ``failed`` or ``stopped``; detail: what it does, why not.

    notes: what a user should know of how the model was loaded (a drafter that is missing).
    regimes: what decoding took and gained since the start, by kind of text.
    costs: what rounds take on this machine, in seconds; slowdown: how much longer they take now.
    kernels: what computes the model, and why not what could.
    """

    state: str
    detail: str = ""
    progress: float | None = None
    model: ModelInfo | None = None
    exactness: Exactness | None = None
    drafters: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    kernels: str = ""
    active: int = 0
    queued: int = 0
    totals: Totals = Totals()
    regimes: tuple[RegimeSurplus, ...] = ()
    costs: CostCurve | None = None
    slowdown: float = 1.0
    memory_bytes: int = 0
    cache: CacheStatus = CacheStatus()


class ContextFile(Struct, frozen=True, kw_only=True):
    r"""What a completion prompt shows of another file, ahead of the one that is edited.

    path: as the workspace names it. text: lines that end with ``\n``. content: hash of what the
    file holds, for its `Segment`. comment: what begins a comment there, for models that were not
    trained on many files at once. root: the workspace's folder, no part of a prompt.
    """

    path: str
    text: str
    content: bytes
    comment: str = "#"
    root: str = ""

    @property
    def place(self) -> str:
        """What the cache knows it by: two folders may have files of one name."""
        return f"{self.root}/{self.path}" if self.root else self.path


class RenderedPrompt(Struct, frozen=True, kw_only=True):
    """Token ids ready for `GenerateRequest.prompt`, with what belongs to them.

    boundaries: lengths at which stable segments end. segments, must_start_with, grammar: see
    `GenerateRequest`.
    stable: length up to which the prompt is the same at any place of the edited file.
    stop_token_ids: ids that end such a reply besides EOS.
    reasoning: the marker of the reasoning that the prompt left open, if it did.
    """

    tokens: tuple[int, ...]
    reasoning: str = ""
    boundaries: tuple[int, ...] = ()
    segments: tuple[Segment, ...] = ()
    stable: int = 0
    must_start_with: str = ""
    grammar: Grammar | None = None
    stop_token_ids: tuple[int, ...] = ()
