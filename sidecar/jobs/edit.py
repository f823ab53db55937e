"""Change code as told: what `pillion edit`, `pillion/edit` and code actions ask for.

The prompt is the instruction and then the code, so that many edits with one instruction share the
beginning of their prompts. Most of an edit is its input, so the copy drafter is told to expect the
code as it is: it drafts from the answer's first token on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct

from engine import (
    Chunk,
    EngineClient,
    Failed,
    Finished,
    GenerateRequest,
    Piece,
    PieceReader,
    Priority,
    RequestError,
    Said,
    error_of,
    instructions,
)
from sidecar.config import EditConfig
from sidecar.edits.hunks import LineHunk, line_hunks, rewritten
from sidecar.edits.indentation import with_margin, without_margin
from sidecar.edits.reply import fence_for, has_markers, replaced_blocks, rewritten_region
from sidecar.edits.text_file import with_newlines
from sidecar.edits.validation import check_region
from sidecar.edits.writable_root import Refused
from sidecar.jobs.chat import reasoning_variables
from sidecar.jobs.edit_context import beside, prompt_behind
from sidecar.workspace.positions import split_lines
from sidecar.workspace.view import NOTHING, Shown

Form = Literal["rewrite", "blocks"]
# Of a prompt beside its code and instruction, and of an answer beside the code.
_AROUND_CODE = 64
_FEWEST_ANSWER_TOKENS = 32


class EditRequest(Struct, frozen=True, kw_only=True):
    """text: the whole document, with its own line ends. first, last: lines from 0, `last` is the
    one behind; None is the end. language: as a fence names it. most_changed: see
    `check_region`. shared: where the prompts of several edits part, see `shared_prefix`. shown:
    what goes along from other files, in at most `shown_tokens`."""

    text: str
    instruction: str
    first: int = 0
    last: int | None = None
    language: str = ""
    most_changed: float = 1.0
    draft: bool = True
    drafters: tuple[str, ...] = ()
    priority: Priority = Priority.INTERACTIVE
    session: str | None = None
    shared: int = 0
    shown: Shown = NOTHING
    shown_tokens: int = 0


class Edit(Struct, frozen=True, kw_only=True):
    """text: the whole document after the edit. hunks: what changed in it. first, last: the lines
    that were asked about. finished: the engine's account."""

    text: str
    hunks: tuple[LineHunk, ...]
    first: int
    last: int
    form: Form
    finished: Finished


class Region(Struct, frozen=True):
    r"""Whole lines of a document: `code` has ``\n`` and no margin, `before` and `after` are the
    rest of the document."""

    first: int
    last: int
    before: str
    own: str
    after: str
    margin: str
    code: str

    def with_code(self, code: str) -> str:
        """The document with other code in the place of this."""
        return self.before + rewritten(self.own, with_margin(self.margin, code)) + self.after


def region_of(text: str, first: int = 0, last: int | None = None) -> Region:
    """Lines `first` up to `last` without the blank ones at both ends. Raises RequestError where
    nothing is left."""
    lines = split_lines(text)
    last = len(lines) if last is None else min(last, len(lines))
    while first < last and not lines[first].strip():
        first += 1
    while last > first and not lines[last - 1].strip():
        last -= 1
    if not first < last:
        raise RequestError("there is no code in these lines", field="range")
    before, own = "".join(lines[:first]), "".join(lines[first:last])
    margin, code = without_margin(with_newlines(own).removesuffix("\n"))
    return Region(first, last, before, own, "".join(lines[last:]), margin, code)


def _untold(share: float) -> None:
    """Nobody asks how far an edit is."""


async def edit(
    engine: EngineClient,
    config: EditConfig,
    request: EditRequest,
    written: Callable[[float], None] = _untold,
) -> Edit:
    """written: called with how much of the answer there is, 0 to 1, as far as that can be known.
    Raises Refused where the answer cannot be taken, RequestError, NotReady, EngineError.
    Cancelling the task cancels the engine's work."""
    if not request.instruction.strip():
        raise RequestError("the instruction is empty", field="instruction")
    region = region_of(request.text, request.first, request.last)
    fence = fence_for(region.code)
    expected = await engine.encode(unchanged_answer(region.code, request.language, fence))
    form = _form(engine, config, region.code, len(expected))
    around = await beside(engine, request.shown, _room(engine, request, len(expected)))
    prompt, segments = await prompt_behind(
        engine, around, _asked(request, region.code, form, fence), reasoning_variables("off")
    )
    limit = _limit(engine, len(prompt.tokens))
    shared = (request.shared,) if 0 < request.shared < len(prompt.tokens) else ()
    generate = GenerateRequest(
        id=engine.new_id("edit"),
        prompt=prompt.tokens,
        max_tokens=limit,
        stop_token_ids=prompt.stop_token_ids,
        must_start_with=prompt.must_start_with,
        boundaries=(*shared, *(end for end in prompt.boundaries if end not in shared)),
        segments=segments,
        draft=request.draft,
        drafters=request.drafters,
        priority=request.priority,
        session=request.session,
        prediction=tuple(expected) if form == "rewrite" else (),
    )
    # An answer in blocks may be of any length.
    length = len(region.code) if form == "rewrite" else 0
    reader = engine.reader(None, reasoning=prompt.reasoning)
    reply, finished = await _reply(engine, generate, reader, length, written)
    if finished.finish_reason == "length":
        raise Refused(f"the answer does not end within {limit} tokens")
    if form == "rewrite":
        code = rewritten_region(reply, fence)
    else:
        code = replaced_blocks(region.code + "\n", reply).removesuffix("\n")
    check_region(region.code, code, request.most_changed)
    text = region.with_code(code)
    return Edit(
        text=text,
        hunks=line_hunks(request.text, text),
        first=region.first,
        last=region.last,
        form=form,
        finished=finished,
    )


def unchanged_answer(code: str, language: str, fence: str = "```") -> str:
    """What a model answers that leaves the code as it is; most answers are nearly that."""
    return f"{fence}{language}\n{code}\n{fence}"


async def shared_prefix(engine: EngineClient, instruction: str, language: str) -> int:
    """How many tokens the prompts of all edits with one instruction begin with alike: a length
    at which the cache should keep its state."""
    prompts = [
        await engine.chat(
            [{"role": "user", "content": instructions.change(instruction, code, language)}],
            template=reasoning_variables("off"),
        )
        for code in ("a", "(b")
    ]
    pairs = zip(prompts[0].tokens, prompts[1].tokens, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), 0)


def _form(engine: EngineClient, config: EditConfig, code: str, tokens: int) -> Form:
    """Whole regions are rewritten as long as they are short and the answer has room. tokens: of the
    answer that leaves the code as it is."""
    lines = code.count("\n") + 1
    model = engine.status().model
    fits = model is None or 2 * tokens + _AROUND_CODE < model.context
    if fits and (lines <= config.rewrite_lines or has_markers(code)):
        return "rewrite"
    if has_markers(code):
        raise Refused("is too long for the model and has lines like those of a merge conflict")
    return "blocks"


def _room(engine: EngineClient, request: EditRequest, expected: int) -> int:
    """Tokens for other files: what code, instruction and answer leave, and half of that at most.
    expected: see `_form`'s tokens."""
    model = engine.status().model
    left = model.context - 3 * expected - 4 * _AROUND_CODE if model is not None else 0
    return min(request.shown_tokens, max(left, 0) // 2)


def _asked(request: EditRequest, code: str, form: Form, fence: str) -> str:
    instruction = request.instruction.strip()
    if form == "rewrite":
        return instructions.change(instruction, code, request.language, fence)
    return instructions.change_by_blocks(instruction, code, request.language, fence)


def _limit(engine: EngineClient, prompt_tokens: int) -> int:
    """Tokens of the answer. The prompt has the code in it, so twice that is room for any edit."""
    model = engine.status().model
    context = model.context if model is not None else 2 * prompt_tokens
    if context - prompt_tokens < _FEWEST_ANSWER_TOKENS:
        raise Refused(f"is too long: its prompt has {prompt_tokens} tokens of {context}")
    return min(context - prompt_tokens, 2 * prompt_tokens + 4 * _AROUND_CODE)


async def _reply(
    engine: EngineClient,
    generate: GenerateRequest,
    reader: PieceReader,
    length: int,
    written: Callable[[float], None],
) -> tuple[str, Finished]:
    """What is said, without what is thought before."""
    text = ""
    async with engine.generate(generate) as reply:
        async for event in reply:
            if isinstance(event, Chunk):
                text += _said(reader.feed(event.text))
                if length:
                    written(min(1.0, len(text) / length))
            elif isinstance(event, Failed):
                raise error_of(event)
            elif isinstance(event, Finished):
                text += _said(reader.finish(complete=event.finish_reason == "stop"))
                return generate.must_start_with + text, event
    raise AssertionError("a reply ends with Finished or Failed")


def _said(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Said))
