"""Muon for matrices, AdamW for the rest, under one schedule."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
# AdamW's rates in proportion to Muon's, for embedding tables and for norms and the like.
TABLE_RATE, REST_RATE = 0.2, 0.15


def orthogonal(x: Tensor) -> Tensor:
    """Nearly the closest matrices with singular values of one; x [n, rows, columns]."""
    a, b, c = NEWTON_SCHULZ
    wide = x.shape[1] <= x.shape[2]
    x = x.bfloat16() if wide else x.bfloat16().mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal (Jordan et al. 2024); matrices of one shape go together."""

    def __init__(self, weights: list[Tensor], rate: float) -> None:
        super().__init__(weights, {"lr": rate, "momentum": 0.95, "decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                update = weight.grad.lerp(state["momentum"], group["momentum"])
                alike[tuple(weight.shape)].append((weight, update))
            for shape, pairs in alike.items():
                updates = orthogonal(torch.stack([update for _, update in pairs]))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for (weight, _), update in zip(pairs, updates, strict=True):
                    weight.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-scale)


class Optimizer:
    """rate: of Muon at its highest; the others follow it in fixed proportion."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        named = list(model.named_parameters())
        matrices = [
            w for name, w in named if w.dim() == 2 and min(w.shape) > 16 and "embed" not in name
        ]
        taken = {id(w) for w in matrices}
        tables = [w for name, w in named if "embed" in name or "codebook" in name]
        matrices = [w for w in matrices if not any(w is table for table in tables)]
        self._rest = [w for _, w in named if id(w) not in taken and w not in set(tables)]
        self._tables = tables
        groups: list[dict[str, Any]] = [
            {"params": group, "lr": rate * part}
            for group, part in ((tables, TABLE_RATE), (self._rest, REST_RATE))
            if group
        ]
        adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
        self._parts: list[torch.optim.Optimizer] = [Muon(matrices, rate), adam]
        self._rates = [[group["lr"] for group in part.param_groups] for part in self._parts]

    def step(self, share: float) -> None:
        """One update at `share` of the highest rates; gradients are cleared."""
        nn.utils.clip_grad_norm_([*self._rest, *self._tables], 1.0)
        for part, rates in zip(self._parts, self._rates, strict=True):
            # Loading a state replaces the groups, so they are looked up at every step.
            for group, rate in zip(part.param_groups, rates, strict=True):
                group["lr"] = rate * share
            part.step()
            part.zero_grad()

    def state(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self._parts]

    def load(self, state: list[dict[str, Any]]) -> None:
        for part, saved in zip(self._parts, state, strict=True):
            part.load_state_dict(saved)


def share_of_rate(step: int, steps: int, warm_up: int = 30, decay_from: float = 0.5) -> float:
    """Warm up, hold, then fall in a line to nearly nothing at `steps`."""
    done = step / steps
    fall = 1.0 if done < decay_from else max(0.01, (1 - done) / (1 - decay_from))
    return min(1.0, (step + 1) / warm_up) * fall
