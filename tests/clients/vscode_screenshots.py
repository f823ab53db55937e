"""The pictures of the VS Code extension in docs: `python tests/clients/vscode_screenshots.py`."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Page, sync_playwright
from private_home import private_environment, short_folder
from vscode_workbench import REPOSITORY, Server, Window, browser, folders_removed, until

PILLION = Path(sys.executable).parent / "pillion"
DOCS = REPOSITORY / "docs"
STACK = """\
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
"""
POINTS = """\
def first(values):
    return values[0]


def average(values):
    total = 0
    for value in values:
        total = total + value
    return total / len(values)
"""
WIDTH = 960
SETTINGS = {
    "pillion.path": str(PILLION),
    "workbench.activityBar.location": "hidden",
    "window.commandCenter": False,
    "workbench.layoutControl.enabled": False,
    "breadcrumbs.enabled": False,
    "explorer.openEditors.visible": 0,
    "editor.fontSize": 13,
    "remote.autoForwardPorts": False,
}


def main() -> None:
    with window_on([PILLION, "serve", "--json"]) as window:
        window.wait_status("^builtin")
        suggestion(window)
        menu(window)
    # What the built-in model makes of an instruction is no picture of what the preview is for.
    with window_on([sys.executable, Path(__file__).with_name("scripted_daemon.py")]) as window:
        window.wait_status("^fake")
        edit(window)


@contextlib.contextmanager
def window_on(daemon: list[str | Path]) -> Iterator[Window]:
    """A window on a project, and this daemon behind it."""
    with folders_removed(short_folder()) as home:
        environment = private_environment(home) | {"PILLION_HTTP_PORT": "0"}
        project = home / "project"
        project.mkdir()
        (project / "stack.py").write_text(STACK)
        (project / "average.py").write_text(POINTS)
        with subprocess.Popen(daemon, env=environment, stdout=subprocess.PIPE, cwd=home) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                with (
                    contextlib.closing(Server(home, environment, SETTINGS)) as server,
                    sync_playwright() as playwright,
                    browser(playwright) as chromium,
                ):
                    yield Window(server, chromium.new_page(device_scale_factor=1.5), project)
            finally:
                process.terminate()


def suggestion(window: Window) -> None:
    window.page.set_viewport_size({"width": WIDTH, "height": 400})
    window.open("stack.py")
    window.key("Control+End")
    window.type("        return self.it")
    until(window.ghost)
    until(lambda: "tok/s" in window.status())
    picture(window.page, "vscode-suggestion")
    window.key("Escape")


def menu(window: Window) -> None:
    window.page.set_viewport_size({"width": WIDTH, "height": 640})
    window.command("Pillion: Show Menu")
    window.page.locator(".quick-input-list .monaco-list-row").first.wait_for()
    picture(window.page, "vscode-menu")


def edit(window: Window) -> None:
    window.page.set_viewport_size({"width": WIDTH, "height": 400})
    window.open("average.py")
    window.key("Control+b", "Control+a", "Control+Alt+e")
    window.answer("Rename `values` to `numbers`.")
    until(window.proposal)
    window.wait_proposal_changes(4)
    window.key("Alt+Backspace")
    window.wait_proposal_changes(3)
    picture(window.page, "vscode-edit")


def picture(page: Page, name: str) -> None:
    page.mouse.move(WIDTH / 2, 330)
    page.wait_for_timeout(700)  # until nothing moves any more
    page.screenshot(path=DOCS / f"{name}.png", caret="initial")


if __name__ == "__main__":
    main()
