"""Rows of training data on disk, and the fixed order in which steps read them."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.builtin.train.corpus import Corpus, Source, collect, download
from engine.builtin.train.samples import Renderer, Sample, rename_samples, samples

Rows = npt.NDArray[np.uint16]
Weights = npt.NDArray[np.uint8]  # in tenths

LENGTH = 513  # inputs and, one later, their labels
ROWS_A_STEP = 4
OPEN_ROWS = 24
KINDS = ("plain", "fill", "edit", "write", "tool", "rename")
# Shares of rows. The second part of a stage, at falling rates, turns to plain text again.
EARLY = (0.32, 0.10, 0.10, 0.04, 0.07, 0.37)
LATE = (0.35, 0.08, 0.16, 0.03, 0.09, 0.29)
LATE_FROM = 0.5
# Characters of the longest functions in each part of the rows of renames, in the order of reading.
LONGEST_RENAMED = (160, 240, 400, 640)
# The first stage teaches text, and a little of the rest.
BASE = (0.62, 0.18, 0.10, 0.05, 0.05, 0.0)


def pack(found: Iterable[Sample], most_rows: int, end: int) -> tuple[Rows, Weights]:
    """Put whole samples into rows, each where it leaves the least room; longer ones are left out.

    A row starts with a sample, as a prompt starts a sequence, and is filled up with `end`.
    """
    full: list[tuple[list[int], list[float]]] = []
    unfilled: list[tuple[list[int], list[float]]] = []
    for ids, weights in found:
        if len(ids) > LENGTH:
            continue
        fits = [row for row in unfilled if len(row[0]) + len(ids) <= LENGTH]
        row = max(fits, key=lambda row: len(row[0]), default=None)
        if row is None:
            row = ([], [])
            unfilled.append(row)
        row[0].extend(ids)
        row[1].extend([0.0, *weights[1:]] if row[1] == [] else weights)
        if len(unfilled) > OPEN_ROWS:
            fullest = max(range(len(unfilled)), key=lambda i: len(unfilled[i][0]))
            full.append(unfilled.pop(fullest))
            if len(full) >= most_rows:
                break
    full.extend(unfilled)
    rows = np.full((len(full), LENGTH), end, np.uint16)
    tenths = np.zeros((len(full), LENGTH), np.uint8)
    for i, (ids, weights) in enumerate(full):
        rows[i, : len(ids)] = ids
        tenths[i, : len(weights)] = np.round(10 * np.array(weights))
    order = np.random.default_rng(0).permutation(len(full))[:most_rows]
    return rows[order], tenths[order]


def stream(found: Iterable[Sample], most_rows: int) -> tuple[Rows, Weights]:
    """Cut one long text of all samples into rows, in a random order."""
    ids: list[int] = []
    for sample, _ in found:
        ids.extend(sample)
        if len(ids) >= most_rows * LENGTH:
            break
    count = min(len(ids) // LENGTH, most_rows)
    rows = np.array(ids[: count * LENGTH], np.uint16).reshape(count, LENGTH)
    return rows[np.random.default_rng(0).permutation(count)], np.full_like(rows, 10, np.uint8)


def rows_of(
    kind: str, sources: list[Source], renderer: Renderer, seed: int, most_rows: int
) -> tuple[Rows, Weights]:
    """The rows of one kind of samples, [rows, LENGTH], and what each of their tokens counts."""
    if kind == "rename":
        return renames(sources, renderer, seed, most_rows)
    found = samples(kind, sources, renderer, seed)
    return stream(found, most_rows) if kind == "plain" else pack(found, most_rows, renderer.end)


def renames(
    sources: list[Source], renderer: Renderer, seed: int, most_rows: int
) -> tuple[Rows, Weights]:
    """Renames from the shortest functions to the longest, a quarter of the rows each."""
    parts = []
    for index, longest in enumerate(LONGEST_RENAMED):
        found = rename_samples(sources, renderer, seed + index, longest)
        parts.append(pack(found, most_rows // len(LONGEST_RENAMED), renderer.end))
    rows, weights = zip(*parts, strict=True)
    return np.concatenate(rows), np.concatenate(weights)


def build(corpus: Corpus, renderer: Renderer, folder: Path, most_rows: int) -> None:
    """Write `folder`/KIND.npz for each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        if (folder / f"{kind}.npz").exists():
            continue
        rows, weights = rows_of(kind, corpus.train, renderer, 1, most_rows)
        np.savez(folder / f"{kind}.npz", rows=rows, weights=weights)
        print(f"{kind}: {len(rows)} rows, {np.count_nonzero(weights) / weights.size:.0%} used")


@dataclass(frozen=True)
class Schedule:
    """Which rows a step reads: a function of (seed, step) and nothing else.

    begin: the share of each kind's rows that are skipped, because an earlier stage read them.
    """

    steps: int
    shares: tuple[tuple[float, ...], tuple[float, ...]] = (EARLY, LATE)
    seed: int = 0
    begin: tuple[float, ...] = (0.0,) * len(KINDS)

    def kinds(self, step: int) -> list[int]:
        shares = self.shares[step >= LATE_FROM * self.steps]
        draw = random.Random(f"{self.seed} {step}")
        return draw.choices(range(len(KINDS)), shares, k=ROWS_A_STEP)


class Reader:
    """Batches in the schedule's order; every kind goes through its rows in turn."""

    def __init__(self, folder: Path, schedule: Schedule) -> None:
        self._schedule = schedule
        self._kinds = [np.load(folder / f"{kind}.npz") for kind in KINDS]
        self._rows = [data["rows"] for data in self._kinds]
        self._weights = [data["weights"] for data in self._kinds]
        self._next = [
            int(begin * len(rows)) for begin, rows in zip(schedule.begin, self._rows, strict=True)
        ]
        self._step = 0

    def skip_to(self, step: int) -> None:
        """Go where a run that has made `step` steps stands."""
        while self._step < step:
            for kind in self._schedule.kinds(self._step):
                self._next[kind] += 1
            self._step += 1

    def batch(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Ids [rows, LENGTH] and weights of the labels [rows, LENGTH - 1] of the next step."""
        ids, weights = [], []
        for kind in self._schedule.kinds(self._step):
            row = self._next[kind] % len(self._rows[kind])
            ids.append(self._rows[kind][row])
            weights.append(self._weights[kind][row, 1:])
            self._next[kind] += 1
        self._step += 1
        tenths = np.stack(weights).astype(np.float32)
        return np.stack(ids).astype(np.int64), tenths / np.float32(10)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--wheels", type=Path, required=True)
    options.add_argument("--tokenizer", type=Path, required=True, help="a folder of the target")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--rows", type=int, default=6000, help="at most, of each kind")
    given = options.parse_args()
    download(given.wheels)
    build(collect(given.wheels), Renderer(given.tokenizer), given.out, given.rows)


if __name__ == "__main__":
    main()
