"""The gated delta rule for verify forwards, with a tape instead of a second run.

    S' = g S        delta = beta (v - S' k)        S = S' + delta k^T        y = S q

for each row (Gated DeltaNet, arXiv:2412.06464; layers of Qwen3-Next, 3.5, 3.6 and 3.8). The tape
is `delta`: with it the state after any n rows is S = g S + delta k^T, n times, without a sum.

A verify forward that continues behind another one starts from the other's tape: it reads the state
before that one, adds the rows that stayed while the state is in registers, writes the result once
and leaves a tape of its own. What it would have written at its end is made only if somebody asks.

Exactness: `replay(tape, n)` has the bits of the state after a forward over the first n rows, for
every n, and no row depends on how many follow. Every multiply-add is an explicit fma and every
sum a tree in the source, so this holds for any order of simd_sum and any contraction mode. Against
mlx-lm 0.32.2's own kernels bits are equal where the driver fuses what may be fused: `differs` asks
the machine. Traffic, and what it is predicted to gain: README.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from metal.chip import Chip
from metal.kernel import Compiler, Kernel

FORWARD = Kernel(
    "gated_delta",
    inputs=(
        *("q", "k", "v", "g", "beta", "state_in", "T", "mask"),
        *("old_k", "old_g", "old_delta", "old_rows", "keep"),
    ),
    outputs=("y", "delta_out", "state_out"),
)
REPLAY = Kernel(
    "gated_delta_replay",
    inputs=("k", "g", "deltas", "state_in", "T", "keep", "mask"),
    outputs=("state_out",),
)
DTYPES = (mx.bfloat16, mx.float16, mx.float32)
# What a state row's lanes keep in registers: Dk / 4 floats, and as many again are in flight.
WIDEST_KEY = 256


@dataclass(frozen=True)
class Shape:
    """Heads of queries and keys, heads of values, and their widths."""

    key_heads: int
    value_heads: int
    key_width: int
    value_width: int

    def __str__(self) -> str:
        keys = f"{self.key_heads} heads of {self.key_width}"
        return f"{keys}, {self.value_heads} of values of {self.value_width}"


@dataclass(frozen=True)
class Tape:
    """What a forward of T rows did.

    k: (B, T, Hk, Dk). g: (B, T, Hv) float32. delta: (B, T, Hv, Dv) float32. state: before the first
    row, (B, Hv, Dv, Dk) float32. mask: (B, T) bool, False for rows that are not there, or None.
    """

    k: mx.array
    g: mx.array
    delta: mx.array
    state: mx.array
    mask: mx.array | None = None

    @property
    def rows(self) -> int:
        return int(self.k.shape[1])


def fits(shape: Shape, dtype: mx.Dtype, chip: Chip | None) -> bool:
    """Whether there are kernels for a layer whose q, k and v are of `dtype`; whether they are worth
    using, only a race on the machine says."""
    return (
        chip is not None
        and dtype in DTYPES
        and shape.key_width % 32 == 0
        and shape.key_width <= WIDEST_KEY
        and shape.value_width % 8 == 0
        and shape.value_heads % shape.key_heads == 0
    )


def gated_delta(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array,
    mask: mx.array | None = None,
    *,
    compiler: Compiler | None = None,
) -> tuple[mx.array, mx.array, Tape]:
    """Rows behind a known state: the output, the state after all rows, and the tape.

    q, k: (B, T, Hk, Dk); v: (B, T, Hv, Dv), all of one dtype. g: (B, T, Hv) float32. beta: (B, T,
    Hv). state: (B, Hv, Dv, Dk) float32. mask: (B, T) bool. y has the shape and dtype of v; where
    the mask is False it is 0 and the state stays. A mask is for sequences side by side of
    which some are shorter, as mlx-lm's layers have it; the engine decodes one at a time without.

    Memory: reads q, k, v, g, beta and the state once, writes y, the tape and the state once.
    """
    none = Tape(k, g, g, state)
    y, delta, after = _launch(none, 0, q, k, v, g, beta, mask, after=True, compiler=compiler)
    return y, after, Tape(k, g, delta, state, mask)


def resume(
    before: Tape,
    keep: int,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    *,
    compiler: Compiler | None = None,
) -> tuple[mx.array, Tape]:
    """Rows behind the first `keep` of another forward's: the output, and the tape.

    before: without a mask. The rest as in `gated_delta`. The state after these rows is
    `replay(tape, T)`; `tape.state` is that after the `keep` rows.

    Memory: one read and one write of the state, where `replay` and `gated_delta` make two of each.
    """
    if before.mask is not None:
        raise ValueError("a forward cannot resume a masked tape: replay it")
    y, delta, state = _launch(before, keep, q, k, v, g, beta, None, after=False, compiler=compiler)
    return y, Tape(k, g, delta, state)


def _launch(
    before: Tape,
    keep: int,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    mask: mx.array | None,
    *,
    after: bool,
    compiler: Compiler | None,
) -> tuple[mx.array, mx.array, mx.array]:
    batch, rows, key_heads, key_width = k.shape
    value_heads, value_width = v.shape[2:]
    y, delta, state = FORWARD.compiled(compiler)(
        inputs=[
            *(q, k, v, g, beta, before.state, mx.array(rows)),
            mx.array([True]) if mask is None else mask,
            *(before.k, before.g, before.delta, mx.array(before.rows), mx.array(keep)),
        ],
        template=[
            ("OutT", v.dtype),
            *(("Hk", key_heads), ("Hv", value_heads), ("Dk", key_width), ("Dv", value_width)),
            *(("Masked", mask is not None), ("After", after)),
        ],
        grid=(32, value_width // 8, batch * value_heads),
        threadgroup=(32, 2 if value_width % 16 == 0 else 1, 1),
        output_shapes=[v.shape, v.shape, before.state.shape],
        output_dtypes=[v.dtype, mx.float32, mx.float32],
    )
    return y, delta, state


def replay(tape: Tape, keep: int, *, compiler: Compiler | None = None) -> mx.array:
    """The state after the first `keep` rows of a forward, (B, Hv, Dv, Dk) float32.

    Memory: reads the state and `keep` rows of the tape, writes the state.
    """
    if not 0 <= keep <= tape.rows:
        raise ValueError(f"cannot keep {keep} of {tape.rows} rows")
    batch, value_heads, value_width, key_width = tape.state.shape
    (state,) = REPLAY.compiled(compiler)(
        inputs=[
            *(tape.k, tape.g, tape.delta, tape.state, mx.array(tape.rows), mx.array(keep)),
            mx.array([True]) if tape.mask is None else tape.mask,
        ],
        template=[
            *(("Hk", tape.k.shape[2]), ("Hv", value_heads), ("Dk", key_width), ("Dv", value_width)),
            ("Masked", tape.mask is not None),
        ],
        grid=(key_width // 4, value_width, batch * value_heads),
        threadgroup=(key_width // 4, 4 if value_width % 4 == 0 else 1, 1),
        output_shapes=[tape.state.shape],
        output_dtypes=[mx.float32],
    )
    return state


def window(conv_input: mx.array, rows: int, keep: int) -> mx.array:
    """The convolution's window after `keep` of the last `rows` of `conv_input`, (B, k - 1 + T, C).

    A copy of k - 1 rows. No kernel of ours: at 60 KB a layer a fused copy would save nothing.
    """
    kept = conv_input.shape[1] - rows
    return mx.contiguous(conv_input[:, keep : keep + kept])


def reference(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array,
    mask: mx.array | None = None,
) -> tuple[mx.array, mx.array, Tape]:
    """What `gated_delta` computes, in plain MLX ops."""
    before = state
    repeats = v.shape[2] // k.shape[2]
    queries, keys = (mx.repeat(x.astype(mx.float32), repeats, 2) for x in (q, k))
    outputs, deltas = [], []
    for t in range(k.shape[1]):
        decayed = state * g[:, t, :, None, None]
        seen = (decayed * keys[:, t, :, None]).sum(-1)
        delta = (v[:, t].astype(mx.float32) - seen) * beta[:, t, :, None].astype(mx.float32)
        after = decayed + keys[:, t, :, None] * delta[..., None]
        y = (after * queries[:, t, :, None]).sum(-1)
        if mask is not None:
            shown = mask[:, t, None, None]
            y, delta = mx.where(shown, y, 0), mx.where(shown, delta, 0)
            after = mx.where(shown[..., None], after, state)
        outputs.append(y.astype(v.dtype))
        deltas.append(delta)
        state = after
    tape = Tape(k, g, mx.stack(deltas, 1), before, mask)
    return mx.stack(outputs, 1), state, tape


def reference_replay(tape: Tape, keep: int) -> mx.array:
    """What `replay` computes, in plain MLX ops."""
    state = tape.state
    keys = mx.repeat(tape.k.astype(mx.float32), state.shape[1] // tape.k.shape[2], 2)
    for t in range(keep):
        decayed = state * tape.g[:, t, :, None, None]
        after = decayed + keys[:, t, :, None] * tape.delta[:, t, ..., None]
        if tape.mask is not None:
            after = mx.where(tape.mask[:, t, None, None, None], after, state)
        state = after
    return state


# q, k, v, g and beta of some rows.
Rows = tuple[mx.array, mx.array, mx.array, mx.array, mx.array]
# The number of a row and the state before it -> its y, the state after it.
Single = Callable[[int, mx.array], tuple[mx.array, mx.array]]


def random_rows(
    shape: Shape, dtype: mx.Dtype, rows: int, *, batch: int = 1, seed: int = 0
) -> tuple[Rows, mx.array]:
    """Rows and a state as a layer has them: unit queries and keys, gates and strengths below 1."""
    keys = mx.random.split(mx.random.key(seed), 6)
    narrow = (batch, rows, shape.key_heads, shape.key_width)
    gates = (batch, rows, shape.value_heads)
    q, k = (mx.random.normal(narrow, key=key) for key in keys[:2])
    q, k = (x * mx.rsqrt((x * x).sum(-1, keepdims=True)) for x in (q, k))
    v = mx.random.normal((*gates, shape.value_width), key=keys[2])
    g = mx.exp(-mx.random.uniform(0, 2, gates, key=keys[3]))
    beta = mx.sigmoid(mx.random.normal(gates, key=keys[4]))
    state = (batch, shape.value_heads, shape.value_width, shape.key_width)
    q, k, v, beta = (x.astype(dtype) for x in (q * shape.key_width**-0.5, k, v, beta))
    return (q, k, v, g, beta), mx.random.normal(state, key=keys[5])


def part(rows: Rows, which: slice) -> Rows:
    """Some of the rows."""
    q, k, v, g, beta = (x[:, which] for x in rows)
    return q, k, v, g, beta


def differs(
    rows: Rows, state: mx.array, single: Single, *, compiler: Compiler | None = None
) -> str:
    """What differs on this machine in the bits of some rows; empty if nothing does.

    `single` is what decodes single rows. It is run row by row, and compared with all rows
    together, with what their tape says, and with rows behind a tape.
    """
    count = rows[0].shape[1]
    y, after, tape = gated_delta(*rows, state, compiler=compiler)
    if not _same(replay(tape, count, compiler=compiler), after):
        return "the state from the tape is not the forward's"
    one = state
    for t in range(count):
        row, one = single(t, one)
        if not _same(row, y[:, t : t + 1]):
            return f"row {t + 1} has other bits than alone"
        if not _same(one, replay(tape, t + 1, compiler=compiler)):
            return f"the state after {t + 1} rows has other bits than row by row"
    half = count // 2
    later, behind = resume(tape, half, *part(rows, slice(half, count)), compiler=compiler)
    if not _same(later, y[:, half:]):
        return "rows behind a tape have other bits than behind a state"
    if not _same(replay(behind, count - half, compiler=compiler), after):
        return "the state behind two tapes has other bits"
    return ""


def _same(one: mx.array, other: mx.array) -> bool:
    return bool(mx.array_equal(one, other).item())
