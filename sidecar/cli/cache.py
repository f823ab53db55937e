"""`pillion cache`: what the running daemon need not compute again."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import typer

from engine import PillionError
from sidecar.cli.connection import Rpc, require_daemon
from sidecar.cli.options import AsJson, ConfigFile
from sidecar.cli.terminal import human_bytes, print_facts, print_json, shown
from sidecar.config import load_config

# Every file of the cache is read once.
_VERIFY_SECONDS = 600.0


class Action(enum.StrEnum):
    """What can be done with it."""

    show = "show"
    tree = "tree"
    clear = "clear"
    verify = "verify"


def command(
    action: Annotated[Action, typer.Argument(help="What to do with it.")] = Action.show,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the prefix cache of the running daemon, or every prefix in it (tree); forget all that no
    request is using, in memory and on disk (clear); or check it, file by file (verify), which
    removes what is damaged and exits 1 when the cache itself is not in order. Files are removed by
    the daemon that writes them, where there are several."""
    with Rpc(require_daemon(load_config(path=config))) as rpc:
        report = rpc.call("pillion/cache", {"action": action.value}, timeout=_VERIFY_SECONDS)
    if as_json:
        print_json(report)
    elif action is Action.tree:
        for line in tree(report["nodes"]):
            typer.echo(line)
    elif action is Action.clear:
        typer.echo(f"{report['removed']} entries removed{_left(report['status'], 'all files')}")
    elif action is Action.verify:
        left = _left(report["status"], "these") if report["damaged"] else ""
        damaged = f"{report['damaged']} damaged{'' if left else ' and removed'}"
        typer.echo(f"{report['checked']} files read, {damaged}{left}")
    else:
        print_facts(rows(report["status"]))
    if report["problem"]:
        raise PillionError(report["problem"])


def _left(status: Mapping[str, Any], which: str) -> str:
    """What this daemon may not remove."""
    state, folder = status["disk_state"], status["disk_folder"]
    if state == "reading":
        return f"; {which} are left to the daemon that writes in {folder}"
    return f"; {which} are left, since {folder} is read only" if state == "read only" else ""


def rows(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The table of `show`."""
    yield (
        "memory",
        (
            f"{human_bytes(status['memory_bytes'])} of {human_bytes(status['memory_budget'])}: "
            f"{status['nodes']} prefixes, {status['snapshots']} snapshots"
        ),
    )
    yield "disk", _disk(status)
    yield "folder", status["disk_folder"]
    yield "hits", "; ".join(hits(status["hits"])) or "none yet"
    yield "shared", f"{status['shared_tokens']} tokens" if status["shared_tokens"] else ""
    yield "saved", f"{status['saved_seconds']:.1f} s"
    yield (
        "dropped",
        ", ".join(f"{e['count']} {e['tier']} ({e['reason']})" for e in status["evictions"]),
    )


def _disk(status: Mapping[str, Any]) -> str:
    state, detail = status["disk_state"], status["disk_detail"]
    said = f"{state}: {detail}" if detail else state
    if state in ("off", "opening"):
        return said
    return (
        f"{human_bytes(status['disk_bytes'])} of {human_bytes(status['disk_budget'])} in "
        f"{status['disk_files']} files; {said}"
    )


def hits(found: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Tokens that were found, by what made them known and where they were."""
    for hit in found:
        yield f"{hit['tokens']} tokens by {hit['kind']} from {hit['tier']}"


def tree(nodes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A line a prefix, indented by what it hangs on."""
    import sys

    for node in nodes:
        marks = [name for name in ("snapshot", "on_disk", "locked", "demoted") if node[name]]
        facts = [
            f"{node['start']}-{node['end']}",
            human_bytes(node["bytes"]),
            f"{node['hits']} hits",
            *(mark.replace("_", " ") for mark in marks),
            *([node["path"]] if node["path"] else []),
        ]
        text = shown(repr(node["text"]), sys.stdout)
        yield f"{'  ' * node['depth']}{text}  {', '.join(facts)}"
