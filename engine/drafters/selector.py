"""DFlash 2's candidate selector: a chain of tokens out of per-slot logits.

A drafted slot's logits do not know what the slot before it chose. The selector adds to each of a
slot's best candidates how well it follows each candidate of the slot before, by a low-rank product
of two codebooks and the slot's hidden row, and walks from left to right. All the scores are
computed at once in float32; the walk itself is then a look-up.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from engine.decoding.sampling import COLDEST, biased, gumbel, ranked
from engine.drafters.dflash_config import DFlashConfig
from engine.messages import Sampling


class CandidateSelector(nn.Module):
    """Codebooks are bare parameters, (vocab_size, selector_rank)."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self._top_k = config.selector_top_k
        shape = (config.vocab_size, config.selector_rank)
        self.predecessor_codebook = mx.zeros(shape)
        self.successor_codebook = mx.zeros(shape)
        self.hidden_projection = nn.Linear(config.hidden_size, config.selector_rank, bias=False)

    def select(
        self,
        hidden: mx.array,
        logits: mx.array,
        anchor: int,
        positions: Sequence[int],
        sampling: Sampling,
        seed: int,
    ) -> list[int]:
        """The tokens of K slots behind `anchor`.

        hidden: (K, H), after the final norm. logits: (K, at least vocab_size). positions: of the
        K tokens. Sampled, the score gets the noise that the verifier will add for that position and
        token, so both tend to choose alike; this is legal because a draft is accepted only when
        it equals the verifier's choice, whatever chose it. Ties go to the better logit, then to
        the lower id.
        """
        ids, scores = self.scores(hidden, logits, anchor, sampling)
        if not sampling.greedy:
            noise = gumbel(seed, positions, ids)
            scores = filtered(scores / max(sampling.temperature, COLDEST), sampling)
            scores = scores + noise[:, None, :]
        best = mx.concatenate([ids[None], mx.argmax(scores, axis=-1).astype(ids.dtype)[None]])
        candidates, follow = np.array(best).tolist()
        return walk(candidates, follow)

    def best(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """Scores and ids of each row's candidates, (K, C), in the order of `ranked`."""
        unary, ids = ranked(logits, self._top_k)
        return unary[:, : self._top_k], ids[:, : self._top_k]

    def scores(
        self, hidden: mx.array, logits: mx.array, anchor: int, sampling: Sampling
    ) -> tuple[mx.array, mx.array]:
        """Each slot's candidates, best logit first, (K, C) int32, and scores (K, C, C) float32:
        [t, a, b] of candidate b of slot t after candidate a of slot t - 1.

        Before slot 0 stands the anchor alone, so there all rows are alike.
        """
        vocab = self.predecessor_codebook.shape[0]
        logits = biased(logits.astype(mx.float32), sampling)[:, :vocab]
        unary, ids = self.best(logits)
        before = mx.concatenate([mx.full((1, self._top_k), anchor, dtype=ids.dtype), ids[:-1]])
        projected = self.hidden_projection(hidden).astype(mx.float32)
        left = self.predecessor_codebook[before].astype(mx.float32) * projected[:, None, :]
        right = self.successor_codebook[ids].astype(mx.float32)
        return ids, unary[:, None, :] + left @ right.swapaxes(-1, -2)


def filtered(scores: mx.array, sampling: Sampling) -> mx.array:
    """What top-k, top-p and min-p leave over of each row of scaled scores; the rest is -inf.

    The candidates stand for the whole distribution, so this only resembles the verifier's filter.
    No sort: with C candidates, the mass before each is a sum over C x C comparisons.
    """
    keep = mx.ones(scores.shape, dtype=mx.bool_)
    best = mx.max(scores, axis=-1, keepdims=True)
    if sampling.min_p > 0.0:
        keep = mx.exp(scores - best) >= sampling.min_p
    if sampling.top_p < 1.0 or sampling.top_k:
        better = scores[..., None, :] > scores[..., :, None]
        if sampling.top_p < 1.0:
            mass = mx.softmax(scores, axis=-1)
            keep = keep & (mx.sum(better * mass[..., None, :], axis=-1) < sampling.top_p)
        if sampling.top_k:
            keep = keep & (mx.sum(better, axis=-1) < sampling.top_k)
    return mx.where(keep, scores, -mx.inf)


def walk(ids: Sequence[Sequence[int]], follow: Sequence[Sequence[int]]) -> list[int]:
    """Tokens from left to right. follow[t][a]: which candidate of slot t comes after a."""
    tokens, at = [], 0
    for candidates, choice in zip(ids, follow, strict=True):
        at = choice[at]
        tokens.append(candidates[at])
    return tokens
