"""How far a long measurement is."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator

from sidecar.cli.terminal import note


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar with the time left on a terminal, else a line for every tenth."""
    if not sys.stderr.isatty():
        steps = itertools.count(1)

        def say() -> None:
            done = next(steps)
            if done * 10 // total > (done - 1) * 10 // total:
                note(f"{what}: {done} of {total}")

        yield say
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
