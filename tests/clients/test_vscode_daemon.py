"""The extension in a real VS Code and the daemon that it finds, starts and loses."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from private_home import private_environment, short_folder
from vscode_workbench import Server, Window, browser, folders_removed, needs_vscode, until

pytestmark = [pytest.mark.clients, needs_vscode]

PILLION = Path(sys.executable).parent / "pillion"
STACK = """\
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        pass
"""


class Home:
    """One user's folders, with a project that brings a `pillion` of its own along."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: Mapping[str, str] = private_environment(folder) | {
            "PILLION_HTTP_PORT": "0"
        }
        # VS Code takes PATH from a login shell.
        path = f"{folder / 'project'}:{PILLION.parent}:{os.environ['PATH']}"
        (folder / ".profile").write_text(f'export PATH="{path}"\n')
        self.project = folder / "project"
        self.evil_ran = folder / "evil"
        (self.project / ".vscode").mkdir(parents=True)
        evil = self.project / "pillion"
        evil.write_text(f"#!/bin/sh\ntouch {self.evil_ran}\n")
        evil.chmod(evil.stat().st_mode | stat.S_IXUSR)
        chosen = json.dumps({"pillion.path": str(evil)})
        (self.project / ".vscode/settings.json").write_text(chosen)
        for name in ("stack", "again"):
            (self.project / f"{name}.py").write_text(STACK)

    def pillion(self, *arguments: str) -> str:
        done = subprocess.run(
            [PILLION, *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout

    def pid(self) -> int | None:
        """The running daemon's."""
        status: dict[str, Any] = json.loads(self.pillion("status", "--json"))
        return status.get("pid")


@pytest.fixture(scope="module")
def user() -> Iterator[Home]:
    with folders_removed(short_folder()) as folder:
        made = Home(folder)
        yield made
        made.pillion("stop")


@pytest.fixture(scope="module")
def window(user: Home) -> Iterator[Window]:
    """Opened where no daemon runs; now one does. Each test may be the first."""
    from playwright.sync_api import sync_playwright

    server = Server(user.folder, user.environment, {})
    with (
        contextlib.closing(server),
        sync_playwright() as playwright,
        browser(playwright) as chromium,
    ):
        opened = Window(server, chromium.new_page(), user.project)
        opened.wait_status("^builtin")
        yield opened


def test_opening_a_window_starts_the_daemon_and_typing_gets_a_suggestion(
    user: Home, window: Window
) -> None:
    assert not user.evil_ran.exists()
    ghost = suggested(window, "stack.py")
    window.key("Tab")
    window.wait_saved(
        user.project / "stack.py", STACK.replace("        pass", f"        self.it{ghost}")
    )


def suggested(window: Window, name: str) -> str:
    """What is suggested behind `self.it`, once all of that is typed and it stays the same."""
    window.clear()
    window.open(name)
    window.goto(6, 9)
    window.key("Shift+End")
    window.type("self.it")
    until(
        lambda: "self.it" in window.shown_lines() and window.ghost(),
        what=lambda: f"{window.status()}: {window.ghost()!r} in {window.shown_lines()}",
    )
    ghosts = [""]

    def same_twice() -> bool:
        ghosts.append(window.ghost())
        return ghosts[-1] == ghosts[-2] != ""

    until(same_twice)
    return ghosts[-1]


def test_a_daemon_that_was_killed_is_started_again_and_suggests(user: Home, window: Window) -> None:
    before = user.pid()
    assert before is not None
    os.kill(before, signal.SIGKILL)
    # The extension's own doing: nobody else starts one.
    until(lambda: user.pid() not in (None, before), 120)
    window.wait_status("^builtin")
    suggested(window, "again.py")


def test_a_daemon_that_was_stopped_stays_so_until_somebody_starts_it(
    user: Home, window: Window
) -> None:
    user.pillion("stop")
    window.wait_status("^Pillion: stopped")
    assert user.pid() is None
    # Started in a terminal: the window joins it.
    user.pillion("serve", "--detach")
    window.wait_status("^builtin")
    user.pillion("stop")
    window.wait_status("^Pillion: stopped")
    window.command("Pillion: Connect to the Daemon, or Start It")
    window.wait_status("^builtin")
    suggested(window, "again.py")


def test_a_path_that_is_wrong_is_an_error_that_says_so_until_it_is_corrected(
    user: Home, window: Window
) -> None:
    window.server.choose({"pillion.path": "/nowhere/pillion"})
    user.pillion("stop")
    window.wait_status("^Pillion: stopped")
    window.command("Pillion: Connect to the Daemon, or Start It")
    # A start may come before VS Code has read the settings.
    while window.wait_status("^Pillion$|^builtin") != "Pillion":
        user.pillion("stop")
        window.wait_status("^Pillion: stopped")
        window.command("Pillion: Connect to the Daemon, or Start It")
    window.command("Pillion: Show Menu")
    menu = window.page.locator(".quick-input-list .monaco-list-row").first
    until(lambda: "/nowhere/pillion" in menu.inner_text())
    window.key("Escape")
    window.server.choose({"pillion.path": str(PILLION)})
    window.wait_status("^builtin")
