"""`pillion pull`: fetch a model, or check one that is here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from engine import pull_model
from sidecar.cli.models import as_json_types, facts
from sidecar.cli.options import AsJson
from sidecar.cli.terminal import note, print_facts, print_json


def command(
    model: Annotated[
        str, typer.Argument(help="smollm2-135m, a Hub id (organisation/name) or a folder (./name).")
    ],
    revision: Annotated[str | None, typer.Option(help="Hub branch, tag or commit to pin.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a model. A download that was cut off goes on where it stopped."""
    with _progress() as progress:
        pulled = pull_model(model, revision=revision, progress=progress)
    if as_json:
        print_json(as_json_types(pulled))
    else:
        print_facts(facts(pulled))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, float | None], None]]:
    """A bar on a terminal, else a line for each step; always on stderr."""
    if not sys.stderr.isatty():
        said: set[str] = set()

        def say(what: str, _share: float | None) -> None:
            if what not in said:
                said.add(what)
                note(what)

        yield say
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("starting", total=None)
        yield lambda what, share: bars.update(
            bar, description=what, total=None if share is None else 1.0, completed=share or 0.0
        )
