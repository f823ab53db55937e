"""A record of a reply's rounds, enough to make all its choices again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from engine.decoding.surplus import Choice, SurplusController, common_prefix
from engine.drafters.drafter import Offer


class Round(Struct, frozen=True, array_like=True):
    """One round, as an array in JSON.

    offers, asks: (drafter, drafts, confidence). right: by ask, how many of the proposed drafts
    the reply went on with; given: by ask, how many were proposed. committed: tokens.
    """

    regime: str
    context: int
    room: int
    offers: tuple[Offer, ...]
    drafter: str
    drafts: int
    asks: tuple[Offer, ...]
    given: tuple[int, ...]
    right: tuple[int, ...]
    committed: int
    seconds: float


class RoundLog:
    """Rounds as they happen; how many drafts were right is known at the end."""

    def __init__(self) -> None:
        self._rounds: list[tuple[Choice, tuple[Offer, ...], int, list[list[int]], int, float]] = []

    def add(
        self,
        choice: Choice,
        offers: Sequence[Offer],
        room: int,
        proposals: Mapping[str, list[int]],
        committed: int,
        seconds: float,
    ) -> None:
        given = [proposals[ask.drafter] for ask in choice.asks]
        self._rounds.append((choice, tuple(offers), room, given, committed, seconds))

    def rounds(self, tokens: Sequence[int]) -> tuple[Round, ...]:
        """tokens: of the whole reply, prompt included."""
        return tuple(
            Round(
                choice.regime,
                choice.context,
                room,
                offers,
                choice.drafter,
                choice.drafts,
                choice.asks,
                tuple(map(len, given)),
                tuple(
                    common_prefix(drafts, tokens[choice.context : choice.context + len(drafts)])
                    for drafts in given
                ),
                committed,
                seconds,
            )
            for choice, offers, room, given, committed, seconds in self._rounds
        )


def choose_again(rounds: Iterable[Round], controller: SurplusController) -> list[Choice]:
    """What a controller in the state that it had before these rounds chooses in each of them."""
    track, choices = controller.begin(), []
    rounds = list(rounds)
    for number, one in enumerate(rounds, 1):
        choice = controller.choose(track, one.regime, one.context, one.offers, one.room)
        choices.append(choice)
        # The token at position p stands for itself as p, and -1 for any other.
        first = one.context
        proposals = {
            ask.drafter: [first + i if i < right else -1 for i in range(given)]
            for ask, given, right in zip(one.asks, one.given, one.right, strict=True)
        }
        if any(ask.drafter not in proposals for ask in choice.asks):
            break
        run = range(first, first + one.committed)
        ended = number == len(rounds)
        controller.settle(track, choice, proposals, run, ended=ended, seconds=one.seconds)
    return choices
