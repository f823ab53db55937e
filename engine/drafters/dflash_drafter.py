"""One sequence's DFlash drafter: which context it has seen, and what it guesses next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from engine.decoding.sampling import choose
from engine.drafters.context_cache import PositionedRows
from engine.drafters.dflash import DFlashModel
from engine.drafters.drafter import Offer
from engine.messages import Sampling

# Rows that are kept at most before they are taken in although nothing is drafted: they are as wide
# as all tapped layers together.
MOST_WAITING = 1024


class TappedRows(NamedTuple):
    """The first `kept` of tapped rows (n, taps * H): a slice would be one more thing to wait
    for."""

    rows: mx.array
    kept: int


@dataclass(frozen=True)
class ContextRows:
    """Projected context rows (1, S, H) of positions [start, start + S), for a prefix snapshot."""

    start: int
    rows: mx.array

    @property
    def end(self) -> int:
        return self.start + int(self.rows.shape[1])

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes)

    def first(self, length: int) -> ContextRows:
        """What is known of the first `length` tokens."""
        if length <= self.start:
            return ContextRows.empty(length)
        return ContextRows(self.start, self.rows[:, : length - self.start])

    @staticmethod
    def empty(length: int) -> ContextRows:
        """Nothing known of the first `length` tokens."""
        return ContextRows(length, mx.zeros((1, 0, 1)))


class DFlashDrafter:
    """Drafts up to `block_size - 1` tokens behind the last committed one.

    A smaller limit shortens the block, as in the official loop, instead of cutting a full one. In
    a block that is not causal that changes the drafts, but hardly how good they are; tokens a round
    with a block of 8 cut or shortened to fit the width (greedy, ten held-out standard library
    files, a small hybrid target and its first-version drafter):

    =====  =====  =========
    width  cut    shortened
    =====  =====  =========
    5      1.500  1.500
    4      1.486  1.484
    3      1.461  1.459
    2      1.387  1.391
    =====  =====  =========

    `observe` keeps it in step with the target's cache also while another drafter, or none, is
    drafting. That costs nothing until the next draft: rows are only kept, and are projected and
    enter the layers' caches all together then, or by `catch_up`.

    embed: token ids (1, B) -> the target's embedding rows (1, B, H), with its own scale.
    head: (n, H) -> the target's logits (n, V).
    sampling, seed: of the request. The same seed gives the verifier's noise; another one makes a
    drafter with noise of its own.
    """

    name = "dflash"

    def __init__(
        self,
        model: DFlashModel,
        *,
        embed: Callable[[mx.array], mx.array],
        head: Callable[[mx.array], mx.array],
        sampling: Sampling,
        seed: int = 0,
    ) -> None:
        self._model = model
        self._embed = embed
        self._head = head
        self._sampling = sampling
        self._seed = seed
        self._rows = PositionedRows(model.config.reach)
        self._waiting: list[TappedRows] = []
        self._behind = 0
        self._caches = model.new_caches()
        self._appended = 0
        # Whether rows of a snapshot wait for `read_on`.
        self._restored = False
        self._committed = 0
        self._anchor: int | None = None

    @property
    def length(self) -> int:
        """How many tokens the context stands for: as many as the target's cache holds."""
        return self._rows.end + self._behind

    def observe(self, hidden: mx.array | TappedRows) -> None:
        """Take in the tapped residual streams, (n, taps * H), of the next n tokens that are now
        in the target's cache, oldest first."""
        if not isinstance(hidden, TappedRows):
            hidden = TappedRows(hidden, hidden.shape[0])
        self._waiting.append(hidden)
        self._behind += hidden.kept
        if self._behind >= MOST_WAITING:
            self.catch_up()

    def catch_up(self) -> None:
        """Take what was observed into the layers' caches, without waiting for the device; only
        into the rows as long as a snapshot's wait in front of it."""
        self._project()
        if not self._restored:
            self._append_pending()
        # Unevaluated rows would hold on to the target's hidden states.
        arrays = [self._rows.arrays(), *(cache.arrays() for cache in self._caches)]
        # mlx's stub gives this one no types.
        mx.async_eval(arrays)  # type: ignore[no-untyped-call]

    def read_on(self) -> None:
        """Take a snapshot's rows into the layers' caches, and wait for the device."""
        self._project()
        self._append_pending()
        mx.eval([cache.arrays() for cache in self._caches])

    def _project(self) -> None:
        """Take what waits into the rows."""
        if not self._waiting:
            return
        parts = [part.rows[: part.kept] for part in self._waiting]
        hidden = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        self._waiting.clear()
        self._behind = 0
        reach = self._model.config.reach
        seen = hidden if reach is None else hidden[-reach:]
        self._rows.skip(hidden.shape[0] - seen.shape[0])
        self._rows.append(self._model.project(seen))

    def commit(self, tokens: Sequence[int]) -> None:
        self._committed += len(tokens)
        if tokens:
            self._anchor = tokens[-1]

    def offer(self, limit: int) -> Offer:
        room = self._model.config.block_size - 1
        drafts = max(0, min(limit, room)) if self._anchor is not None else 0
        return Offer(self.name, drafts, behind=self.length - self._appended)

    def propose(self, limit: int) -> list[int]:
        config = self._model.config
        if limit < 1 or self._anchor is None:
            return []
        if self._committed != self.length + 1:
            raise ValueError(
                f"the drafter has context for {self.length} of {self._committed} tokens; all but "
                "the last are needed"
            )
        masks = min(limit, config.block_size - 1)
        if (drafts := self._in_one_call(masks)) is not None:
            return drafts
        self._project()
        self._append_pending()
        embedded = self._embed(mx.array([[self._anchor] + [config.mask_token_id] * masks]))
        hidden = self._model(embedded, self._caches)[0, 1:]
        logits = self._model.scale_logits(self._head(hidden.astype(embedded.dtype)))
        positions = range(self._committed, self._committed + hidden.shape[0])
        if config.has_selector:
            return self._model.candidate_selector.select(
                hidden, logits, self._anchor, positions, self._sampling, self._seed
            )
        tokens: list[int] = np.array(choose(logits, positions, self._sampling, self._seed)).tolist()
        # -1 stands for a row without a choice (NaN); what comes behind it is worth nothing.
        return tokens[: tokens.index(-1)] if -1 in tokens else tokens

    def _in_one_call(self, masks: int) -> list[int] | None:
        """The drafts by the model's kernel, where it has one and the kernel can; it takes in what
        waits. Rows that came otherwise are in the layers' caches already."""
        stack = self._model.stack
        if stack is None or not stack.fits(self._sampling) or self._appended != self._rows.end:
            return None
        added, position = self._behind, self._rows.end + self._behind
        rows = self._rows.room(added)
        rooms = [cache.room(added + masks + 1) for cache in self._caches]
        caches = [room for room in rooms if room is not None]
        if rows is None or len(caches) < len(rooms):
            return None
        assert self._anchor is not None
        first = [cache.oldest for cache in self._caches]
        tokens = stack.propose(
            self._waiting,
            rows,
            caches,
            first,
            position,
            self._anchor,
            masks,
            self._sampling,
            self._seed,
        )
        self._waiting.clear()
        self._behind = 0
        self._rows.grew(added)
        for cache in self._caches:
            cache.grew(added)
        self._appended = self._rows.end
        return tokens

    def rows(self, length: int) -> ContextRows:
        """The context rows still held of the first `length` tokens, as a copy."""
        self._project()
        start = min(self._rows.start, length)
        if start == length:
            return ContextRows.empty(length)
        return ContextRows(start, mx.contiguous(self._rows.view(start, length)))

    def restore(self, context: ContextRows) -> None:
        """Begin again from a snapshot: the context is then that of `context.end` tokens.

        Rows that it lacks are never seen; an empty one is a context that begins at its position.
        """
        self._waiting.clear()
        self._behind = 0
        self._rows = PositionedRows(self._model.config.reach, context.start)
        reach = self._model.config.reach
        if reach is not None and context.rows.shape[1] > reach:
            context = ContextRows(context.end - reach, context.rows[:, -reach:])
            self._rows = PositionedRows(reach, context.start)
        if context.rows.shape[1]:
            self._rows.append(context.rows)
        self._caches = self._model.new_caches(self._rows.start)
        self._appended = self._rows.start
        self._restored = self._appended < self._rows.end

    def _append_pending(self) -> None:
        self._restored = False
        if self._appended == self._rows.end:
            return
        if self._appended < self._rows.start:
            # It was idle for longer than any layer looks back.
            self._caches = self._model.new_caches(self._rows.start)
            self._appended = self._rows.start
        self._model.append(self._rows.view(self._appended, self._rows.end), self._caches)
        self._appended = self._rows.end
