"""The choice of a token: one pure rule for greedy and sampled decoding.

Sampling is Gumbel-max with counter-based noise: the token at absolute position ``p`` is
``argmax over F of (logit / temperature + gumbel(seed, p, token))``, where F is what temperature,
top-k, top-p and min-p leave over. The noise depends on nothing else, so the choice is a function
of (logits, position, seed) and a draft is accepted exactly when it equals the chosen token. The
marginals are the target's own, because Gumbel-max is an exact sampler.

Row i of a call never depends on how many rows there are: only elementwise operations, maxima,
sorts and running sums along one row are used. Elementwise exp and log round differently in a
vector lane and in the scalar tail of a loop on some machines, so where they matter rows are padded
to a multiple of `_LANES` and every row meets the same lanes.

On a CPU a kernel makes the same choices in a few passes over a row (`engine.cpu.choice`); what is
here says what they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from engine.cpu.choice import choose_kernel, chosen_by
from engine.errors import RequestError
from engine.messages import Sampling

_LANES = 32
_MASK64 = (1 << 64) - 1
# Below this a temperature would overflow float32; the choice is long since the argmax.
COLDEST = 1e-6


class History:
    """Which tokens the prompt and the output hold, and how often the output does.

    That is all the penalties depend on. `commit` costs the new tokens only.
    """

    def __init__(self, prompt: Sequence[int] = ()) -> None:
        # Insertion-ordered: token id -> times in the output (0: in the prompt only).
        self._output: dict[int, int] = dict.fromkeys(prompt, 0)

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._output[token] = self._output.get(token, 0) + 1

    def copy(self) -> History:
        twin = History()
        twin._output = self._output.copy()
        return twin

    def rows(self, drafts: Sequence[int], count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What row i of `count` rows has behind it: this history and ``drafts[:i]``.

        Returns ids (K,) int32, seen (count, K) bool, times in the output (count, K) float32.
        """
        known = len(self._output)
        slots = {token: slot for slot, token in enumerate(self._output)} if drafts else {}
        ids = list(self._output)
        for token in drafts[: count - 1]:
            if token not in slots:
                slots[token] = len(ids)
                ids.append(token)
        seen = np.zeros((count, len(ids)), dtype=bool)
        seen[:, :known] = True
        times = np.zeros((count, len(ids)), dtype=np.float32)
        times[:, :known] = np.fromiter(self._output.values(), dtype=np.float32, count=known)
        for row, token in enumerate(drafts[: count - 1], start=1):
            seen[row:, slots[token]] = True
            times[row:, slots[token]] += 1
        return np.array(ids, dtype=np.int32), seen, times


def choose(
    logits: mx.array,
    positions: Sequence[int],
    sampling: Sampling,
    seed: int = 0,
    history: History | None = None,
    drafts: Sequence[int] = (),
    allowed: mx.array | None = None,
) -> mx.array:
    """The tokens that rows of logits choose, lazily.

    logits: (M, V), any float dtype; computed in float32.
    positions: M absolute positions, of the tokens being chosen (not of the tokens fed).
    seed: 64 bits; unused when greedy.
    history, drafts: row i is penalised for `history` and ``drafts[:i]``.
    allowed: (M, V) bool, which tokens each row may choose (token healing, grammars).

    Returns (M,) int32; -1 where a row holds NaN or +inf or has no token left
    (`engine.decoding.verify.commit_run` turns a committed -1 into an EngineError). Ties go to the
    lowest id. Raises RequestError when logit_bias names a token outside the vocabulary.
    """
    if len(positions) != logits.shape[0]:
        raise ValueError(f"{logits.shape[0]} rows of logits, {len(positions)} positions")
    x = _adjusted(logits, sampling, history, drafts, allowed)
    if (kernel := choose_kernel()) is not None:
        keys = () if sampling.greedy else noise_keys(seed, positions)
        return chosen_by(kernel, x, keys or [0] * len(positions), sampling, COLDEST)
    return chosen_by_operations(x, positions, sampling, seed)


def chosen_by_operations(
    x: mx.array, positions: Sequence[int], sampling: Sampling, seed: int
) -> mx.array:
    """What `choose` returns, of logits with bias, penalties and masks."""
    scores, ids = _scores(x, positions, sampling, seed)
    best = mx.max(scores, axis=-1)
    if ids is None:
        tokens = mx.argmax(scores, axis=-1).astype(mx.int32)
    else:
        winners = mx.where(scores == best[:, None], ids, mx.array(2**31 - 1, dtype=mx.int32))
        tokens = mx.min(winners, axis=-1)
    return mx.where(mx.isfinite(best), tokens, mx.array(-1, dtype=mx.int32))


def margins(
    logits: mx.array,
    positions: Sequence[int],
    sampling: Sampling,
    seed: int = 0,
    history: History | None = None,
    drafts: Sequence[int] = (),
    allowed: mx.array | None = None,
) -> mx.array:
    """By how much each row's choice won: (M,) float32, arguments as `choose`.

    The gap is between the two best final scores: logits after bias and penalties when greedy,
    with temperature and noise within F when sampled. inf when F holds one token.
    """
    x = _adjusted(logits, sampling, history, drafts, allowed)
    scores, _ = _scores(x, positions, sampling, seed)
    best = mx.sort(mx.topk(scores, min(2, scores.shape[-1]), axis=-1), axis=-1)
    if best.shape[-1] == 1:
        return mx.full((best.shape[0],), math.inf)
    return best[:, 1] - best[:, 0]


def gumbel(seed: int, positions: Sequence[int], tokens: mx.array) -> mx.array:
    """Standard Gumbel noise keyed by (seed, position, token id).

    tokens: ids, (N,) for every position or (M, N) for M positions. Returns (M, N) float32.
    A drafter that adds the same noise to its own scores guesses sampled tokens far better.
    """
    keys = np.array(noise_keys(seed, positions), dtype=np.uint64)
    low = mx.array((keys & np.uint64(0xFFFFFFFF)).astype(np.uint32))[:, None]
    high = mx.array((keys >> np.uint64(32)).astype(np.uint32))[:, None]
    bits = _scramble(tokens.astype(mx.uint32) * mx.array(0x9E3779B1, dtype=mx.uint32) + low)
    bits = _scramble(bits ^ high)
    # Small u decide who wins, and there float32 keeps all 32 bits; large u must not round to 1.
    uniform = mx.minimum((bits.astype(mx.float32) + 0.5) * 2.0**-32, 1.0 - 2.0**-24)
    return -mx.log(-mx.log1p(-uniform))


def noise_keys(seed: int, positions: Sequence[int]) -> list[int]:
    """64 bits for each position, from which its noise is made."""
    start = _splitmix(seed & _MASK64)
    return [_splitmix(start ^ (position & _MASK64)) for position in positions]


def _splitmix(value: int) -> int:
    """One step of SplitMix64 (Steele, Lea and Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _scramble(bits: mx.array) -> mx.array:
    """A bijection of uint32 with low bias (constants of C. Wellons' hash prospector)."""
    bits = (bits ^ (bits >> 16)) * mx.array(0x21F0AAAD, dtype=mx.uint32)
    bits = (bits ^ (bits >> 15)) * mx.array(0x735A2D97, dtype=mx.uint32)
    return bits ^ (bits >> 15)


def _adjusted(
    logits: mx.array,
    sampling: Sampling,
    history: History | None,
    drafts: Sequence[int],
    allowed: mx.array | None,
) -> mx.array:
    """Logits (M, V) with the request's bias, penalties and masks; those themselves, in whatever
    type they are, where there is nothing to do."""
    x = biased(logits, sampling)
    if sampling.penalised and history is not None:
        x = _penalised(x.astype(mx.float32), sampling, *history.rows(drafts, x.shape[0]))
    if allowed is not None:
        x = mx.where(allowed, x, -math.inf)
    return x


def _scores(
    x: mx.array, positions: Sequence[int], sampling: Sampling, seed: int
) -> tuple[mx.array, mx.array | None]:
    """What the choice is the argmax of: scores (M, N) and their token ids (M, N) int32, or None
    when column j is token j. x: (M, V)."""
    vocab = x.shape[-1]
    x = x.astype(mx.float32)
    if sampling.greedy:
        return x, None
    if vocab % _LANES:
        x = mx.pad(x, [(0, 0), (0, -vocab % _LANES)], constant_values=-math.inf)
    x = (x - mx.max(x, axis=-1, keepdims=True)) / max(sampling.temperature, COLDEST)
    top_k = sampling.top_k if 0 < sampling.top_k < vocab else 0
    if not top_k and sampling.top_p == 1.0:
        ids = None
        noise = gumbel(seed, positions, mx.arange(x.shape[-1]))
    else:
        x, ids = ranked(x, top_k)
        x = _nucleus(x, top_k, sampling.top_p)
        noise = gumbel(seed, positions, ids)
    if sampling.min_p > 0.0:
        # The best token's score is 0 and no filter removes it, so this is p >= min_p * max(p).
        x = mx.where(x >= math.log(sampling.min_p), x, -math.inf)
    return x + noise, ids


def biased(x: mx.array, sampling: Sampling) -> mx.array:
    """Logits (M, V) with the request's logit_bias, then in float32."""
    if not sampling.logit_bias:
        return x
    x = x.astype(mx.float32)
    vocab = x.shape[-1]
    for token, _ in sampling.logit_bias:
        if token >= vocab:
            raise RequestError(
                f"logit_bias: token {token} is outside the vocabulary of {vocab}",
                field="logit_bias",
            )
    ids, biases = zip(*sampling.logit_bias, strict=True)
    return x.at[:, mx.array(ids)].add(mx.array(biases, dtype=mx.float32))


def _penalised(
    x: mx.array, sampling: Sampling, ids: np.ndarray, seen: np.ndarray, times: np.ndarray
) -> mx.array:
    if not ids.size:
        return x
    columns = mx.broadcast_to(mx.array(ids)[None, :], seen.shape)
    values = mx.take_along_axis(x, columns, axis=-1)
    penalty = sampling.repetition_penalty
    if penalty != 1.0:
        repeated = mx.where(values > 0, values / penalty, values * penalty)
        values = mx.where(mx.array(seen), repeated, values)
    once = np.float32(sampling.presence_penalty) * (times > 0)
    values = values - mx.array(once + np.float32(sampling.frequency_penalty) * times)
    return mx.put_along_axis(x, columns, values, axis=-1)


def ranked(x: mx.array, top_k: int) -> tuple[mx.array, mx.array]:
    """Scores and ids in the fixed order (score descending, id ascending).

    With `top_k`, at least that many columns (rounded up to `_LANES`), without sorting the rest.
    The order comes from unique integer keys, (falling score bits << 32 | id), so it does not
    matter whether the sort is stable.
    """
    bits = mx.view(x + 0.0, mx.uint32)  # + 0.0: -0.0 and 0.0 must tie
    keys = _falling(bits).astype(mx.uint64) << 32
    keys = keys | mx.arange(x.shape[-1], dtype=mx.uint64)
    width = -(-top_k // _LANES) * _LANES
    if 0 < width < x.shape[-1]:
        keys = mx.partition(keys, width - 1, axis=-1)[:, :width]
    keys = mx.sort(keys, axis=-1)
    scores = mx.view(_falling((keys >> 32).astype(mx.uint32)), mx.float32)
    return scores, (keys & 0xFFFFFFFF).astype(mx.int32)


def _falling(bits: mx.array) -> mx.array:
    """IEEE bits to unsigned integers that fall as the float rises; its own inverse."""
    return mx.where(bits >> 31 == 1, bits, bits ^ 0x7FFFFFFF)


def _nucleus(x: mx.array, top_k: int, top_p: float) -> mx.array:
    """Drop (to -inf) what is past rank `top_k`, then what comes after `top_p` of the mass that
    is left. x: (M, N), ranked; the best score is 0."""
    if top_k:
        x = mx.where(mx.arange(x.shape[-1]) < top_k, x, -math.inf)
    if top_p < 1.0:
        mass = mx.exp(x)
        before = mx.cumsum(mass, axis=-1, inclusive=False)
        total = before[:, -1:] + mass[:, -1:]
        x = mx.where(before < top_p * total, x, -math.inf)
    return x
