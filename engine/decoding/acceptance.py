"""How many drafts will be right: acceptance by position, and whether it still holds."""

from __future__ import annotations

import math

from msgspec import Struct

from engine.errors import ModelError

# Rounds after which an observation counts half.
HALF_LIFE = 100.0
_DECAY = 0.5 ** (1 / HALF_LIFE)
# A position that was never seen is thought as good as the one before it, the first as good as
# this; either thought weighs as much as so many observations.
FIRST, WEIGHT = 0.5, 2.0
# In a text that has turned, a draft is right this often.
LOST = 0.05
# A text turns with this probability a round, times the sixth power of the first draft's
# acceptance: for a drafter that is often wrong, a run of wrong drafts is nothing new. It turns
# back with RETURN.
TURN, RETURN = 0.08, 0.04
# What was seen since makes a difference once it is this share of what is known, or once the
# suspicion of a turn has changed by so much.
NOTABLE, NOTABLE_DOUBT = 1 / 16, 0.01
# The most that a record counts for against the suspicion of a turn.
SURE = 0.95


class Learnt(Struct, frozen=True, kw_only=True):
    """What is kept of an `Acceptance` from run to run: (decayed) counts by position."""

    accepted: tuple[float, ...]
    tried: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.accepted) != len(self.tried):
            raise ModelError("learnt: accepted and tried differ in length")
        if not all(0 <= a <= t < math.inf for a, t in zip(self.accepted, self.tried, strict=True)):
            raise ModelError("learnt: accepted must be in [0, tried]")


class Acceptance:
    """Of one drafter in one regime, as a hidden Markov model with two states.

    `by_position` are the probabilities that a draft is right if those before it are, in a text
    such as usual. `doubt` is the probability that the text has turned, so that hardly any draft is
    right. It lets two bad rounds outweigh a hundred good ones without those being forgotten.
    """

    def __init__(self, learnt: Learnt | None = None) -> None:
        self._accepted = list(learnt.accepted) if learnt else []
        self._tried = list(learnt.tried) if learnt else []
        self.doubt = 0.0
        # Grows when what was observed makes a difference.
        self.version = 0
        self._since, self._doubt = 0, 0.0

    def learnt(self) -> Learnt:
        return Learnt(
            accepted=tuple(round(count, 3) for count in self._accepted),
            tried=tuple(round(count, 3) for count in self._tried),
        )

    def by_position(self, drafts: int) -> list[float]:
        """For positions 0 to `drafts` - 1."""
        means, mean = [], FIRST
        for tried, accepted in zip(self._tried[:drafts], self._accepted, strict=False):
            mean = (accepted + WEIGHT * mean) / (tried + WEIGHT)
            means.append(mean)
        return means + [mean] * (drafts - len(means))

    def forecast(self, drafts: int) -> tuple[list[float], list[float]]:
        """Tokens that a round commits with 1, 2, ... `drafts` drafts: what is to be expected, and
        in a text such as usual, one standard deviation better than is known."""
        expected, hoped, doubt = [], [], self.doubt
        accepted, tries = self._accepted, self._tried
        known, mean = len(tries), FIRST
        usual = lost = best = sum_usual = sum_lost = sum_best = 1.0
        for index in range(drafts):
            weight = WEIGHT
            if index < known:
                weight += tries[index]
                mean = (accepted[index] + WEIGHT * mean) / weight
            usual *= mean
            lost *= LOST
            high = mean + math.sqrt(mean * (1 - mean) / weight)
            if high < 1:
                best *= high
            sum_usual += usual
            sum_lost += lost
            sum_best += best
            expected.append(sum_usual + doubt * (sum_lost - sum_usual))
            hoped.append(sum_best)
        return expected, hoped

    def observe(self, right: int, tried: int, start: int = 0, *, old: bool = False) -> None:
        """Of `tried` drafts from position `start` on, before which none was wrong, `right` were
        right and, if that is fewer, the next one was wrong. old: they were drafted before the
        last round, so they do not say how the text is now."""
        if tried < 1:
            return
        self._observe(right, tried, start, old=old)
        self._since += 1
        known = len(self._tried) > start and self._since < NOTABLE * self._tried[start]
        if not known or abs(self.doubt - self._doubt) > NOTABLE_DOUBT:
            self.version += 1
            self._since, self._doubt = 0, self.doubt

    def _observe(self, right: int, tried: int, start: int, *, old: bool) -> None:
        if old:
            self._count(right, tried, start, 1 - self.doubt)
            return
        means = self.by_position(start + min(right + 1, tried))
        usual = math.prod(min(mean, SURE) for mean in means[start : start + right])
        lost = LOST**right
        if right < tried:
            usual *= 1 - min(means[-1], SURE)
            lost *= 1 - LOST
        turned = self.doubt * lost
        turned /= turned + (1 - self.doubt) * usual
        self._count(right, tried, start, 1 - turned)
        if start == 0:
            turned += (1 - turned) * TURN * means[0] ** 6 - turned * RETURN
        self.doubt = turned

    def _count(self, right: int, tried: int, start: int, weight: float) -> None:
        """Counts as much as the text is such as usual: a bad spell says nothing about the rest."""
        end = start + min(right + 1, tried)
        missing = end - len(self._tried)
        self._accepted += [0.0] * missing
        self._tried += [0.0] * missing
        decay = _DECAY**weight
        for index in range(start, end):
            self._tried[index] = self._tried[index] * decay + weight
            self._accepted[index] *= decay
            if index < start + right:
                self._accepted[index] += weight
