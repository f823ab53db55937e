"""Acceptance traces: what every drafter would have got right at every token of a text.

With one, a reply can be decoded again on paper: any choice of drafter and width, at any cost.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from engine.decoding.round_log import Round
from engine.decoding.surplus import Choice
from engine.drafters.drafter import Offer
from engine.errors import ModelError

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Text(Protocol):
    """What `engine.replay.simulation` decodes."""

    name: str

    def __len__(self) -> int:
        """Tokens to decode."""

    def regime(self, position: int) -> str: ...

    def offers(self, position: int) -> list[Offer]: ...

    def right(self, position: int, offer: Offer, choice: Choice | None) -> int:
        """How many drafts of an offer (at most all) the target would have chosen too. An
        adversary looks at the choice; None asks for a fixed width's sake."""


class Drafted(Struct, frozen=True, kw_only=True):
    """One drafter, a base-36 digit a token: drafts offered, how many of them were right, and the
    confidence (all 0 if empty)."""

    offered: str
    right: str
    confidence: str = ""


class Trace(Struct, frozen=True, kw_only=True):
    """regimes: (name, tokens) in order."""

    name: str
    regimes: tuple[tuple[str, int], ...]
    drafters: dict[str, Drafted]

    def __post_init__(self) -> None:
        tokens = len(self)
        for name, drafted in self.drafters.items():
            lengths = {len(drafted.offered), len(drafted.right), len(drafted.confidence) or tokens}
            if lengths != {tokens}:
                raise ModelError(f"trace {self.name}: {name} must have {tokens} digits each")

    def __len__(self) -> int:
        return sum(tokens for _, tokens in self.regimes)

    def text(self) -> RecordedText:
        return RecordedText(self)


def trace_of(name: str, rounds: Iterable[Round]) -> Trace:
    """The trace of a reply that was decoded with the ``watch`` policy: a round for each token."""
    rounds = list(rounds)
    names = sorted({ask.drafter for one in rounds for ask in one.asks})
    columns: dict[str, list[tuple[int, int, int]]] = {drafter: [] for drafter in names}
    for one in rounds:
        if one.committed != 1:
            raise ModelError(f"trace {name}: a round committed {one.committed} tokens")
        seen = {
            ask.drafter: (given, right, ask.confidence)
            for ask, given, right in zip(one.asks, one.given, one.right, strict=True)
        }
        for drafter in names:
            columns[drafter].append(seen.get(drafter, (0, 0, 0)))
    return Trace(
        name=name,
        regimes=tuple(
            (regime, sum(1 for _ in group))
            for regime, group in itertools.groupby(one.regime for one in rounds)
        ),
        drafters={
            drafter: Drafted(
                offered=_text([given for given, _, _ in rows]),
                right=_text([right for _, right, _ in rows]),
                confidence=_text([confidence for _, _, confidence in rows]),
            )
            for drafter, rows in columns.items()
        },
    )


def joined(name: str, traces: Sequence[Trace]) -> Trace:
    """One text after the other."""
    names = dict.fromkeys(drafter for trace in traces for drafter in trace.drafters)
    columns: dict[str, list[Drafted]] = {drafter: [] for drafter in names}
    for trace in traces:
        idle = "0" * len(trace)
        nothing = Drafted(offered=idle, right=idle, confidence=idle)
        for drafter in names:
            drafted = trace.drafters.get(drafter, nothing)
            columns[drafter].append(
                msgspec.structs.replace(drafted, confidence=drafted.confidence or idle)
            )
    return Trace(
        name=name,
        regimes=tuple(itertools.chain.from_iterable(trace.regimes for trace in traces)),
        drafters={
            drafter: Drafted(
                offered="".join(d.offered for d in drafted),
                right="".join(d.right for d in drafted),
                confidence="".join(d.confidence for d in drafted),
            )
            for drafter, drafted in columns.items()
        },
    )


class RecordedText:
    """A `Trace` as a `Text`."""

    def __init__(self, trace: Trace) -> None:
        self.name = trace.name
        self._regimes = [name for name, tokens in trace.regimes for _ in range(tokens)]
        self._drafters = [
            (
                name,
                _numbers(d.offered),
                _numbers(d.right),
                _numbers(d.confidence or "0" * len(trace)),
            )
            for name, d in trace.drafters.items()
        ]
        self._right = {name: right for name, _, right, _ in self._drafters}

    def __len__(self) -> int:
        return len(self._regimes)

    def regime(self, position: int) -> str:
        return self._regimes[position]

    def offers(self, position: int) -> list[Offer]:
        return [
            Offer(name, offered[position], confidence[position])
            for name, offered, _, confidence in self._drafters
            if offered[position]
        ]

    def right(self, position: int, offer: Offer, choice: Choice | None) -> int:
        return min(self._right[offer.drafter][position], offer.drafts)


def _numbers(digits: str) -> list[int]:
    return [int(digit, 36) for digit in digits]


class Kind(NamedTuple):
    """A kind of text: how drafters do in it.

    dflash: the probability that a draft is right if those before it are, by position; the last
    one goes on. copied, fresh: mean lengths of runs that stand earlier in the text, and of what
    is between them. bogus: how often there something matches all the same.
    """

    regime: str
    dflash: tuple[float, ...]
    copied: float = 0.0
    fresh: float = 1.0
    bogus: float = 0.1


REWRITE = Kind("code", (0.93, 0.91, 0.9, 0.88), copied=60, fresh=3, bogus=0.2)
NEW_CODE = Kind("code", (0.85, 0.8, 0.76, 0.72, 0.7, 0.68), copied=7, fresh=25)
REASONING = Kind("reasoning", (0.72, 0.68, 0.65, 0.6), copied=4, fresh=60)
PROSE = Kind("prose", (0.5, 0.42, 0.38), copied=3, fresh=80)
TOOL_CALL = Kind("tool_call", (0.12, 0.1), copied=3, fresh=30)
HOPELESS = Kind("prose", (0.0,), fresh=50, bogus=0.3)
KINDS = {
    "rewrite": REWRITE,
    "new code": NEW_CODE,
    "reasoning": REASONING,
    "prose": PROSE,
    "tool call": TOOL_CALL,
    "hopeless": HOPELESS,
}


def stationary(name: str, kind: Kind, tokens: int, block: int, seed: int) -> Trace:
    """The same kind of text throughout. block: drafts at most."""
    return assembled(name, [(kind, tokens)], block, seed)


def switching(name: str, kinds: Sequence[Kind], tokens: int, block: int, seed: int) -> Trace:
    """The kind of text changes every 50 to 400 tokens."""
    chance = random.Random(seed)
    spans, left, last = [], tokens, None
    while left:
        length = min(chance.randint(50, 400), left)
        last = chance.choice([kind for kind in kinds if kind is not last])
        spans.append((last, length))
        left -= length
    return assembled(name, spans, block, seed)


def assembled(name: str, spans: Sequence[tuple[Kind, int]], block: int, seed: int) -> Trace:
    """Spans of text of given kinds and lengths, drawn with `seed`."""
    chance = random.Random(seed)
    columns: dict[str, list[list[int]]] = {"dflash": [[], []], "copy": [[], [], []]}
    for kind, tokens in spans:
        rates = [*kind.dflash, *[kind.dflash[-1]] * block][:block]
        for _ in range(tokens):
            columns["dflash"][0].append(block)
            columns["dflash"][1].append(_run(chance, rates))
        for column, more in zip(columns["copy"], _copied(chance, kind, tokens, block), strict=True):
            column += more
    drafters = {
        drafter: Drafted(
            offered=_text(rows[0]), right=_text(rows[1]), confidence="".join(map(_text, rows[2:]))
        )
        for drafter, rows in columns.items()
    }
    return Trace(
        name=name,
        regimes=tuple((kind.regime, tokens) for kind, tokens in spans),
        drafters=drafters,
    )


def _run(chance: random.Random, rates: Sequence[float]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda rate: chance.random() < rate, rates))


def _copied(
    chance: random.Random, kind: Kind, tokens: int, block: int
) -> tuple[list[int], list[int], list[int]]:
    """What a drafter that copies behind a match of three offers, gets right, and how long the
    match is (in bits)."""
    offered: list[int] = []
    right: list[int] = []
    confidence: list[int] = []
    while len(offered) < tokens:
        if kind.copied:
            length = max(4, round(chance.expovariate(1 / kind.copied)))
            for match in range(length):
                offers = min(match, block) if match >= 3 else 0
                offered.append(offers)
                right.append(min(offers, length - match))
                confidence.append(min(match, 64).bit_length() if offers else 0)
        for _ in range(max(1, round(chance.expovariate(1 / kind.fresh)))):
            wrong = chance.random() < kind.bogus
            offered.append(3 if wrong else 0)
            right.append(0)
            confidence.append(2 if wrong else 0)
    return offered[:tokens], right[:tokens], confidence[:tokens]


def _text(numbers: Sequence[int]) -> str:
    return "".join(_DIGITS[number] for number in numbers)
