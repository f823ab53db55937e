"""`pillion doctor`: what could keep Pillion from working here, by name."""

from __future__ import annotations

import json
import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

import engine
from engine import PillionError
from sidecar import tcp_socket
from sidecar.cli.background import child_environment
from sidecar.cli.connection import Rpc, find_daemon
from sidecar.cli.options import AsJson, ConfigFile
from sidecar.cli.status import describe_folder
from sidecar.cli.terminal import (
    GREEN,
    RED,
    YELLOW,
    describe_exactness,
    human_bytes,
    print_json,
    shown,
    styled,
)
from sidecar.config import Config, config_path, load_config, state_dir
from sidecar.runtime_dir import RuntimeDir

OK, WARNING, FATAL = "ok", "warning", "fatal"
_STYLES = {OK: GREEN, WARNING: YELLOW, FATAL: RED}
_LITTLE_DISK = 1 << 30

# Runs by itself, so that an MLX that crashes takes only its own process along.
_TRY_MLX = """
import json, mlx.core as mx
x = mx.ones((64, 64))
right = mx.all((x @ x) == 64).item()
print(json.dumps({"version": mx.__version__, "device": str(mx.default_device()),
                  "metal": mx.metal.is_available(), "right": right}))
"""


_TRY_KERNELS = """
from engine.cpu import Unavailable, describe
try:
    print(f"{describe()} kernels")
except Unavailable as reason:
    raise SystemExit(f"stock MLX, which is slower: {reason}")
"""


class Check(Struct, frozen=True):
    """level: ok, warning or fatal."""

    name: str
    level: str
    detail: str


def command(
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on a warning too.")] = False,
    costs: Annotated[
        bool, typer.Option("--costs", help="Show what rounds cost here, by rows, and why.")
    ] = False,
    metal: Annotated[
        bool,
        typer.Option(
            "--metal",
            help="Check the Metal kernels at the model's shapes, bits and time, and write "
            "pillion-metal.json. Exits 4 where there is no Metal.",
        ),
    ] = False,
    client: Annotated[
        str | None,
        typer.Option(
            help="Check instead that this client works with the daemon; it asks one thing."
        ),
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine, the settings and the running daemon. Exits 1 on a fatal finding."""
    if costs:
        # What it imports is not needed for the checks.
        from sidecar.cli.costs import print_costs

        print_costs(load_config(path=config), as_json=as_json)
        return
    if metal:
        from sidecar.cli.metal_check import check_metal

        check_metal(load_config(path=config), as_json=as_json)
    checks = []
    for check in _client_checks(client, config) if client is not None else checks_of(config):
        checks.append(check)
        if not as_json:
            level = styled(f"{check.level:<7}", _STYLES[check.level], sys.stdout)
            typer.echo(f"{level}  {check.name:<12}  {shown(check.detail, sys.stdout)}")
    bad = {FATAL, WARNING} if strict else {FATAL}
    failed = any(check.level in bad for check in checks)
    if as_json:
        print_json({"ok": not failed, "checks": checks})
    raise typer.Exit(1 if failed else 0)


def _client_checks(client: str, config_file: Path | None) -> Iterator[Check]:
    from sidecar.cli.client_check import checks_of_client

    for name, level, detail in checks_of_client(client, load_config(path=config_file)):
        yield Check(name, level, detail)


def checks_of(config_file: Path | None) -> Iterator[Check]:
    """Every check, each as soon as it is made."""
    yield _named("python", _python)
    yield _named("platform", _platform)
    yield _named("packages", _packages)
    yield _named("mlx", _mlx)
    if sys.platform == "linux":
        yield _named("kernels", _kernels)
    yield _named("builtin", _builtin_model)
    yield _named("search path", _search_path)
    try:
        settings = load_config(path=config_file)
    except PillionError as error:
        yield Check("settings", FATAL, error.message)
        return
    yield _named("settings", lambda: _settings(settings, config_file))
    yield _named("runtime", lambda: _runtime(settings))
    yield _named("daemon", lambda: _daemon(settings))
    yield _named("workspace", lambda: _workspace(settings))
    yield _named("port", lambda: _port(settings))
    yield _named("disk", lambda: _disk(settings))


def _named(name: str, check: Callable[[], tuple[str, str]]) -> Check:
    try:
        return Check(name, *check())
    except PillionError as error:
        return Check(name, FATAL, error.message)
    except OSError as error:
        return Check(name, FATAL, f"{error.filename or name}: {error.strerror}")


def _python() -> tuple[str, str]:
    return OK, f"{platform.python_version()}, {sys.executable}"


def _platform() -> tuple[str, str]:
    said = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if (platform.system(), platform.machine()) == ("Darwin", "arm64") or sys.platform == "linux":
        return OK, said
    return WARNING, f"{said}: Pillion is made for Apple silicon and Linux"


def _packages() -> tuple[str, str]:
    """Whether every dependency is there in a version that Pillion was made for."""
    from packaging.requirements import Requirement

    wrong, count = [], 0
    for line in metadata.requires("pillion") or []:
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        count += 1
        try:
            found = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{needed.name} is missing")
            continue
        if not needed.specifier.contains(found, prereleases=True):
            wrong.append(f"{needed.name} is {found}, needed is {needed.specifier}")
    if wrong:
        return WARNING, f"{'; '.join(wrong)}: install Pillion again"
    return OK, f"{count} dependencies, mlx-lm {metadata.version('mlx-lm')}"


def _in_a_process(script: str) -> tuple[str, str]:
    """What the script prints, and why it failed; one of the two is empty."""
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-c", script],
            capture_output=True,
            cwd="/",
            env=child_environment(os.environ, {}, None),
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", "no answer within two minutes"
    if tried.returncode != 0:
        lines = tried.stderr.decode(errors="replace").strip().splitlines()
        return "", lines[-1] if lines else f"exit code {tried.returncode}"
    return tried.stdout.decode(errors="replace").strip(), ""


def _mlx() -> tuple[str, str]:
    printed, why = _in_a_process(_TRY_MLX)
    if why:
        return FATAL, f"mlx does not work: {why}"
    facts: dict[str, Any] = json.loads(printed)
    said = f"{facts['version']}, {facts['device']}"
    if not facts["right"]:
        return FATAL, f"{said}: a small product came out wrong"
    if sys.platform == "darwin" and not facts["metal"]:
        return WARNING, f"{said}: Metal is not available"
    return OK, said


def _kernels() -> tuple[str, str]:
    """What computes the model on a CPU."""
    printed, why = _in_a_process(_TRY_KERNELS)
    return (WARNING, why) if why else (OK, printed)


def _builtin_model() -> tuple[str, str]:
    folder = Path(engine.__file__).parent / "builtin"
    weights = sorted(folder.rglob("*.safetensors"))
    if not weights or not any(folder.rglob("tokenizer.json")):
        return FATAL, f"the built-in model's files are missing in {folder}: install Pillion again"
    return OK, f"{human_bytes(sum(file.stat().st_size for file in weights))} of weights"


def _search_path() -> tuple[str, str]:
    """A relative PYTHONPATH makes every Python program run modules of the folder it starts in."""
    path = os.environ.get("PYTHONPATH")
    if path is not None and any(not Path(entry).is_absolute() for entry in path.split(os.pathsep)):
        return WARNING, (
            f"PYTHONPATH={path!r} has an empty or relative entry, so a workspace can put its own "
            "modules in the place of Python's and Pillion's: correct it"
        )
    return OK, "no module comes from the working directory"


def _settings(settings: Config, config_file: Path | None) -> tuple[str, str]:
    path = config_file or config_path(os.environ)
    if not path.exists():
        return OK, f"defaults ({path} does not exist)"
    if settings.http.api_key is not None and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        return WARNING, f"{path} may hold the API key and can be read by others: chmod 600 it"
    return OK, str(path)


def _runtime(settings: Config) -> tuple[str, str]:
    runtime = RuntimeDir.of(settings.daemon)
    if not runtime.path.exists():
        return OK, f"{runtime.path} (made when the daemon starts)"
    runtime.check()
    for path in (runtime.socket, runtime.address):
        if path.exists() and path.lstat().st_mode & 0o077:
            return FATAL, f"{path} can be used by others: `pillion stop`, and start it again"
    return OK, str(runtime.path)


def _daemon(settings: Config) -> tuple[str, str]:
    address = find_daemon(settings)
    if address is None:
        return OK, "not running"
    with Rpc(address) as rpc:
        status = rpc.call("pillion/status")
    if status["state"] != "ready":
        return WARNING, f"{status['state']}: {status['detail']}"
    return _proven(status)


def _proven(status: dict[str, Any]) -> tuple[str, str]:
    exactness, totals = status["exactness"], status["totals"]
    said = f"{status['model']['id']}, {describe_exactness(status)}"
    if totals["audit_differences"]:
        return FATAL, f"{said}; the audit found {totals['audit_differences']} wrong replies"
    if exactness is None:
        return OK, status["model"]["id"]
    capped = exactness["width"] < exactness["asked"]
    fine = exactness["exact"] and not capped and not status["notes"]
    return (OK if fine else WARNING), "; ".join((said, *status["notes"]))


def _workspace(settings: Config) -> tuple[str, str]:
    """Whether the folders that clients work in are watched, and what limits it here."""
    if settings.workspace.context == "off":
        return OK, "no file is read ([workspace] context = off)"
    address = find_daemon(settings)
    folders: list[dict[str, Any]] = []
    if address is not None:
        with Rpc(address) as rpc:
            folders = rpc.call("pillion/status").get("workspace", [])
    return check_folders(folders)


def check_folders(folders: list[dict[str, Any]]) -> tuple[str, str]:
    """Level and detail; folders: as `WatchStatus` has them."""
    polled = [folder for folder in folders if folder["mode"] == "poll"]
    if polled:
        return WARNING, "; ".join(
            f"{folder['root']} is {folder['detail']}: raise fs.inotify.max_user_watches"
            for folder in polled
        )
    if folders:
        return OK, "; ".join(map(describe_folder, folders))
    limit = Path("/proc/sys/fs/inotify/max_user_watches")
    if limit.exists():
        return OK, f"no folder is open; the system allows {limit.read_text().strip()} watches"
    return OK, "no folder is open"


def _port(settings: Config) -> tuple[str, str]:
    if (address := find_daemon(settings)) is not None:
        return OK, f"the daemon answers at {address.url}"
    with tcp_socket.listen(settings.http):
        return OK, f"{settings.http.host}:{settings.http.port} is free"


def _disk(settings: Config) -> tuple[str, str]:
    said, level = [], OK
    usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    cache = os.environ.get("PILLION_CACHE") or os.environ.get("XDG_CACHE_HOME") or usual
    for folder in (Path(cache).expanduser().absolute(), state_dir(settings)):
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        said.append(f"{human_bytes(free)} free in {folder}")
        if free < _LITTLE_DISK:
            level = WARNING
    return level, ", ".join(dict.fromkeys(said))
