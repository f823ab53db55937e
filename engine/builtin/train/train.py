"""Train the target. Killed at any point, the same command goes on from its last checkpoint."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.builtin.train import model
from engine.builtin.train.dataset import BASE, EARLY, LATE, Reader, Schedule
from engine.builtin.train.optimizer import Optimizer, share_of_rate

EVERY = 50  # steps between checkpoints
SAID_EVERY = 20
# Shares of the kinds of rows early and late in a stage, and where in the rows it begins.
STAGES = {
    "base": ((BASE, BASE), (0.0,) * 6),
    "doors": ((EARLY, LATE), (0.58,) * 5 + (0.0,)),
}


def loss_of(target: model.Target, hidden: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Mean weighted cross-entropy in nats; hidden [B, T, H], labels and weights [B, T]."""
    logits = target.logits(hidden).flatten(0, 1).float()
    each = F.cross_entropy(logits, labels.flatten(), reduction="none")
    return (each * weights.flatten()).sum() / weights.sum()


def save(path: Path, content: Any) -> None:
    """Replace `path` in one step, so that a kill leaves the old or the new file."""
    unfinished = path.with_suffix(".unfinished")
    torch.save(content, unfinished)
    unfinished.replace(path)


def load_target(path: Path) -> model.Target:
    """The target of a checkpoint that `train` saved."""
    content = torch.load(path, weights_only=True)
    target = model.Target(model.TargetShape(**content["shape"]))
    target.load_state_dict(content["weights"])
    return target


def train(given: argparse.Namespace) -> None:
    """Run or go on with what the command line asks for."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loss = loss_of
    if given.compile:
        model.compile_layers()
        loss = torch.compile(loss_of, dynamic=False)
    target = load_target(given.start) if given.start else model.Target(model.TargetShape())
    optimizer = Optimizer(target, given.rate)
    step, spent = 0, 0.0
    if given.out.exists():
        content = torch.load(given.out, weights_only=True)
        target.load_state_dict(content["weights"])
        optimizer.load(content["optimizer"])
        step, spent = content["step"], content["seconds"]
    shares, begin = STAGES[given.stage]
    reader = Reader(given.data, Schedule(given.steps, shares, begin=begin))
    reader.skip_to(step)
    began, losses = time.monotonic() - spent, []
    while step < given.steps:
        ids, weights = (torch.from_numpy(array) for array in reader.batch())
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(target, target(ids[:, :-1])[0], ids[:, 1:], weights)
        value.backward()
        optimizer.step(share_of_rate(step, given.steps, decay_from=given.decay_from))
        step += 1
        losses.append(value.item())
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(f"the loss of step {step} is {losses[-1]}")
        if step % SAID_EVERY == 0:
            seconds = time.monotonic() - began
            mean = sum(losses[-SAID_EVERY:]) / SAID_EVERY
            cpu = time.process_time()
            print(f"step {step} {seconds:.0f} s, cpu {cpu:.0f} s, loss {mean:.3f}", flush=True)
        if step % EVERY == 0 or step == given.steps:
            save(
                given.out,
                {
                    "shape": asdict(target.shape),
                    "weights": target.state_dict(),
                    "optimizer": optimizer.state(),
                    "step": step,
                    "seconds": time.monotonic() - began,
                },
            )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True, help="the checkpoint")
    options.add_argument("--start", type=Path, help="a checkpoint to begin from")
    options.add_argument("--stage", choices=tuple(STAGES), default="doors")
    options.add_argument("--steps", type=int, required=True)
    options.add_argument("--rate", type=float, default=0.02)
    options.add_argument("--decay-from", type=float, default=0.16)
    options.add_argument("--compile", action="store_true")
    train(options.parse_args())


if __name__ == "__main__":
    main()
