"""Shipped fakes: the same contracts as the real engine, with no model behind them."""

from __future__ import annotations

import hashlib
import queue
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from engine.client import Codec, Detokenizer, Message
from engine.decoding.cost_curve import CostCurve
from engine.drafters.drafter import Offer
from engine.errors import ContextLengthExceeded, RequestError
from engine.messages import (
    Chunk,
    ContextFile,
    EngineStatus,
    Event,
    Exactness,
    Failed,
    Finished,
    GenerateRequest,
    Grammar,
    ModelInfo,
    Prefilling,
    RenderedPrompt,
    ReplyFormat,
    TokenLogprob,
    Totals,
)
from engine.prefix_cache.messages import CacheReport, CacheStatus, FileContent, Segment
from engine.reply_pieces import PieceReader

EOS, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, TURN = 256, 257, 258, 259, 260


class ByteDetokenizer:
    """UTF-8 bytes to text, a whole character at a time."""

    def __init__(self) -> None:
        self._pending = b""

    def add(self, token: int) -> str:
        if token > 255:
            return ""
        self._pending += bytes([token])
        try:
            text = self._pending.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return ""
            text = self._pending.decode(errors="replace")
        self._pending = b""
        return text

    def finish(self) -> str:
        text, self._pending = self._pending.decode(errors="replace"), b""
        return text


class ByteCodec:
    """One token a UTF-8 byte; ids from 256 up are control tokens."""

    def __init__(self) -> None:
        self._around = ("", "")

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(t for t in tokens if t < 256).decode(errors="replace")

    def detokenizer(self) -> Detokenizer:
        return ByteDetokenizer()

    def control_spellings(self) -> dict[int, str]:
        """How control tokens are spelled in a chat template."""
        return {
            EOS: "<|endoftext|>",
            FIM_PREFIX: "<|fim_prefix|>",
            FIM_SUFFIX: "<|fim_suffix|>",
            FIM_MIDDLE: "<|fim_middle|>",
            TURN: "<|im_start|>",
        }

    def token_bytes(self) -> list[bytes]:
        """The bytes of every id; control tokens have none."""
        return [bytes([t]) if t < 256 else b"" for t in range(TURN + 1)]

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        template: Mapping[str, Any] | None = None,
        reasoning: bool = True,
    ) -> RenderedPrompt:
        tokens: list[int] = []
        ends: list[int] = []
        for message in messages:
            if "role" not in message:
                raise RequestError("messages: a message has no role", field="messages")
            content = f"{message['role']}: {message.get('content') or ''}"
            tokens += [TURN, *content.encode()]
            ends.append(len(tokens))
        tokens.append(TURN)
        return RenderedPrompt(tokens=tuple(tokens), boundaries=tuple(ends))

    def grammar(
        self,
        reply: ReplyFormat,
        tools: Sequence[Message] | None = None,
        *,
        prompt: RenderedPrompt | None = None,
    ) -> Grammar:
        """Tool calls are written as `engine.text.tool_calls.XmlForm` has them."""
        from engine.text.conversation import tool_definitions
        from engine.text.reply_grammar import reply_grammar
        from engine.text.tool_calls import XmlForm

        return reply_grammar(reply, tool_definitions(tools) or (), XmlForm(), {})

    def reader(self, tools: Sequence[Message] | None, *, reasoning: str = "") -> PieceReader:
        """Reasoning stands between ``<think>`` and ``</think>``."""
        from engine.text.conversation import tool_definitions
        from engine.text.reply_reader import Layout, ReplyReader
        from engine.text.tool_calls import XmlForm

        functions = [tool["function"] for tool in tool_definitions(tools) or ()]
        layout = Layout({"<think>": "</think>"}, XmlForm())
        return ReplyReader(layout, {tool["name"]: tool for tool in functions}, reasoning)

    def fill_in_middle(
        self,
        prefix: str,
        suffix: str,
        *,
        path: str | None = None,
        limit: int | None = None,
        project: str = "",
        context: Sequence[ContextFile] = (),
        context_limit: int = 0,
    ) -> RenderedPrompt:
        self._around = _around(prefix, suffix)
        before, after = prefix.encode(), suffix.encode()
        if limit is not None:
            before, after = before[-(limit // 2) :], after[: limit // 2]
        ahead, segments = b"", list[Segment]()
        for file in context:
            shown = f"{file.path}\n{file.text}".encode()
            if len(ahead) + len(shown) > context_limit:
                break
            ahead += shown
            segments.append(Segment(path=file.place, content=file.content, end=len(ahead)))
        return RenderedPrompt(
            tokens=(*ahead, FIM_PREFIX, *before, FIM_SUFFIX, *after, FIM_MIDDLE),
            segments=tuple(segments),
            stable=len(ahead) + 1,
            stop_token_ids=(EOS,),
        )

    def known_fill_in_middle(
        self, prefix: str, suffix: str, **arguments: Any
    ) -> RenderedPrompt | None:
        """As `TextCodec` has it: the same line as before, with something typed."""
        if self._around != _around(prefix, suffix):
            return None
        return self.fill_in_middle(prefix, suffix, **arguments)


def _around(prefix: str, suffix: str) -> tuple[str, str]:
    """What is the same while a line is typed, as far as a prompt may reach."""
    return prefix[: prefix.rfind("\n") + 1][-4096:], suffix[:4096]


class ScriptedDrafter:
    """Proposes what a script says comes next, right or wrong. script: the whole text, prompt
    included."""

    name = "scripted"

    def __init__(self, script: Sequence[int]) -> None:
        self._script = list(script)
        self._committed = 0

    def offer(self, limit: int) -> Offer:
        return Offer(self.name, len(self.propose(limit)))

    def propose(self, limit: int) -> list[int]:
        return self._script[self._committed : self._committed + limit]

    def commit(self, tokens: Sequence[int]) -> None:
        self._committed += len(tokens)


class FakeEngine:
    """A `Backend` that answers from a script.

    reply: the text for a request (default: ``"ok"``); raise a RequestError to fail it.
    round_tokens: tokens that one round commits; round_seconds: time it takes; prefill_seconds: one
    chunk of PREFILL_CHUNK prompt tokens.
    A cancelled request stops before its next token or chunk.
    dies_after: fail every reply after that many tokens, like an engine that dies.
    facts: fields of every `Finished` that have no script of their own, such as ``accepted``, the
    same for all or by request.
    costs: for the status.
    records: keep `seen` and `endings`, which grow with every request.
    `seen` records every request, `changed_files` what the cache was told of
    files, `steps` counts tokens produced per request id, `endings` holds
    the last event of each.
    """

    PREFILL_CHUNK = 64

    def __init__(
        self,
        reply: Callable[[GenerateRequest], str] | str = "ok",
        *,
        round_tokens: int = 1,
        round_seconds: float = 0.0,
        prefill_seconds: float = 0.0,
        dies_after: int | None = None,
        facts: Mapping[str, Any] | Callable[[GenerateRequest], Mapping[str, Any]] | None = None,
        context: int = 4096,
        loading: threading.Event | None = None,
        costs: CostCurve | None = None,
        records: bool = True,
    ) -> None:
        self._reply = reply if callable(reply) else lambda _request: reply
        self._round_tokens = round_tokens
        self._round_seconds = round_seconds
        self._prefill_seconds = prefill_seconds
        self._dies_after = dies_after
        self._facts = facts if callable(facts) else lambda _request: facts or {}
        self._context = context
        self._loading = loading
        self._costs = costs
        self._records = records
        self._inbox: queue.SimpleQueue[GenerateRequest | None] = queue.SimpleQueue()
        self._cancelled: set[str] = set()
        self._thread: threading.Thread | None = None
        self._state = "loading"
        self._totals = Totals()
        self.codec: Codec | None = None
        self.seen: list[GenerateRequest] = []
        self.changed_files: list[FileContent] = []
        self.steps: dict[str, int] = {}
        self.endings: dict[str, Finished | Failed] = {}

    def start(self, emit: Callable[[Event], None], changed: Callable[[], None]) -> None:
        self._emit = emit
        self._changed = changed
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
        self._thread.start()

    def post(self, request: GenerateRequest) -> None:
        self._inbox.put(request)

    def cancel(self, request_id: str) -> None:
        self._cancelled.add(request_id)

    def files_changed(self, files: Sequence[FileContent]) -> None:
        self.changed_files += files

    def cache(self, action: str) -> Future[CacheReport]:
        report: Future[CacheReport] = Future()
        report.set_result(CacheReport(status=CacheStatus()))
        return report

    def status(self) -> EngineStatus:
        return EngineStatus(
            state=self._state,
            detail="loading the script" if self._state == "loading" else "",
            model=fake_model(self._context) if self._state == "ready" else None,
            exactness=Exactness(exact=True, width=8, asked=8, prefill=True),
            drafters=("copy",),
            queued=self._inbox.qsize(),
            totals=self._totals,
            costs=self._costs,
        )

    def stop(self) -> None:
        if self._thread is not None:
            self._inbox.put(None)
            if self._loading is not None:
                self._loading.set()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        if self._loading is not None:
            self._loading.wait()
        self.codec = ByteCodec()
        self._state = "ready"
        self._changed()
        while (request := self._inbox.get()) is not None:
            if self._records:
                self.seen.append(request)
            ending = self._answer(request)
            if self._records:
                self.endings[request.id] = ending
            self._emit(ending)
        self._state = "stopped"
        self._changed()

    def _answer(self, request: GenerateRequest) -> Finished | Failed:
        prompt = len(request.prompt)
        if prompt >= self._context:
            error = ContextLengthExceeded(prompt, self._context)
            return Failed(id=request.id, code=error.code, message=error.message, field=error.field)
        try:
            tokens = list(self._reply(request).encode())
        except RequestError as refused:
            return Failed(
                id=request.id, code=refused.code, message=refused.message, field=refused.field
            )
        reason, done, text = "length", list[int](), ByteDetokenizer()
        limit = min(request.max_tokens or self._context, self._context - prompt)
        self.steps[request.id] = 0
        if not self._prefill(request):
            return self._finished(request, done, "cancelled")
        if request.warm:
            return self._finished(request, done, "warmed")
        tokens = [*tokens, EOS][:limit]
        for at in range(0, len(tokens), self._round_tokens):
            if request.id in self._cancelled:
                reason = "cancelled"
                break
            if len(done) == self._dies_after:
                return Failed(id=request.id, code="engine_error", message="the engine died")
            if self._round_seconds:
                time.sleep(self._round_seconds)
            committed = tokens[at : at + self._round_tokens]
            done += committed
            self.steps[request.id] += len(committed)
            alternatives = request.logprobs
            self._emit(
                Chunk(
                    id=request.id,
                    tokens=tuple(committed),
                    text="".join(map(text.add, committed)),
                    logprobs=()
                    if alternatives is None
                    else tuple(_logprob(token, alternatives) for token in committed),
                )
            )
            if committed[-1] == EOS:
                reason = "stop"
        return self._finished(request, done, reason)

    def _prefill(self, request: GenerateRequest) -> bool:
        """Whether the whole prompt went through before the request was cancelled."""
        total = len(request.prompt)
        for done in range(0, total, self.PREFILL_CHUNK):
            if request.id in self._cancelled:
                return False
            if self._prefill_seconds:
                time.sleep(self._prefill_seconds)
                self._emit(Prefilling(id=request.id, done=done, total=total, cached=0))
        self._emit(Prefilling(id=request.id, done=total, total=total, cached=0))
        return True

    def _finished(self, request: GenerateRequest, done: list[int], reason: str) -> Finished:
        finished = Finished(
            id=request.id,
            finish_reason=reason,
            tokens=tuple(done),
            token_hash=hashlib.sha256(struct.pack(f"<{len(done)}I", *done)).hexdigest(),
            seed=request.seed or 0,
            prompt_tokens=len(request.prompt),
            rounds=max(len(done) - 1, 0),
        )
        return msgspec.structs.replace(finished, **self._facts(request))


def _logprob(token: int, likely: int) -> TokenLogprob:
    """A token's neighbours are half as likely, and so on."""
    others = ((token + step) % (TURN + 1) for step in range(likely))
    return TokenLogprob(
        token, -0.5, tuple((other, -0.5 * (step + 1)) for step, other in enumerate(others))
    )


def fake_model(context: int = 4096) -> ModelInfo:
    """What `FakeEngine` says it has loaded."""
    return ModelInfo(
        id="fake",
        path="",
        family="fake",
        context=context,
        vocab_size=261,
        parameters=0,
        weight_bytes=0,
        cache_bytes_per_token=0,
        quantization="none",
        eos_token_ids=(EOS,),
        has_chat_template=True,
        has_fim=True,
        fingerprint="fake",
    )
