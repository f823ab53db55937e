"""The `pillion` command. A verb's file is imported only when that verb is used."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from engine import EngineError, PillionError, RequestError
from sidecar.cli.terminal import say_error

EXIT_FAILURE, EXIT_USAGE, EXIT_ENGINE = 1, 2, 3

VERBS = {
    "serve": "Start the daemon.",
    "stop": "Stop the daemon.",
    "status": "Show what the daemon is doing.",
    "complete": "Complete code at a place in a file.",
    "edit": "Change code in a file as told.",
    "refactor": "Change many files as told.",
    "undo": "Take back what edit or refactor wrote.",
    "log": "List what edit and refactor wrote.",
    "generate": "Answer one prompt.",
    "chat": "Talk with the model.",
    "lsp": "Speak the Language Server Protocol on stdin and stdout.",
    "cache": "Show, check or clear what need not be computed again.",
    "models": "List the models that are here.",
    "pull": "Fetch a model.",
    "verify": "Prove that drafting changes no reply.",
    "bench": "Measure this machine.",
    "setup": "Point a coding agent or an editor at the daemon.",
    "doctor": "Check this machine and the daemon.",
}


class Verbs(TyperGroup):
    """Lists the verbs without importing them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, summary in VERBS.items():
            self.add_command(TyperCommand(name, help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, (load_verb(name) if name else command), rest


def load_verb(name: str) -> Any:
    """The typer command in ``sidecar/cli/<name>.py``."""
    module = importlib.import_module(f"sidecar.cli.{name}")
    verb = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    verb.command(name)(module.command)
    return typer.main.get_command(verb)


app = typer.Typer(
    cls=Verbs,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from sidecar.metrics import version

        typer.echo(f"pillion {version()}")
        raise typer.Exit


@app.callback()
def _pillion(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A coding sidecar: one daemon on your machine that keeps a model warm and serves editors,
    agents and scripts with exact speculative decoding."""


def main() -> None:
    """Entry point of the console script. Errors end as one line on stderr and an exit code:
    2 the caller's, 3 the engine's, 1 any other. ``PILLION_DEBUG=1`` shows tracebacks."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal in a narrow encoding shows a question mark rather than ending the verb.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="pillion")
    except Exception as error:
        if os.environ.get("PILLION_DEBUG"):
            raise
        say_error(_one_line(error))
        sys.exit(_exit_code(error))


def _one_line(error: Exception) -> str:
    if isinstance(error, PillionError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error} (PILLION_DEBUG=1 shows where)"


def _exit_code(error: Exception) -> int:
    if isinstance(error, RequestError):
        return EXIT_USAGE
    return EXIT_ENGINE if isinstance(error, EngineError) else EXIT_FAILURE
