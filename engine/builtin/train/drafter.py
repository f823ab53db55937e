"""Train both drafters on what the target itself writes, greedily and sampled.

First the target continues prompts of every kind; then a drafter learns, at random anchors of those
continuations, the target's own distribution over each slot of the block. Version 2 starts from
the trained version 1: its convolutions begin as the identity and its selector as nothing.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.builtin.train.dataset import KINDS
from engine.builtin.train.drafter_model import FIRST, SECOND, Drafter, DrafterShape
from engine.builtin.train.model import Target
from engine.builtin.train.optimizer import Optimizer, share_of_rate
from engine.builtin.train.train import SAID_EVERY, load_target, save

PROMPT, CONTINUED = 160, 96
TOGETHER = 96  # continuations decoded at a time
# Temperatures of the continuations, in turn: half of them are greedy.
TEMPERATURES = (0.0, 0.7, 0.0, 1.0)
TEXTS_A_STEP, BLOCKS_A_TEXT = 8, 24
SLOT_FADE = 4.0  # a slot counts when all before it are accepted, so later ones weigh less
TRUTH = 0.5  # share of the loss on the token written; the rest is on the target's distribution


def prompts(data: Path, count: int, seed: int) -> Tensor:
    """Pieces of training rows [count, PROMPT], of all kinds alike."""
    rng = np.random.default_rng(seed)
    rows = [np.load(data / f"{kind}.npz")["rows"] for kind in KINDS]
    taken = []
    for i in range(count):
        pool = rows[i % len(rows)]
        start = int(rng.integers(0, pool.shape[1] - PROMPT))
        taken.append(pool[rng.integers(len(pool)), start : start + PROMPT])
    return torch.from_numpy(np.stack(taken).astype(np.int64))


@torch.no_grad()
def continued(target: Target, prompt: Tensor, temperature: float, generator: torch.Generator):  # type: ignore[no-untyped-def]
    """prompt [B, PROMPT] and CONTINUED tokens behind it, chosen at `temperature` (0: greedy)."""
    cache, ids = target.empty_cache(), [prompt]
    with torch.autocast("cpu", torch.bfloat16):
        hidden, _ = target(prompt, cache)
        for step in range(CONTINUED):
            logits = target.logits(hidden[:, -1]).float()
            if temperature:
                weights = (logits / temperature).softmax(-1)
                chosen = torch.multinomial(weights, 1, generator=generator)
            else:
                chosen = logits.argmax(-1, keepdim=True)
            ids.append(chosen)
            if step < CONTINUED - 1:
                hidden, _ = target(chosen, cache)
    return torch.cat(ids, 1)


def rollouts(target: Target, data: Path, out: Path, count: int) -> Tensor:
    """`count` continuations [count, PROMPT + CONTINUED]; those already in `out` are kept."""
    done = list(torch.load(out, weights_only=True)) if out.exists() else []
    while len(done) * TOGETHER < count:
        turn = len(done)
        temperature = TEMPERATURES[turn % len(TEMPERATURES)]
        generator = torch.Generator().manual_seed(turn)
        prompt = prompts(data, TOGETHER, seed=1000 + turn)
        done.append(continued(target, prompt, temperature, generator))
        save(out, done)  # type: ignore[arg-type]
        print(f"continuations: {len(done) * TOGETHER}", flush=True)
    return torch.cat(done)


def slot_loss(
    drafter: Drafter, target: Target, texts: Tensor, anchors: Tensor
) -> tuple[Tensor, float]:
    """Loss in nats, and the mean number of leading slots whose best token is the one written.

    texts [B, T]; anchors [B, N], each with a whole block behind it.
    """
    shape = drafter.shape
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        hidden, tapped = target(texts, taps=shape.target_layer_ids)
    assert tapped is not None
    steps = torch.arange(shape.block_size - 1)
    before = anchors[..., None] + steps  # positions of the token before each slot
    labels = texts.gather(1, (before + 1).flatten(1)).view(before.shape)
    rows = hidden.gather(1, before.flatten(1)[..., None].expand(-1, -1, hidden.shape[-1]))
    weight = torch.exp(-steps / SLOT_FADE)
    weight = weight / weight.sum()
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            wanted = target.logits(rows).float().softmax(-1).view(*labels.shape, -1)
        own = drafter(target.embed_tokens, tapped, texts.gather(1, anchors), anchors)
        logits = target.logits(own).float()
        losses = [_against(logits, wanted, labels)]
        if shape.selector_rank:
            previous = texts.gather(1, before.flatten(1)).view(before.shape)
            logits = logits + drafter.candidate_selector(own, previous).float()
            # Both must be good: the plain logits choose the candidates.
            losses.append(_against(logits, wanted, labels))
    right = (logits.argmax(-1) == labels).float().cumprod(-1).sum(-1).mean()
    loss = sum(losses[1:], losses[0]) / len(losses)
    return (loss * weight).sum(-1).mean(), right.item()


def _against(logits: Tensor, wanted: Tensor, labels: Tensor) -> Tensor:
    log = logits.log_softmax(-1)
    truth = -log.gather(-1, labels[..., None])[..., 0]
    return TRUTH * truth - (1 - TRUTH) * (wanted * log).sum(-1)


def train(
    drafter: Drafter, target: Target, texts: Tensor, out: Path, steps: int, rate: float
) -> None:
    """Train in place; `out` is the checkpoint to go on from and to end with."""
    optimizer, step, spent = Optimizer(drafter, rate), 0, 0.0
    if out.exists():
        content = torch.load(out, weights_only=True)
        drafter.load_state_dict(content["weights"])
        optimizer.load(content["optimizer"])
        step, spent = content["step"], content["seconds"]
    began, seen = time.monotonic() - spent, []
    while step < steps:
        rng = np.random.default_rng([step, 7])
        chosen = torch.from_numpy(rng.integers(0, len(texts), TEXTS_A_STEP))
        last = texts.shape[1] - drafter.shape.block_size
        anchors = np.stack(
            [
                rng.choice(np.arange(PROMPT - 1, last + 1), BLOCKS_A_TEXT, replace=False)
                for _ in range(TEXTS_A_STEP)
            ]
        )
        loss, accepted = slot_loss(drafter, target, texts[chosen], torch.from_numpy(anchors))
        loss.backward()
        optimizer.step(share_of_rate(step, steps))
        step += 1
        seen.append((loss.item(), accepted))
        if step % SAID_EVERY == 0:
            mean = np.mean(seen[-SAID_EVERY:], axis=0)
            print(f"step {step}, loss {mean[0]:.3f}, {mean[1]:.2f} right in a row", flush=True)
        if step % 50 == 0 or step == steps:
            save(
                out,
                {
                    "shape": asdict(drafter.shape),
                    "weights": drafter.state_dict(),
                    "optimizer": optimizer.state(),
                    "step": step,
                    "seconds": time.monotonic() - began,
                },
            )


def load_drafter(path: Path) -> Drafter:
    content = torch.load(path, weights_only=True)
    drafter = Drafter(DrafterShape(**content["shape"]))
    drafter.load_state_dict(content["weights"])
    return drafter


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--target", type=Path, required=True, help="the target's checkpoint")
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True, help="a folder for checkpoints")
    options.add_argument("--continuations", type=int, default=1536)
    options.add_argument("--steps", type=int, nargs=2, default=(700, 400), help="of each version")
    options.add_argument("--rate", type=float, default=0.02)
    given = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    given.out.mkdir(parents=True, exist_ok=True)
    target = load_target(given.target).requires_grad_(False)
    texts = rollouts(target, given.data, given.out / "continuations.pt", given.continuations)
    first = Drafter(FIRST)
    train(first, target, texts, given.out / "dflash.pt", given.steps[0], given.rate)
    second = Drafter(SECOND)
    second.load_state_dict(first.state_dict(), strict=False)
    train(second, target, texts, given.out / "dflash2.pt", given.steps[1], given.rate / 2)


if __name__ == "__main__":
    main()
