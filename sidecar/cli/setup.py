"""`pillion setup`: point a coding agent or an editor at the daemon."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from engine import RequestError
from sidecar.cli.changes import confirmed, show_diff
from sidecar.cli.connection import require_daemon, wait_until_ready
from sidecar.cli.options import AsJson, ConfigFile
from sidecar.cli.terminal import note, print_json
from sidecar.clients.catalog import CLIENTS, find
from sidecar.clients.client import KEY_VARIABLE, Client, Daemon
from sidecar.clients.configuration import FileChange, changes, write
from sidecar.config import Config, load_config


def command(
    client: Annotated[
        str, typer.Argument(help=f"One of {', '.join(client.name for client in CLIENTS)}.")
    ],
    show: Annotated[
        bool, typer.Option("--print", help="Print the files' new content; write nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Write without asking.")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what a client's configuration needs for the running daemon, and write it after a yes.
    Other settings in these files stay as they are. `pillion doctor --client NAME` tries it."""
    known = named(client)
    daemon = daemon_facts(load_config(path=config))
    planned = list(changes(known, daemon, os.environ))
    start = known.start(daemon, os.environ)
    if as_json:
        print_json(_facts(known, planned, start, yes and not show))
    elif show:
        for change in planned:
            typer.echo(f"# {change.path}\n{change.after.rstrip()}\n")
    else:
        for change in planned:
            if change.needed:
                show_diff(str(change.path).lstrip("/"), change.before or "", change.after)
    if not show:
        _write(planned, yes, quiet=as_json)
        if not as_json:
            _say_start(known, daemon, start)


def named(name: str) -> Client:
    """Raises RequestError (``client``)."""
    client = find(name)
    if client is None:
        names = ", ".join(client.name for client in CLIENTS)
        raise RequestError(f"client must be one of {names}; got {name!r}", field="client")
    return client


def daemon_facts(config: Config) -> Daemon:
    """What the running daemon serves, once its model is there. Raises NotRunning, NotReady."""
    address = require_daemon(config)
    model = wait_until_ready(address)["model"]
    return Daemon(
        url=address.url,
        model=model["id"],
        context=model["context"],
        api_key=config.http.api_key,
    )


def _write(planned: Sequence[FileChange], yes: bool, *, quiet: bool) -> None:
    needed = [change for change in planned if change.needed]
    if not needed:
        if not quiet:
            note("nothing to write: it is set up already")
        return
    if not yes and (quiet or not confirmed(False, "Write this?")):
        if not quiet:
            note("nothing was written; --yes writes without asking")
        return
    for change in needed:
        write(change)
        if not quiet:
            note(f"{change.path} written")


def _say_start(client: Client, daemon: Daemon, start: str) -> None:
    typer.echo(f"{client.title}: {start}")
    if client.note:
        typer.echo(client.note)
    if daemon.context < client.tokens:
        note(
            f"{client.title} begins with about {client.tokens} tokens, and {daemon.model} takes "
            f"{daemon.context}: serve another model, or more of it (--context)"
        )
    if daemon.api_key is not None:
        note(
            f"{KEY_VARIABLE} must be in its environment, with [http] api_key, where a file does "
            "not name the key itself"
        )


def _facts(
    client: Client, planned: Sequence[FileChange], start: str, written: bool
) -> dict[str, Any]:
    return {
        "client": client.name,
        "files": [
            {"path": str(change.path), "needed": change.needed, "text": change.after}
            for change in planned
        ],
        "start": start,
        "written": written and any(change.needed for change in planned),
    }
