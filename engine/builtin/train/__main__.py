"""``python -m engine.builtin.train``: the whole recipe, from text to the shipped files.

Every stage goes on where it was stopped, so the same command can be given again at any time.
Stages run as processes of their own, at low priority and on one thread.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.builtin import TARGET

SHIPPED = TARGET.parent
BASE_STEPS, DOORS_STEPS = 3000, 3200
# Spinning threads and returning memory to the system cost most of the time on a shared machine.
QUIET = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "16000000000",
    "MALLOC_TOP_PAD_": "268435456",
}


def stages(work: Path, out: Path) -> list[tuple[str, list[object], Path]]:
    """Module, arguments and last product of each stage, in order."""
    wheels, data = work / "wheels", work / "data"
    base, doors = work / "base.pt", work / "doors.pt"
    drafters = work / "drafters"
    train = ["--data", data, "--compile"]
    export = ["--target", doors, "--drafters", drafters, "--tokenizer", TARGET, "--out", out]
    pair = ["--model", out / "target", "--drafters", out / "dflash", out / "dflash2"]
    measured = ["--answers", work / "answers.json", "--out", work / "report.json"]
    return [
        (
            "dataset",
            ["--wheels", wheels, "--tokenizer", TARGET, "--out", data],
            data / "rename.npz",
        ),
        (
            "train",
            [*train, "--stage", "base", "--steps", BASE_STEPS, "--rate", 0.02, "--out", base],
            work / "base.done",
        ),
        (
            "train",
            [*train, "--start", base, "--steps", DOORS_STEPS, "--rate", 0.01, "--out", doors],
            work / "doors.done",
        ),
        (
            "drafter",
            ["--target", doors, "--data", data, "--compile", "--out", drafters],
            work / "drafters.done",
        ),
        ("export", export, work / "export.done"),
        ("evaluate", ["--wheels", wheels, *pair, *measured], work / "report.json"),
        ("card", ["--report", work / "report.json", "--out", out], work / "card.done"),
    ]


def run(module: str, arguments: Sequence[object], environment: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", f"engine.builtin.train.{module}", *map(str, arguments)]
    subprocess.run(command, check=True, env=environment)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--work", type=Path, required=True, help="for wheels and checkpoints")
    options.add_argument("--out", type=Path, default=SHIPPED)
    given = options.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    os.nice(5)
    for module, arguments, product in stages(given.work, given.out):
        if not product.exists():
            print(f"{module}: {product.name}", flush=True)
            run(module, arguments, {**os.environ, **QUIET})
            product.touch()


if __name__ == "__main__":
    main()
