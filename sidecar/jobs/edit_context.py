"""The other files that an edit's prompt begins with: a message of their own, in the order of
`workspace/context.py`, so that what is asked, which changes most, comes behind them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from engine import EngineClient, RenderedPrompt, RequestError, Segment, instructions
from sidecar.workspace.view import Shown

log = logging.getLogger(__name__)


class Beside(Struct, frozen=True):
    """messages: one, or none where nothing fits. pieces: of each file its place, the content's hash
    and how many tokens it has."""

    messages: tuple[dict[str, str], ...] = ()
    pieces: tuple[tuple[str, bytes, int], ...] = ()

    def segments(self, end: int) -> tuple[Segment, ...]:
        """end: the prompt's length behind the message. A file's end may be a token off, where two
        files' tokens meet; what is kept there is of these tokens all the same."""
        found: list[Segment] = []
        if end <= sum(tokens for _, _, tokens in self.pieces):
            # The template does not say where the message ends.
            return ()
        for path, content, tokens in reversed(self.pieces):
            found.append(Segment(path=path, content=content, end=end))
            end -= tokens
        return tuple(found[::-1])


NOTHING_BESIDE = Beside()


async def beside(engine: EngineClient, shown: Shown, room: int) -> Beside:
    """The leading files that fit into `room` tokens."""
    texts: list[str] = []
    pieces: list[tuple[str, bytes, int]] = []
    for file in shown.files:
        text = instructions.shown_file(file.path, file.text, file.comment)
        tokens = len(await engine.encode(text))
        if tokens > room:
            break
        room -= tokens
        texts.append(text)
        pieces.append((file.place, file.content, tokens))
    if not texts:
        return NOTHING_BESIDE
    content = instructions.OTHER_FILES + "".join(texts)
    return Beside(({"role": "system", "content": content},), tuple(pieces))


async def prompt_behind(
    engine: EngineClient, around: Beside, asked: str, template: Mapping[str, Any]
) -> tuple[RenderedPrompt, tuple[Segment, ...]]:
    """A chat prompt that asks behind the other files; without them where the model's template has
    no place for such a message."""
    asking = {"role": "user", "content": asked}
    if around.messages:
        try:
            prompt = await engine.chat([*around.messages, asking], template=template)
            return prompt, around.segments(min(prompt.boundaries, default=0))
        except RequestError as error:
            log.debug("an edit without other files: %s", error)
    return await engine.chat([asking], template=template), ()
