"""What `pillion refactor` shows while it works and at its end: a table, or events for scripts."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from sidecar.cli.changes import entry_facts
from sidecar.cli.terminal import note
from sidecar.edits.journal import Entry


class Events:
    """JSON objects, one a line: ``plan``, ``file`` for each, ``end`` and ``applied``."""

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def plan(self, result: dict[str, Any]) -> None:
        """Which files, and which not."""
        self._say("plan", {"plan": result["plan"], "skipped": result["skipped"]})

    def file(self, result: dict[str, Any]) -> None:
        """A file's result, as `wire` has it."""
        self._say("file", result | figures(result))

    def end(self, result: dict[str, Any]) -> None:
        """All results, after every check."""
        states = [one["state"] for one in result["files"]]
        counts = {state: states.count(state) for state in ("changed", "unchanged", "refused")}
        refused = {one["path"]: one["reason"] for one in result["files"] if one["reason"]}
        skipped = {one["path"]: one["reason"] for one in result["skipped"]}
        self._say("end", {**counts, "skipped": len(skipped), "reasons": refused | skipped})

    def applied(self, entry: Entry) -> None:
        self._say("applied", entry_facts(entry))

    def _say(self, event: str, facts: dict[str, Any]) -> None:
        sys.stdout.write(msgspec.json.encode({"event": event, **facts}).decode() + "\n")
        sys.stdout.flush()


class Table:
    """For a person: a bar with the time left on a terminal, else a line a file, on stderr; at the
    end a row for each file."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Table:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("planning", total=None)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def plan(self, result: dict[str, Any]) -> None:
        """Which files, and which not."""
        files, places = len(result["plan"]), sum(len(one["regions"]) for one in result["plan"])
        decided = sum(one["decided"] for one in result["plan"])
        by_syntax = f"; syntax decides {decided}" if decided else ""
        note(f"{files} files, {places} places for the model{by_syntax}")
        for one in result["plan"]:
            lines = ", ".join(f"{first + 1}-{last}" for first, last in one["regions"])
            note(f"  {one['path']}{':' if lines else ''}{lines}")
        for one in result["skipped"]:
            note(f"  {one['path']} is left alone: it {one['reason']}")
        if self._bar is not None:
            self._bar.update(self._task, total=files, description="editing")

    def file(self, result: dict[str, Any]) -> None:
        """A file's result, as `wire` has it."""
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=result["path"])
        else:
            note(f"{result['path']}: {result['state']} {result['reason']}".rstrip())

    def end(self, result: dict[str, Any]) -> None:
        """A row for each file."""
        from rich.console import Console
        from rich.table import Table as Rows

        rows = Rows(box=None, header_style="bold")
        rows.add_column("file")
        rows.add_column("")
        for name in ("places", "tokens", "tok/s", "accepted/round"):
            rows.add_column(name, justify="right")
        rows.add_column("")
        for one in result["files"]:
            facts = figures(one)
            said = "; ".join(filter(None, [one["reason"], *one["notes"]]))
            rows.add_row(
                one["path"],
                one["state"],
                str(len(one["hunks"])),
                str(one["tokens"] or ""),
                f"{facts['tok_s']:.0f}" if facts["tok_s"] else "",
                f"{facts['accepted_per_round']:.2f}" if one["rounds"] else "",
                said,
            )
        width = None if sys.stderr.isatty() else 160
        Console(stderr=True, width=width, highlight=False, markup=False).print(rows)

    def applied(self, entry: Entry) -> None:
        """Said with the outcomes."""


def figures(result: dict[str, Any]) -> dict[str, float]:
    """tok_s: the decoding of a file's answers. accepted_per_round: drafted tokens."""
    seconds, rounds = result["seconds"], result["rounds"]
    return {
        "tok_s": round(result["tokens"] / seconds, 1) if seconds else 0.0,
        "accepted_per_round": round(result["accepted"] / rounds, 3) if rounds else 0.0,
    }
