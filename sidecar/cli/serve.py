"""`pillion serve`: run the daemon here, or with ``--detach`` behind the terminal."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine import PillionError, RequestError
from sidecar.cli.background import ensure_daemon
from sidecar.cli.connection import wait_until_ready
from sidecar.cli.options import ConfigFile
from sidecar.cli.terminal import (
    GREEN,
    Loading,
    describe_exactness,
    human_bytes,
    note,
    print_facts,
    styled,
)
from sidecar.config import Config, cache_options, load_config
from sidecar.runtime_dir import Address

if TYPE_CHECKING:
    from engine import EngineClient
    from sidecar.services import Services

_QUESTION = "Write a Python function that reverses a string."


def command(
    model: Annotated[
        str | None,
        typer.Option(help="builtin, smollm2-135m, a Hub id, or a folder as ./path or /path."),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Hub branch, tag or commit.")] = None,
    context: Annotated[int | None, typer.Option(help="Context in tokens.")] = None,
    draft: Annotated[
        str | None,
        typer.Option(help="auto, copy, none, or a drafter's Hub id or folder."),
    ] = None,
    draft_bits: Annotated[
        int | None, typer.Option(help="Quantise the drafter to 4 or 8 bits; 0: keep its precision.")
    ] = None,
    max_width: Annotated[
        int | None,
        typer.Option(
            "--max-width",
            "--block-size",
            help="Most tokens of one verify step, the sure one included; default: automatic.",
        ),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Use widths that are not proven exact.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="For chats that name none; 0 is greedy.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="For chats that name none.")] = None,
    top_k: Annotated[int | None, typer.Option(help="For chats that name none.")] = None,
    seed: Annotated[int | None, typer.Option(help="For chats that name none.")] = None,
    reasoning: Annotated[
        str | None,
        typer.Option(help="off, on, or a level of the model's template, such as low."),
    ] = None,
    no_thinking: Annotated[bool, typer.Option("--no-thinking", help="--reasoning off.")] = False,
    host: Annotated[str | None, typer.Option(help="Address of the HTTP door.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the HTTP door; 0: a free one.")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="Demand this key; better given as PILLION_HTTP_API_KEY."),
    ] = None,
    config: ConfigFile = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Start in the background, return when it answers.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="With --detach: return when the model is loaded.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, an object a line.")] = False,
) -> None:
    """Start the daemon: an engine behind a Unix socket and a loopback HTTP port.

    Both answer before the model is loaded. Ctrl-C, `pillion stop` or SIGTERM ends it cleanly; it
    exits 3 when the engine fails.
    """
    flags: dict[str, object] = {
        "engine.model": model,
        "engine.revision": revision,
        "engine.context": context,
        "engine.draft": draft,
        "engine.draft_bits": draft_bits,
        "engine.max_width": max_width,
        "engine.fast": fast or None,
        "chat.temperature": temperature,
        "chat.top_p": top_p,
        "chat.top_k": top_k,
        "chat.seed": seed,
        "chat.reasoning": "off" if no_thinking else reasoning,
        "http.host": host,
        "http.port": port,
        "http.api_key": api_key,
    }
    settings = load_config(flags, path=config)
    if no_thinking and reasoning not in (None, "off"):
        raise RequestError(f"--no-thinking contradicts --reasoning {reasoning}", field="reasoning")
    if wait and not detach:
        raise RequestError("--wait goes with --detach", field="wait")
    if detach:
        _detach(settings, flags, config, chosen=model is not None, wait=wait, as_json=as_json)
        return
    raise typer.Exit(_serve(settings, as_json=as_json))


def _detach(
    settings: Config,
    flags: dict[str, object],
    config_file: Path | None,
    *,
    chosen: bool,
    wait: bool,
    as_json: bool,
) -> None:
    address, started = ensure_daemon(settings, flags, config_file)
    if started is None:
        note(f"a daemon is already running (pid {address.pid}), with {address.model}")
    if chosen and address.model != settings.engine.model:
        raise PillionError(
            f"the running daemon (pid {address.pid}) serves {address.model}, not "
            f"{settings.engine.model}; `pillion stop` ends it"
        )
    _announce(address, as_json=as_json)
    if wait:
        status = started.wait_for_model(address) if started else wait_until_ready(address)
        _announce_ready(status, as_json=as_json)


def _serve(settings: Config, *, as_json: bool) -> int:
    from sidecar.daemon import Daemon
    from sidecar.upstream.client import client_of

    _log_to_stderr(settings.daemon.log_level)
    engine = client_of(settings.engine, cache_options(settings, os.environ), os.environ)
    watcher: list[asyncio.Task[None]] = []

    def opened(services: Services, address: Address) -> None:
        _announce(address, as_json=as_json)
        watcher.append(asyncio.create_task(_watch_loading(engine, services, as_json=as_json)))

    async def run() -> tuple[int, bool]:
        daemon = Daemon(settings, engine)
        code = await daemon.run(opened)
        for task in watcher:
            task.cancel()
        return code, daemon.engine_left_running

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        code, engine_left_running = runner.run(run())
        if engine_left_running:
            # Closing the loop would wait for that thread.
            sys.stdout.flush()
            os._exit(code)
    return code


async def _watch_loading(engine: EngineClient, services: Services, *, as_json: bool) -> None:
    from sidecar.collector import spare_what_is_loaded
    from sidecar.metrics import status_report

    with Loading.shown(f"loading {services.config.engine.model}") as loading:
        while (status := engine.status()).state == "loading":
            loading.show(status.detail, status.progress)
            await engine.changed()
    if status.state == "ready":
        spare_what_is_loaded()
        _announce_ready(status_report(services), as_json=as_json)


def _announce(address: Address, *, as_json: bool) -> None:
    if as_json:
        known = {"pid": address.pid, "socket": address.socket, "url": address.url}
        _print_line({"event": "listening", **known, "model": address.model})
        return
    print_facts(
        [
            ("pid", str(address.pid)),
            ("socket", address.socket),
            ("url", f"{address.url}/v1"),
            ("try", curl_line(address)),
        ]
    )
    sys.stdout.flush()


def _announce_ready(status: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        _print_line({"event": "ready", **status})
        return
    model = status["model"]
    parts = [
        model["id"],
        f"{model['parameters'] / 1e6:.1f} M parameters" if model["parameters"] else "",
        human_bytes(model["weight_bytes"]) if model["weight_bytes"] else "",
        f"context {model['context']}",
        f"drafting with {' and '.join(status['drafters'])}" if status["drafters"] else "",
        describe_exactness(status),
    ]
    sys.stdout.write(f"{styled('ready', GREEN, sys.stdout)}   {', '.join(filter(None, parts))}\n")
    for remark in status["notes"]:
        sys.stdout.write(f"note    {remark}\n")
    sys.stdout.flush()


def _print_line(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def curl_line(address: Address) -> str:
    """A request that can be pasted into a shell. A key stays out of terminals and logs."""
    key = "" if address.api_key is None else ' -H "Authorization: Bearer $PILLION_HTTP_API_KEY"'
    # Bounded: the built-in model does not always find an end of its own.
    body = json.dumps({"messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 128})
    return (
        f"curl {address.url}/v1/chat/completions{key} "
        f"-H 'Content-Type: application/json' -d '{body}'"
    )


def _log_to_stderr(level: str) -> None:
    """Ours at `level`, everybody else's from warnings up. pygls logs what clients send."""
    logging.addLevelName(logging.ERROR, "error")
    logging.addLevelName(logging.WARNING, "warning")
    logging.addLevelName(logging.INFO, "info")
    logging.basicConfig(
        format="%(asctime)s %(levelname)s: %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        stream=sys.stderr,
    )
    for name in ("sidecar", "engine", "metal"):
        logging.getLogger(name).setLevel(level.upper())
    logging.getLogger("pygls").setLevel(logging.CRITICAL)


def loop_factory() -> Any:
    """Of the event loop that the daemon runs on."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
