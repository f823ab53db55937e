"""What a conversation's prompt shares with the one before it is tokenised once, and its stable ends
are looked for once: an agent's turn adds two messages to a hundred.

Control tokens are where tokenizers cut a text first, so the ids of a prompt up to one of them do
not depend on what follows, and those of the rest begin anew with it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.errors import RequestError

# Ends of messages that get a boundary; older ones are in the cache already, or will not be.
MAX_BOUNDARIES = 32
# What is remembered: the conversations that take turns, and what a long one of them may take.
MOST_PROMPTS, MOST_CHARACTERS = 8, 4 << 20

Turns = list[dict[str, Any]]
Render = Callable[[Turns, bool], str]


@dataclass(frozen=True)
class Rendered:
    """A prompt and how it was made. settings: all that rendering depends on besides the turns.

    spans: where in `sealed` each seal stands; ends: how many tokens there are up to it, itself
    included. stable: for a number of messages how many of its seals every prompt begins with that
    begins with these messages. passing: those of these numbers for which this prompt has fewer
    than others could. opening: the last role, and what stands behind all that is stable; whole:
    whether the next turn's prompt begins even with that.
    """

    settings: Any
    turns: Turns
    sealed: str
    tokens: list[int]
    spans: list[tuple[int, int]]
    ends: list[int]
    stable: dict[int, int] = field(default_factory=dict)
    passing: set[int] = field(default_factory=set)
    opening: tuple[str, str] = ("", "")
    whole: bool = False

    def shared_seals(self, sealed: str) -> int:
        """How many of its seals `sealed` begins with, and with all before them."""

        def differs(index: int) -> bool:
            return not sealed.startswith(self.sealed[: self.spans[index][1]])

        return bisect_left(range(len(self.spans)), True, key=differs)

    def shared_turns(self, settings: Any, turns: Turns) -> int:
        """How many of its messages `turns` begins with; -1 where nothing is rendered alike."""
        if settings != self.settings:
            return -1
        pairs = enumerate(zip(self.turns, turns, strict=False))
        return next((n for n, (a, b) in pairs if a != b), min(len(self.turns), len(turns)))

    def lasting(self, settings: Any, turns: Turns) -> dict[int, int]:
        """What of `stable` holds for a prompt of `turns`, if it begins with as many seals."""
        known = self.shared_turns(settings, turns)
        return {
            count: seals
            for count, seals in self.stable.items()
            if count <= known and count not in self.passing
        }


class PromptMemory:
    """encode: ids of a sealed text. controls: the ids of seals. spans: of the seals in a text.

    Thread-safe: what is remembered is replaced as a whole.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        controls: frozenset[int],
        spans: Callable[[str], list[tuple[int, int]]],
    ) -> None:
        self._encode = encode
        self._controls = controls
        self._spans = spans
        self._rendered: tuple[Rendered, ...] = ()

    def take(
        self, settings: Any, turns: Turns, sealed: str, render: Render, *, reasons: bool
    ) -> Rendered:
        """The prompt that `turns` became. render: the same for other turns, with or without the
        opening of a reply. reasons: whether the reply may begin with reasoning."""
        before, seals = None, 0
        for one in self._rendered:
            if (shared := one.shared_seals(sealed)) > seals:
                before, seals = one, shared
        tokens = self._tokens(sealed, before, seals)
        ends = [index + 1 for index, token in enumerate(tokens) if token in self._controls]
        made = Rendered(settings, turns, sealed, tokens, self._spans(sealed), ends)
        known = before.lasting(settings, turns) if before is not None else {}
        found: int | None = 0
        for count in sorted(_ends_of_messages(turns)):
            found = known.get(count)
            if found is None or found > seals:
                start = _stable_start(turns, count, render)
                length = _common_length(sealed, start)
                if length < len(start):
                    made.passing.add(count)
                found = bisect_right(made.spans, length, key=lambda span: span[1])
            made.stable[count] = found
        behind = sealed[made.spans[found - 1][1] if found else 0 :]
        made = replace(made, opening=(turns[-1]["role"], behind))
        if before is not None and (settings, made.opening) == (before.settings, before.opening):
            whole = before.whole
        else:
            whole = _goes_on(turns, sealed, render, reasons)
        made = replace(made, whole=whole)
        self._remember(made)
        return made

    def _tokens(self, sealed: str, before: Rendered | None, seals: int) -> list[int]:
        if before is not None:
            start, end = before.spans[seals - 1][0], before.ends[seals - 1]
            rest = self._encode(sealed[start:])
            # Or else this tokenizer puts something in front of a text.
            if rest[0] == before.tokens[end - 1]:
                return [*before.tokens[:end], *rest[1:]]
        return self._encode(sealed)

    def _remember(self, made: Rendered) -> None:
        if len(made.ends) != len(made.spans):
            # An unknown character is a control token to some tokenizers.
            return
        kept, characters = [made], len(made.sealed)
        for one in self._rendered:
            characters += len(one.sealed)
            # What goes on with a conversation takes its place.
            goes_on = one.shared_turns(made.settings, made.turns) == len(one.turns)
            if not goes_on and characters <= MOST_CHARACTERS and len(kept) < MOST_PROMPTS:
                kept.append(one)
        self._rendered = tuple(kept)


def _ends_of_messages(turns: Sequence[Any]) -> set[int]:
    """Behind how many messages a boundary is wanted."""
    lead = next((index for index, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    return {lead, *range(max(lead + 1, len(turns) - MAX_BOUNDARIES + 1), len(turns) + 1)}


def _stable_start(turns: Turns, count: int, render: Render) -> str:
    """How every prompt begins whose conversation begins with `count` of these messages; empty if
    the template refuses to tell.

    A template may show a message differently once another follows (it drops old reasoning, it
    opens a reply), so what the messages share is measured against a rendering in which one more
    follows. Cut at its last seal, such a start also has its own token ids.
    """
    last = turns[count - 1]["role"] if count else "system"
    probe = {"role": "assistant" if last == "user" else "user", "content": "."}
    rendered = []
    for part in (turns[:count], [*turns[:count], probe]):
        # A template may refuse a conversation that ends here; then the other one decides.
        try:
            rendered.append(render(part, False))
        except RequestError:
            continue
    if not rendered:
        return ""
    return rendered[0][: _common_length(rendered[0], rendered[-1])]


def _goes_on(turns: Turns, sealed: str, render: Render, reasons: bool) -> bool:
    """Whether the prompt with this turn's reply and the next question begins with all of `sealed`,
    the opening of the reply included. Nearly always with its tokens, too: where a reply begins
    with white space, the last of them may be other ones."""
    if turns[-1]["role"] == "assistant":
        return False
    replies = [{"role": "assistant", "content": "."}]
    if reasons:
        replies.append({**replies[0], "thinking": ".", "reasoning_content": "."})
    for reply in replies:
        try:
            further = render([*turns, reply, {"role": "user", "content": "."}], False)
        except RequestError:
            return False
        if not further.startswith(sealed):
            return False
    return True


def _common_length(first: str, second: str) -> int:
    """Length of the common prefix."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
