"""Train both drafters on what the target itself writes, greedily and sampled.

First the target continues prompts of every kind; then a drafter learns, at random anchors of those
continuations, the target's own distribution over each slot of the block. Version 2 starts from
the trained version 1: its convolutions begin as the identity and its selector as nothing.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.builtin.train.drafter_model import FIRST, SECOND, Drafter, DrafterShape
from engine.builtin.train.model import Target
from engine.builtin.train.optimizer import Optimizer, share_of_rate
from engine.builtin.train.train import SAID_EVERY, load_target, save

PROMPT, CONTINUED = 160, 96
TOGETHER = 192  # continuations decoded at a time
# Temperatures of the continuations, in turn, and of which rows the prompts are pieces: code above
# all, where guessing is hard.
TEMPERATURES = (0.0, 0.7, 1.0, 0.0, 0.7)
PROMPT_KINDS = ("plain", "fill", "edit", "plain", "tool", "write", "plain", "rename")
TEXTS_A_STEP, BLOCKS_A_TEXT = 8, 24
# The first anchor: the end of the prompts is text of people, which a third of the blocks are in.
ANCHORS_FROM = 120
SLOT_FADE = 2.5  # a slot counts when all before it are accepted, so later ones weigh less
FIRST_NORM = 0.25
TRUTH = 0.5  # share of the loss on the token written; the rest is on the target's distribution


def prompts(data: Path, count: int, seed: int) -> Tensor:
    """Pieces of training rows [count, PROMPT], of PROMPT_KINDS in turn."""
    rng = np.random.default_rng(seed)
    rows = {kind: np.load(data / f"{kind}.npz")["rows"] for kind in set(PROMPT_KINDS)}
    taken = []
    for i in range(count):
        pool = rows[PROMPT_KINDS[i % len(PROMPT_KINDS)]]
        start = int(rng.integers(0, pool.shape[1] - PROMPT))
        taken.append(pool[rng.integers(len(pool)), start : start + PROMPT])
    return torch.from_numpy(np.stack(taken).astype(np.int64))


@torch.no_grad()
def continued(
    target: Target, prompt: Tensor, temperature: float, generator: torch.Generator
) -> Tensor:
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
        save(out, done)
        print(f"continuations: {len(done) * TOGETHER}", flush=True)
    return torch.cat(done)


@dataclass(frozen=True)
class Lessons:
    """Texts [n, T] and what the frozen target makes of them, computed once (bfloat16).

    hidden [n, T, H]: final rows. tapped [n, T, taps * H]: what a drafter sees.
    """

    texts: Tensor
    hidden: Tensor
    tapped: Tensor

    def take(self, rows: Tensor) -> Lessons:
        return Lessons(self.texts[rows], self.hidden[rows], self.tapped[rows])


@torch.no_grad()
def lessons(target: Target, texts: Tensor, taps: tuple[int, ...]) -> Lessons:
    """What `target` makes of `texts`, a few at a time."""
    parts = []
    for some in texts.split(8):
        with torch.autocast("cpu", torch.bfloat16):
            hidden, tapped = target(some, taps=taps)
        assert tapped is not None
        parts.append((hidden.bfloat16(), tapped.bfloat16()))
    hidden, tapped = (torch.cat(part) for part in zip(*parts, strict=True))
    return Lessons(texts, hidden, tapped)


def slot_loss(
    drafter: Drafter, target: Target, seen: Lessons, anchors: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss in nats, and the mean number of leading slots whose best token is the one written.

    seen: of B texts; anchors [B, N], each with a whole block behind it.
    """
    shape, texts = drafter.shape, seen.texts
    steps = torch.arange(shape.block_size - 1)
    before = anchors[..., None] + steps  # positions of the token before each slot
    labels = texts.gather(1, (before + 1).flatten(1)).view(before.shape)
    rows = before.flatten(1)[..., None].expand(-1, -1, seen.hidden.shape[-1])
    rows = seen.hidden.gather(1, rows).view(*before.shape, -1)
    weight = torch.exp(-steps / SLOT_FADE)
    weight = weight / weight.sum()
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            wanted = target.logits(rows).float().softmax(-1)
        own = drafter(target.embed_tokens, seen.tapped, texts.gather(1, anchors), anchors)
        logits = target.logits(own).float()
        losses = [_against(logits, wanted, labels)]
        if shape.selector_rank:
            previous = texts.gather(1, before.flatten(1)).view(before.shape)
            logits = logits + drafter.candidate_selector(own, previous).float()
            # Both must be good: the plain logits choose the candidates.
            losses.append(_against(logits, wanted, labels))
    right = (logits.argmax(-1) == labels).float().cumprod(-1).sum(-1).mean()
    loss = sum(losses[1:], losses[0]) / len(losses)
    return (loss * weight).sum(-1).mean(), right


def _against(logits: Tensor, wanted: Tensor, labels: Tensor) -> Tensor:
    log = logits.log_softmax(-1)
    truth = -log.gather(-1, labels[..., None])[..., 0]
    return TRUTH * truth - (1 - TRUTH) * (wanted * log).sum(-1)


def train(
    drafter: Drafter,
    target: Target,
    known: Lessons,
    out: Path,
    *,
    steps: int,
    rate: float,
    compiled: bool,
) -> None:
    """Train in place; `out` is the checkpoint to go on from and to end with."""
    optimizer, step, spent = Optimizer(drafter, rate), 0, 0.0
    loss_of = torch.compile(slot_loss, dynamic=False) if compiled else slot_loss
    if out.exists():
        content = torch.load(out, weights_only=True)
        drafter.load_state_dict(content["weights"])
        optimizer.load(content["optimizer"])
        step, spent = content["step"], content["seconds"]
    began, seen = time.monotonic() - spent, []
    while step < steps:
        rng = np.random.default_rng([step, 7])
        chosen = torch.from_numpy(rng.integers(0, len(known.texts), TEXTS_A_STEP))
        last = known.texts.shape[1] - drafter.shape.block_size
        anchors = np.stack(
            [
                rng.choice(np.arange(ANCHORS_FROM, last + 1), BLOCKS_A_TEXT, replace=False)
                for _ in range(TEXTS_A_STEP)
            ]
        )
        loss, right = loss_of(drafter, target, known.take(chosen), torch.from_numpy(anchors))
        loss.backward()
        optimizer.step(share_of_rate(step, steps))
        step += 1
        seen.append((loss.item(), right.item()))
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
    """The drafter of a checkpoint that `train` saved."""
    content = torch.load(path, weights_only=True)
    drafter = Drafter(DrafterShape(**content["shape"]))
    drafter.load_state_dict(content["weights"])
    return drafter


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--target", type=Path, required=True, help="the target's checkpoint")
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True, help="a folder for checkpoints")
    options.add_argument("--start", type=Path, help="a checkpoint for version 1 to begin from")
    options.add_argument("--continuations", type=int, default=1536)
    options.add_argument("--steps", type=int, nargs=2, default=(2000, 1400), help="of each version")
    options.add_argument("--rate", type=float, default=0.02)
    options.add_argument("--compile", action="store_true")
    given = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    given.out.mkdir(parents=True, exist_ok=True)
    target = load_target(given.target).requires_grad_(False)
    texts = rollouts(target, given.data, given.out / "continuations.pt", given.continuations)
    known = lessons(target, texts, FIRST.target_layer_ids)
    first = Drafter(FIRST)
    # The target's own scale, made smaller: its head would turn rows of size one into huge logits.
    first.norm.weight.data = target.norm.weight.data * FIRST_NORM
    if given.start:
        first.load_state_dict(torch.load(given.start, weights_only=True)["weights"])
    train(
        first,
        target,
        known,
        given.out / "dflash.pt",
        steps=given.steps[0],
        rate=given.rate,
        compiled=given.compile,
    )
    second = Drafter(SECOND)
    second.load_state_dict(first.state_dict(), strict=False)
    train(
        second,
        target,
        known,
        given.out / "dflash2.pt",
        steps=given.steps[1],
        rate=given.rate / 2,
        compiled=given.compile,
    )


if __name__ == "__main__":
    main()
