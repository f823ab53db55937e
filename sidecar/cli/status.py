"""`pillion status`: what the daemon is doing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import typer

from sidecar.cli.connection import Rpc, find_daemon
from sidecar.cli.options import AsJson, ConfigFile
from sidecar.cli.surplus import saved_line
from sidecar.cli.terminal import describe_exactness, human_bytes, print_facts, print_json
from sidecar.config import load_config


def command(
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what the daemon is doing. Exits 1 when none is running."""
    address = find_daemon(load_config(path=config))
    if address is None:
        if as_json:
            print_json({"state": "not running"})
        else:
            typer.echo("no daemon is running; `pillion serve` starts one")
        raise typer.Exit(1)
    with Rpc(address) as rpc:
        status = rpc.call("pillion/status")
    if as_json:
        print_json(status)
    else:
        print_facts(rows(status))


def rows(status: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The table's lines. What is unknown while the model loads has an empty value."""
    model, totals = status["model"] or {}, status["totals"]
    percent = "" if status["progress"] is None else f" {status['progress']:.0%}"
    detail = f": {status['detail']}{percent}" if status["detail"] else ""
    yield "state", f"{status['state']}{detail}"
    yield "model", _model(model) if model else status["requested_model"]
    yield "exactness", describe_exactness(status)
    yield "kernels", status["kernels"]
    yield "drafters", ", ".join(status["drafters"]) or "none"
    yield "note", "; ".join(status["notes"])
    yield (
        "requests",
        (
            f"{status['active']} active, {status['queued']} queued; {totals['requests']} so far, "
            f"{totals['cancelled']} cancelled, {totals['failed']} failed"
        ),
    )
    yield "tokens", _tokens(totals)
    yield "drafts", _drafts(totals)
    yield "surplus", _surplus(status)
    yield "audit", _audit(totals)
    yield "memory", human_bytes(status["memory_bytes"]) if status["memory_bytes"] else ""
    cache = status["cache"]
    yield "prefix cache", f"{human_bytes(cache['memory_bytes'])} of {cache['nodes']} prefixes"
    for folder in status["workspace"]:
        yield "workspace", describe_folder(folder)
    yield "socket", status["socket"] or ""
    yield "url", f"{status['url']}/v1" if status["url"] else ""
    yield "process", f"pid {status['pid']}, up {_duration(status['uptime_s'])}"
    yield "version", status["version"]


def _model(model: dict[str, Any]) -> str:
    if model["family"] == "upstream":
        return f"{model['id']} at {model['path']} (context {model['context']})"
    return (
        f"{model['id']} ({model['family']}, {model['parameters'] / 1e6:.1f} M parameters, "
        f"{model['quantization']}, {human_bytes(model['weight_bytes'])}, "
        f"context {model['context']})"
    )


def _tokens(totals: dict[str, Any]) -> str:
    speed = ""
    if totals["decode_seconds"]:
        speed = f", {totals['completion_tokens'] / totals['decode_seconds']:.0f} tok/s"
    return (
        f"{totals['prompt_tokens']} in ({totals['cached_tokens']} cached), "
        f"{totals['completion_tokens']} out{speed}"
    )


def _drafts(totals: dict[str, Any]) -> str:
    drafted = totals["accepted"] + totals["rejected"]
    if not drafted:
        return ""
    return f"{totals['accepted']} of {drafted} accepted in {totals['rounds']} rounds"


def _surplus(status: dict[str, Any]) -> str:
    """Time saved in total, and by kind of text how much for each token."""
    regimes = status["regimes"]
    if not any(regime["drafters"] for regime in regimes):
        return ""
    each = ", ".join(
        f"{regime['regime']} {regime['surplus_ms']:+.1f} ms/token" for regime in regimes
    )
    slow = status["slowdown"]
    now = f"; rounds take {slow:.2f} times what was measured" if abs(slow - 1) > 0.1 else ""
    return f"{saved_line(sum(regime['saved'] for regime in regimes))}; {each}{now}"


def _audit(totals: dict[str, Any]) -> str:
    if not totals["audits"]:
        return ""
    return f"{totals['audits']} replies decoded again, {totals['audit_differences']} differences"


def describe_folder(folder: dict[str, Any]) -> str:
    """One `WatchStatus` in words."""
    said = f"{folder['root']}: {folder['mode']}"
    if folder["detail"]:
        said += f" ({folder['detail']})"
    if folder["directories"]:
        said += f", {folder['files']} files in {folder['directories']} directories"
    if folder["last_change"] is not None:
        said += f", last change {_duration(max(time.time() - folder['last_change'], 0))} ago"
    return said


def _duration(seconds: float) -> str:
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"
