"""Mamba-2 layers (nemotron_h): the state after every row is kept, so rollback is a choice of one.

mlx-lm computes several rows of `ssm_update` in a parallel form whose numbers differ from one-row
steps. A forward that may be taken back therefore runs the one-row form row by row; the matrix
multiplications around it, which are the cost, stay one pass.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.targets.recurrent import RecordedConv, RecurrentCache, window_after, with_names

RECURRENCE = "ssm_update"


@dataclass(frozen=True)
class MambaTape:
    """conv_input: (1, kernel - 1 + T, conv_dim). states: after each of the T rows."""

    conv_input: mx.array
    states: list[mx.array]

    def replay(self, keep: int) -> tuple[mx.array, mx.array]:
        return window_after(self.conv_input, len(self.states), keep), self.states[keep - 1]


class RecordingMamba(nn.Module):
    """Runs a Mamba-2 mixer's own code and leaves a tape in a cache that asks for one."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer
        self._recurrence = type(mixer)._ssm.__globals__[RECURRENCE]
        self._states: list[mx.array] | None = None
        mixer.conv1d = RecordedConv(mixer.conv1d)
        mixer._ssm = types.MethodType(
            with_names(type(mixer)._ssm, {RECURRENCE: self._row_by_row}), mixer
        )

    def _row_by_row(
        self,
        hidden: mx.array,
        a_log: mx.array,
        b: mx.array,
        c: mx.array,
        d: mx.array,
        dt: mx.array,
        dt_bias: mx.array,
        state: mx.array | None = None,
        time_step_limit: Any = (0.001, 100.0),
        mask: mx.array | None = None,
        *rest: Any,
    ) -> tuple[mx.array, mx.array]:
        """`ssm_update` with the rows' states kept; hidden (1, T, heads, head_dim)."""
        weights = (d, dt_bias, time_step_limit)
        if self._states is None or mask is not None:
            return self._one_call(hidden, a_log, b, c, dt, state, mask, weights, rest)
        outputs = []
        for row in range(hidden.shape[1]):
            at = slice(row, row + 1)
            output, state = self._one_call(
                hidden[:, at], a_log, b[:, at], c[:, at], dt[:, at], state, None, weights, rest
            )
            outputs.append(output)
            self._states.append(state)
        assert state is not None
        return mx.concatenate(outputs, axis=1), state

    def _one_call(
        self,
        hidden: mx.array,
        a_log: mx.array,
        b: mx.array,
        c: mx.array,
        dt: mx.array,
        state: mx.array | None,
        mask: mx.array | None,
        weights: tuple[Any, ...],
        rest: tuple[Any, ...],
    ) -> tuple[mx.array, mx.array]:
        d, dt_bias, limit = weights
        result: tuple[mx.array, mx.array] = self._recurrence(
            hidden, a_log, b, c, d, dt, dt_bias, state, limit, mask, *rest
        )
        return result

    def __call__(self, hidden: mx.array, mask: Any = None, cache: Any | None = None) -> mx.array:
        output: mx.array
        if not isinstance(cache, RecurrentCache) or not cache.recording:
            output = self.mixer(hidden, mask, cache)
            return output
        conv_inputs: list[mx.array] = []
        states: list[mx.array] = []
        self._states = states
        self.mixer.conv1d.kept = conv_inputs.append
        try:
            output = self.mixer(hidden, mask, cache)
        finally:
            self.mixer.conv1d.kept = None
            self._states = None
        cache.tape = MambaTape(conv_inputs[0], states)
        return output


def record_mamba(layer: nn.Module) -> bool:
    """Make a decoder layer's Mamba-2 mixer record; False if it has none of this kind."""
    mixer = getattr(layer, "mixer", None)
    method = getattr(type(mixer), "_ssm", None)
    if method is None or RECURRENCE not in method.__globals__:
        return False
    layer.mixer = RecordingMamba(mixer)
    return True
