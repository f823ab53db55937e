"""``python -m engine.targets.parity ROUNDS``: our DFlash drafters and loop against the official
ones, in float32 on the same checkpoints.

Random drafters are written in the published layout: DFlash 1 and 2, every `is_causal`, full,
windowed and mixed layers, with and without soft-capping and scales. A scripted case feeds both
sides the same hidden rows and anchors, and every draft token is compared. A generation case runs
both decoding loops on one target, and the tokens that each round commits are compared, and so its
accepted length. What the official side cannot help doing differently stands in
`engine.targets.official_dflash`.

stdout gets a JSON line (`ParityCase`) per case, or one with an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
from mlx.utils import tree_map
from mlx_lm.utils import load_model

from engine.builtin import TARGET
from engine.comparisons import ParityCase
from engine.decoding.sampling import choose
from engine.decoding.verify import commit_run
from engine.drafters.dflash import DFlashModel
from engine.drafters.dflash_drafter import DFlashDrafter
from engine.errors import EngineError, PillionError
from engine.json_file import read_json
from engine.loading.drafter import load_drafter
from engine.loading.official_dflash import official_dflash
from engine.messages import Sampling
from engine.targets.parity_cases import HIDDEN, TARGET_LAYERS, VOCABULARY, Case, generated, scripted
from engine.targets.target import Target, bind

GREEDY = Sampling()


def compare(rounds: int, report: Callable[[ParityCase], None]) -> None:
    """Run every case on both sides; `report` gets the results in order."""
    package = official_dflash()
    with tempfile.TemporaryDirectory(prefix="pillion-parity-") as scratch:
        folder = Path(scratch)
        cases = [*scripted(folder, rounds), *generated(folder, rounds)]
        environment = os.environ | {
            "PYTHONPATH": str(package),
            "HF_HUB_CACHE": str(folder / "hub"),
            "HF_HUB_OFFLINE": "1",
        }
        script = Path(__file__).with_name("official_dflash.py")
        with subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        ) as official:
            assert official.stdin is not None
            assert official.stdout is not None
            official.stdin.write(json.dumps([case.order for case in cases]).encode())
            official.stdin.close()
            for case in cases:
                ours = _loop(case) if case.target else _drafts(case)
                line = official.stdout.readline()
                if not line:
                    code = official.wait()
                    raise EngineError(f"{case.name}: the official side ended with code {code}")
                report(_compared(case, ours, json.loads(line)))


def _drafts(case: Case) -> list[list[int]]:
    model = _drafter(case, HIDDEN, VOCABULARY, TARGET_LAYERS)
    table, head = case.inputs["embedding"], case.inputs["head"]
    drafter = DFlashDrafter(
        model,
        embed=lambda tokens: table[tokens],
        head=lambda hidden: hidden @ head.T,
        sampling=GREEDY,
    )
    drafter.commit([0])
    start, found = 0, []
    for rows, anchor in zip(case.order["rows"], case.order["anchors"], strict=True):
        drafter.observe(case.inputs["hidden"][start : start + rows])
        drafter.commit([anchor] * rows)
        start += rows
        found.append(drafter.propose(model.config.block_size - 1))
    return found


def _loop(case: Case) -> list[list[int]]:
    """What each round commits."""
    assert case.target is not None
    inner, _ = load_model(case.target)
    inner.update(tree_map(lambda weight: weight.astype(mx.float32), inner.parameters()))
    target = bind(inner, read_json(case.target / "config.json"))
    table = target.embed(mx.array([0]))
    vocabulary = target.head(table).shape[-1]
    model = _drafter(case, table.shape[-1], vocabulary, len(inner.layers))
    target.tap(model.config.target_layer_ids)
    drafter = DFlashDrafter(model, embed=target.embed, head=target.head, sampling=GREEDY)
    prompt, caches = case.order["prompt"], target.new_caches()
    target.prefill(prompt[:-1], caches)
    drafter.observe(target.take_hidden())
    drafter.commit(prompt)
    run = _chosen(target, target.forward(prompt[-1:], caches))
    drafter.observe(target.take_hidden())
    runs = []
    for _ in range(case.order["rounds"]):
        drafter.commit(run)
        drafts = drafter.propose(model.config.block_size - 1)
        run = commit_run(drafts, _chosen(target, target.forward([run[-1], *drafts], caches)))
        target.roll_back(caches, len(drafts) + 1, len(run))
        drafter.observe(target.take_hidden()[: len(run)])
        runs.append(run)
    return runs


def _chosen(target: Target, logits: mx.array) -> list[int]:
    tokens: list[int] = np.array(choose(logits, range(logits.shape[0]), GREEDY)).tolist()
    return tokens


def _drafter(case: Case, hidden_size: int, vocab_size: int, num_layers: int) -> DFlashModel:
    model = load_drafter(
        case.drafter,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        num_layers=num_layers,
        bits=None,
        progress=lambda what, share: None,
    )
    model.update(tree_map(lambda weight: weight.astype(mx.float32), model.parameters()))
    return model


def _compared(case: Case, ours: Sequence[Sequence[int]], answer: dict[str, Any]) -> ParityCase:
    # The first run of the official loop is the token that its prefill chose.
    theirs = answer["drafts"] if case.target is None else answer["runs"][1 : len(ours) + 1]
    pairs = list(zip(ours, theirs, strict=True))
    accepted = [(len(a) - 1, len(b) - 1) for a, b in pairs] if case.target is not None else []
    return ParityCase(
        name=case.name,
        counts=case.target != TARGET,
        rounds=len(pairs),
        tokens=sum(len(a) for a, _ in pairs),
        token_differences=sum(
            len(a) - sum(x == y for x, y in zip(a, b, strict=False)) for a, b in pairs
        ),
        accepted=sum(a for a, _ in accepted),
        accepted_length_differences=sum(a != b for a, b in accepted),
    )


def main() -> None:
    """Libraries that print must not end up between the results."""
    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def report(case: ParityCase) -> None:
        results.write(msgspec.json.encode(case) + b"\n")
        results.flush()

    try:
        compare(int(sys.argv[1]), report)
    except PillionError as error:
        report(ParityCase(error=error.message))


if __name__ == "__main__":
    main()
