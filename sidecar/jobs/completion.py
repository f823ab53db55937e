"""Fill the gap at a cursor: what inline completion, `pillion/complete` and the CLI ask for."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from engine import (
    Chunk,
    EngineClient,
    Failed,
    Finished,
    GenerateRequest,
    Priority,
    RenderedPrompt,
    Sampling,
    error_of,
)
from sidecar.config import CompletionConfig, WorkspaceConfig
from sidecar.jobs.suggestion import Ending, Gap, Multiline, Settled, may_decide, settle
from sidecar.workspace.view import NOTHING, Shown

# The smallest model that is known to be trained on repositories has half a billion parameters
# (Qwen2.5-Coder). Much smaller ones gain nothing by other files: the rest of 40 lines of our own
# code costs the built-in one 3.05 nats a token with them and 3.07 without, better in 20 of the 40.
_MIN_PARAMETERS = 300_000_000
# Code has 3 to 4 characters a token; runs of indentation have many more.
_CHARACTERS_PER_TOKEN = 12


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """prefix / suffix: the text up to and from the cursor. path: as the model should see it.
    shown: what goes along from other files, in at most `shown_tokens`. max_tokens / multiline: the
    configuration's where None."""

    prefix: str
    suffix: str = ""
    path: str | None = None
    shown: Shown = NOTHING
    shown_tokens: int = 0
    max_tokens: int | None = None
    multiline: Multiline | None = None
    sampling: Sampling = Sampling()
    seed: int | None = None
    draft: bool = True
    priority: Priority = Priority.INTERACTIVE
    session: str | None = None


class Completion(Struct, frozen=True, kw_only=True):
    """text: what to insert at the cursor; empty when there is nothing worth showing.
    finish_reason: ``stop`` (the model's end, or the block's) or ``length``.
    finished: the engine's account; None when it was not waited for."""

    text: str
    finish_reason: Ending
    finished: Finished | None = None


def reach(config: CompletionConfig) -> int:
    """How many characters on each side of the cursor can matter to a prompt."""
    return config.prompt_tokens * _CHARACTERS_PER_TOKEN


async def complete(
    engine: EngineClient,
    config: CompletionConfig,
    request: CompletionRequest,
    *,
    account: bool = True,
) -> Completion:
    """Complete at the cursor. The engine is told to stop as soon as the text is decided.

    account: wait for the engine's own ending too (at most one more round) and return it.
    Raises NotReady, RequestError or EngineError. Cancelling the task cancels the engine's work.
    """
    prefix, suffix = request.prefix[-reach(config) :], request.suffix[: reach(config)]
    gap = Gap(prefix, suffix, request.multiline or config.multiline)
    max_tokens = request.max_tokens or config.max_tokens
    prompt = await prompt_of(engine, config, request)
    generate = GenerateRequest(
        id=engine.new_id("complete"),
        prompt=prompt.tokens,
        max_tokens=max_tokens,
        sampling=request.sampling,
        seed=request.seed,
        stop_token_ids=prompt.stop_token_ids,
        must_start_with=prompt.must_start_with,
        boundaries=prompt.boundaries,
        segments=prompt.segments,
        draft=request.draft,
        priority=request.priority,
        session=request.session,
    )
    return await fill(engine, generate, gap, account=account)


async def fill(
    engine: EngineClient, generate: GenerateRequest, gap: Gap, *, account: bool = True
) -> Completion:
    """The reply to `generate`, as far as it belongs into `gap`. See `complete`."""
    text, settled = "", Settled("", False)
    async with engine.generate(generate) as reply:
        async for event in reply:
            if isinstance(event, Chunk) and event.text and not settled.decided:
                text += event.text
                if may_decide(text, event.text):
                    settled = settle(text, gap)
                if settled.decided:
                    reply.cancel()
                    if not account:
                        return Completion(text=settled.text, finish_reason="stop")
            elif isinstance(event, Failed):
                raise error_of(event)
            elif isinstance(event, Finished):
                ending: Ending = "stop"
                if not settled.decided:
                    ending = "length" if event.finish_reason == "length" else "stop"
                    settled = settle(text, gap, ending)
                return Completion(text=settled.text, finish_reason=ending, finished=event)
    raise AssertionError("a reply ends with Finished or Failed")


async def prompt_of(
    engine: EngineClient, config: CompletionConfig, request: CompletionRequest
) -> RenderedPrompt:
    """The prompt that a completion is decoded from. Raises NotReady or RequestError."""
    room, shown = _budget(engine, config, request)
    context: dict[str, Any] = {}
    if request.shown.files and shown > 0:
        context = {
            "project": request.shown.project,
            "context": request.shown.files,
            "context_limit": shown,
        }
    return await engine.fill_in_middle(
        _with_newlines(request.prefix[-reach(config) :]),
        _with_newlines(request.suffix[: reach(config)]),
        path=request.path,
        limit=room,
        **context,
    )


def uses_context(config: WorkspaceConfig, engine: EngineClient) -> bool:
    """Whether other files go along with prompts for the model that is loaded."""
    model = engine.status().model
    if config.context == "auto":
        # Of an upstream's nothing is known but that it outgrew this machine.
        large = model is not None and model.parameters >= _MIN_PARAMETERS
        return large or (model is not None and model.family == "upstream")
    return config.context == "on"


def _budget(
    engine: EngineClient, config: CompletionConfig, request: CompletionRequest
) -> tuple[int, int]:
    """Tokens for the edited file and for others. Room for the reply comes first, but never more
    than half of a small context; others get no more than half of what is left then."""
    model = engine.status().model
    if model is None:
        return config.prompt_tokens, request.shown_tokens
    reply = request.max_tokens or config.max_tokens
    left = model.context - min(reply, model.context // 2)
    shown = min(request.shown_tokens, left // 2) if request.shown.files else 0
    return min(config.prompt_tokens, left - shown), shown


def _with_newlines(text: str) -> str:
    r"""Models are trained on ``\n``; the suggestion gets the document's line ends back."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
