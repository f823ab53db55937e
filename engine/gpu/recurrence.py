"""Whether the tape kernels run a GatedDeltaNet layer's verify forwards, decided on the machine."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from engine.gpu.device import Device
from engine.gpu.examine import Trials
from engine.targets.gated_delta import RecordingGatedDelta
from engine.targets.gated_delta_tape import TapeKernels, made_up, rows_of, shape_of
from metal.gated_delta import differs, fits
from metal.race import CLEARLY, Findings, race

# Of a raced round's rows, the share that stays.
KEPT = 0.5


def key_of(recorder: RecordingGatedDelta) -> tuple[Any, ...]:
    """Layers of one key are equally fast and have the same bits."""
    return "gated_delta", shape_of(recorder.layer), _dtype(recorder)


def use_tape(recorder: RecordingGatedDelta, device: Device, trials: Trials) -> str:
    """Let the layer use the kernels; what is against it if it does not.

    Their bits have to be those of the layer's own recurrence, which goes on computing single rows
    and prompts, and a round behind a rollback has to be clearly faster than with a re-run.
    """
    findings = examine_tape(recorder, device, trials)
    if findings.fault:
        return findings.fault
    (ours,), (stock,) = findings.ours.values(), findings.stock.values()
    if ours >= CLEARLY * stock:
        return f"a re-run takes {stock / ours:.2f} of the time"
    recorder.kernels = TapeKernels(device.chip, device.compiler)
    return ""


def examine_tape(recorder: RecordingGatedDelta, device: Device, trials: Trials) -> Findings:
    """Try the kernels beside the layer's own recurrence: their bits, and the time of a round of the
    widest forward behind a rollback."""
    dtype, shape = _dtype(recorder), shape_of(recorder.layer)
    if not fits(shape, dtype, device.chip):
        return Findings(fault="there is no kernel")
    kernels = TapeKernels(device.chip, device.compiler)
    arguments = made_up(recorder.layer, dtype, trials.rows)

    def single(row: int, state: mx.array) -> tuple[mx.array, mx.array]:
        result: tuple[mx.array, mx.array] = recorder.recurrence(
            *_some(arguments, slice(row, row + 1)), state
        )
        return result

    try:
        fault = differs(rows_of(arguments), arguments[7], single, compiler=device.compiler)
        times = {} if fault else _round(recorder, kernels, arguments, trials)
    except (ValueError, RuntimeError, TypeError) as error:
        return Findings(fault=str(error).strip().split("\n", 1)[0])
    if fault:
        return Findings(fault=fault)
    ours, stock = ({trials.rows: times[name]} for name in ("ours", "stock"))
    return Findings(like_stock=True, ours=ours, stock=stock)


def _round(
    recorder: RecordingGatedDelta,
    kernels: TapeKernels,
    arguments: tuple[Any, ...],
    trials: Trials,
) -> dict[str, float]:
    """Seconds of a round behind a rollback, from the tape and with a re-run."""
    keep = max(1, int(KEPT * trials.rows))
    _, _, tape, _ = kernels.update(arguments, None)
    before = kernels.after(tape, keep)
    rest = arguments[1:7]

    def from_tape(q: mx.array) -> mx.array:
        return kernels.update((q, *rest, before.state), before)[0]

    def again(q: mx.array) -> mx.array:
        _, state = recorder.recurrence(*_some((q, *rest), slice(0, keep)), arguments[7])
        output: mx.array = recorder.recurrence(q, *rest, state)[0]
        return output

    return race(
        {"ours": from_tape, "stock": again},
        arguments[0],
        length=trials.length,
        repeats=trials.repeats,
        clock=trials.clock,
    )


def _some(arguments: tuple[Any, ...], rows: slice) -> tuple[Any, ...]:
    """Without the state: q, k, v, a, b of these rows, and the weights."""
    return (*(x[:, rows] for x in arguments[:5]), *arguments[5:7])


def _dtype(recorder: RecordingGatedDelta) -> mx.Dtype:
    dtype: mx.Dtype = recorder.layer.conv1d.inner.weight.dtype
    return dtype
