"""`pillion doctor --client`: whether a client works with the daemon, from command to reply."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine import PillionError
from sidecar.cli.connection import Rpc, require_daemon
from sidecar.cli.setup import daemon_facts, named
from sidecar.clients.client import Client, Daemon
from sidecar.clients.configuration import changes
from sidecar.config import Config

OK, WARNING, FATAL = "ok", "warning", "fatal"
ASK_SECONDS = 60.0
CLIENT_SECONDS = 300.0
"""Agents wait for whole replies, which a small machine takes its time for."""

Check = tuple[str, str, str]


def checks_of_client(name: str, config: Config) -> Iterator[Check]:
    """(name, level, detail) each, as soon as it is made; the ones behind a fatal one are left out.
    Raises RequestError where there is no such client."""
    client = named(name)
    try:
        daemon = daemon_facts(config)
    except PillionError as error:
        yield "daemon", FATAL, error.message
        return
    yield "daemon", OK, f"{daemon.model} at {daemon.url}, {daemon.context} tokens"
    checks = [_program(client), _configuration(client, daemon), _context(client, daemon)]
    yield from checks
    endpoint = _endpoint(client, daemon)
    yield endpoint
    if any(level == FATAL for _, level, _ in [*checks, endpoint]):
        return
    if client.once is None:
        yield "reply", OK, f"{client.title} has to be tried by hand: {_start(client, daemon)}"
    else:
        yield _reply(client, daemon, config)


def _start(client: Client, daemon: Daemon) -> str:
    return client.start(daemon, os.environ)


def _program(client: Client) -> Check:
    if not client.program:
        return "program", OK, f"{client.title} is an editor's part and is not looked for"
    found = shutil.which(client.program)
    if found is None:
        return "program", FATAL, f"there is no {client.program} in PATH: install {client.title}"
    try:
        said = subprocess.run(
            [found, "--version"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "program", FATAL, f"{found} --version: {error}"
    lines = (said.stdout or said.stderr).strip().splitlines()
    return "program", OK, f"{found}, {lines[-1] if lines else 'no version'}"


def _configuration(client: Client, daemon: Daemon) -> Check:
    try:
        needed = [
            str(change.path) for change in changes(client, daemon, os.environ) if change.needed
        ]
    except PillionError as error:
        return "setup", FATAL, error.message
    if needed:
        said = f"{', '.join(needed)} does not point here: `pillion setup {client.name}`"
        return "setup", FATAL, said
    return "setup", OK, _start(client, daemon)


def _context(client: Client, daemon: Daemon) -> Check:
    needed = client.tokens + daemon.output
    said = f"{client.title} begins with about {client.tokens} tokens; there are {daemon.context}"
    if needed > daemon.context:
        return "context", FATAL, f"{said}: serve another model, or more of it (--context)"
    return "context", OK, said


def _endpoint(client: Client, daemon: Daemon) -> Check:
    """One question in the client's words, without the client."""
    asked: dict[str, Any] = {"model": daemon.model}
    if client.wire == "/v1/responses":
        asked |= {"input": "Say ok.", "max_output_tokens": 16}
    else:
        asked |= {"messages": [{"role": "user", "content": "Say ok."}], "max_tokens": 16}
    request = urllib.request.Request(
        f"{daemon.url}{client.wire}",
        data=json.dumps(asked).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {daemon.key}"},
    )
    # Through no proxy: the daemon is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=ASK_SECONDS) as answer:
            usage = json.load(answer)["usage"]
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        return "endpoint", FATAL, f"{client.wire} answered {error.code}: {said[:300]}"
    except (OSError, ValueError, KeyError) as error:
        return "endpoint", FATAL, f"{client.wire}: {type(error).__name__}: {error}"
    tokens = usage.get("output_tokens", usage.get("completion_tokens"))
    return "endpoint", OK, f"{client.wire} answers ({tokens} tokens)"


def _reply(client: Client, daemon: Daemon, config: Config) -> Check:
    """The client itself, in an empty folder, asking one thing; and whether it asked this daemon."""
    assert client.once is not None
    before = _requests(config)
    with tempfile.TemporaryDirectory(prefix="pillion-") as folder:
        try:
            done = _run([client.program, *client.once(daemon, os.environ)], folder)
        except subprocess.TimeoutExpired:
            return "reply", FATAL, f"{client.program} gave no answer in {CLIENT_SECONDS:.0f} s"
    asked = _requests(config) - before
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        return "reply", FATAL, f"{client.program} ended with {done.returncode}: {said}"
    if not asked:
        return "reply", FATAL, f"{client.program} answered, but did not ask this daemon"
    return "reply", OK, f"{client.program} asked {asked} times and ended well"


def _run(command: Sequence[str], folder: str) -> subprocess.CompletedProcess[str]:
    """In `folder`, with nothing to read from. Raises TimeoutExpired."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as running:
        try:
            out, err = running.communicate(timeout=CLIENT_SECONDS)
        except BaseException:
            # Most agents are started by a script; they would go on without it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, running.returncode, out, err)


def _requests(config: Config) -> int:
    with Rpc(require_daemon(config)) as rpc:
        return int(rpc.call("pillion/status")["totals"]["requests"])


def _environment() -> Mapping[str, str]:
    """With the daemon's host outside of proxies."""
    around = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1", "localhost")))
    return {**os.environ, "NO_PROXY": around, "no_proxy": around}
