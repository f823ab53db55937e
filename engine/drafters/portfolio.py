"""The drafters of one sequence, side by side.

No mlx here: what a drafter computes with is its own business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from engine.drafters.drafter import Drafter, Offer


class ContextDrafter(Drafter, Protocol):
    """A drafter that reads the target's hidden states (DFlash)."""

    def observe(self, hidden: Any) -> None:
        """Take in the tapped rows, (n, taps * H), of the next n tokens in the target's cache."""

    def catch_up(self) -> None:
        """Read what was observed now, rather than when a draft needs it."""

    def rows(self, length: int) -> Any:
        """What it knows of the first `length` tokens, for a prefix snapshot."""

    def restore(self, context: Any) -> None:
        """Begin again from such a snapshot."""

    def read_on(self) -> None:
        """Read what `restore` brought, and wait until it is read."""


class Portfolio:
    """Whoever does not draft stays in step: all see every committed token, and the context
    drafter every row that enters the target's cache.

    prediction: of a reply that one is known for. grammar: set for a reply that is held to one. It
    drafts what the grammar forces.
    """

    def __init__(
        self,
        copy: Drafter | None,
        context: ContextDrafter | None,
        prediction: Drafter | None = None,
    ) -> None:
        self.context = context
        self.grammar: Drafter | None = None
        # Those that read tokens alone.
        self._readers = [one for one in (prediction, copy) if one is not None]
        # Tokens that these have not read yet; None when all are read as they come.
        self._unread: list[int] | None = None

    def resume(self, tokens: Sequence[int], context: Any) -> None:
        """Begin behind `tokens`, which are in the target's cache already, with what the context
        drafter knew of them. Reading them waits for `read_on`: the first token does not need it."""
        self._unread = list(tokens)
        if self.context is not None:
            self.context.commit(tokens)
            self.context.restore(context)

    def read_on(self) -> None:
        """Read what `resume` put off, before the first draft."""
        if self._unread is None:
            return
        unread, self._unread = self._unread, None
        for reader in self._readers:
            reader.commit(unread)
        if self.context is not None:
            self.context.read_on()

    def drop_context(self) -> None:
        """Do without the context drafter in this reply: it then need not read along."""
        self.context = None

    def offers(self, limit: int) -> list[Offer]:
        """What each could draft now, of at most `limit` tokens; those that have nothing are left
        out. Where the grammar leaves no choice, nobody else is asked."""
        if self.grammar is not None and (forced := self.grammar.offer(limit)).drafts:
            return [forced]
        offers = [reader.offer(limit) for reader in self._readers]
        if self.context is not None:
            offers.append(self.context.offer(limit))
        return [offer for offer in offers if offer.drafts > 0]

    def propose(self, drafter: str, drafts: int) -> list[int]:
        """At most `drafts` tokens of the drafter of that name."""
        for one in (self.grammar, *self._readers, self.context):
            if one is not None and one.name == drafter:
                return one.propose(drafts)
        return []

    def commit(self, tokens: Sequence[int]) -> None:
        if self._unread is not None:
            self._unread += tokens
        else:
            for reader in self._readers:
                reader.commit(tokens)
        if self.context is not None:
            self.context.commit(tokens)

    def observe(self, hidden: Any) -> None:
        """Hand the rows of tokens that are now in the target's cache to whoever reads them."""
        if self.context is not None:
            self.context.observe(hidden)

    def catch_up(self) -> None:
        """Read the prompt while it is prefilled: then the first round need not."""
        if self.context is not None:
            self.context.catch_up()
