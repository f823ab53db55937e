"""The extension in a real VS Code, on the real daemon with a scripted model: what a user types and
clicks, and what is then on the screen and in the files."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from private_home import private_environment, short_folder
from scripted_daemon import ScriptedDaemon
from vscode_workbench import VSIX, Server, Window, folders_removed, needs_vscode, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.clients, needs_vscode]

PILLION = Path(sys.executable).parent / "pillion"
CODE = """\
def first(values):
    return values[0]


def average(values):
    total = 0
    for value in values:
        total = total + value
    return total / len(values)


def last(values):
    return values[-1]
"""
RENAME = "Rename `values` to `numbers`."
FILES = """
accept alternatives brackets cancel discard explained fast frozen hunks indented listed moved one
refused stale toggled two unsaved
"""
BROAD = "".join(
    f"def f{number}(values):\n    return values[{number}]\n" for number in range(10_000)
)


@pytest.fixture(scope="module")
def workspace() -> Iterator[Path]:
    """A project below a path with blanks and more, in a home of its own."""
    with folders_removed(short_folder()) as home:
        folder = home / "my pröject 😀"
        (folder / "refactored").mkdir(parents=True)
        (home / "suggestions").touch()
        for name in FILES.split():
            (folder / f"{name}.py").write_text(CODE)
        for name in ("a", "b"):
            (folder / "refactored" / f"{name}.py").write_text(CODE)
        (folder / "asked.py").write_text("# pillion: rename `values` to `numbers`\n" + CODE)
        (folder / "crlf.py").write_bytes("# 😀é\r\ndef greet(title):\r\n    \r\n".encode())
        (folder / "large.py").write_text(BROAD)
        (folder / "notes.md").write_text("# Notes\n\n")
        (folder / "broken.json").write_text('{\n  "a": 1,\n}\n')
        yield folder


@pytest.fixture(scope="module")
def daemon(workspace: Path) -> Iterator[ScriptedDaemon]:
    home = workspace.parent
    started = ScriptedDaemon(home, private_environment(home) | {"PILLION_HTTP_PORT": "0"})
    yield started
    started.kill()


@pytest.fixture
def told(daemon: ScriptedDaemon) -> Iterator[ScriptedDaemon]:
    """One that tests tell in what state it is."""
    yield daemon
    daemon.tell()


@pytest.fixture(scope="module")
def server(daemon: ScriptedDaemon) -> Iterator[Server]:
    settings = {
        "pillion.path": str(PILLION),
        "[markdown]": {"pillion.enable": False},
        "files.readonlyInclude": {"**/frozen.py": True},
    }
    code_server = Server(daemon.home, daemon.environment, settings)
    try:
        yield code_server
        # Whatever the windows did, the daemon is still one that ends cleanly.
        assert daemon.process.poll() is None
        daemon.process.terminate()
        assert daemon.process.wait(60) == 0
    finally:
        code_server.close()


@pytest.fixture(scope="module")
def shared(server: Server, chromium: Browser, workspace: Path) -> Window:
    window = Window(server, chromium.new_page(), workspace)
    window.wait_status("fake")
    return window


@pytest.fixture
def window(shared: Window) -> Window:
    shared.clear()
    return shared


def test_the_extension_is_small() -> None:
    assert VSIX.stat().st_size < 400_000


def test_a_suggestion_is_taken_by_word_by_line_and_whole(window: Window, workspace: Path) -> None:
    window.open("accept.py")
    window.key("Control+End")
    window.type("\n\ndef mean(values):\n")
    window.wait_ghost("total = sum(values)\n    count = len(values)\n    return total / count")
    window.key("Control+ArrowRight")
    until(lambda: window.ghost().startswith(" = sum(values)"))
    window.key("Shift+Tab")
    until(lambda: window.ghost().startswith("    count = len(values)"))
    # At the start of a line the first one indents.
    window.key("Tab")
    until(lambda: window.ghost().startswith("count = len(values)"))
    window.key("Tab")
    window.wait_ghost("")
    taken = (
        "\n\ndef mean(values):\n    total = sum(values)\n    count = len(values)\n"
        "    return total / count"
    )
    window.wait_saved(workspace / "accept.py", CODE + taken)


def test_the_next_alternative_is_another_suggestion(window: Window) -> None:
    window.open("alternatives.py")
    window.goto(2, 5)
    window.key("Shift+End")
    window.type("first = ")
    window.wait_ghost("values[0]")
    window.key("Alt+]")
    window.wait_ghost("min(values)")
    window.key("Alt+]")
    window.wait_ghost("max(values)")
    window.key("Alt+[")
    window.wait_ghost("min(values)")
    window.key("Escape")
    window.wait_ghost("")


def test_emoji_and_crlf_stay_as_they_are(window: Window, workspace: Path) -> None:
    window.open("crlf.py")
    window.goto(3, 5)
    window.type("😀 = é; name = ")
    window.wait_ghost("'😀é' + title")
    window.key("Tab")
    window.wait_ghost("")
    expected = "# 😀é\r\ndef greet(title):\r\n    😀 = é; name = '😀é' + title\r\n"
    window.wait_saved(workspace / "crlf.py", expected)


def test_a_suggestion_is_indented_once_on_a_line_that_is_indented(
    window: Window, workspace: Path
) -> None:
    window.open("indented.py")
    window.key("Control+End")
    window.type("\n\nclass Mean:\n")
    window.type("def mean(values):\n")
    until(lambda: window.ghost().startswith("total = sum(values)"))
    window.key("Tab")
    window.wait_ghost("")
    taken = "\n    def mean(values):\n        total = sum(values)\n        count"
    until(lambda: taken in window.saved(workspace / "indented.py").decode())


def test_a_bracket_that_the_editor_closed_is_not_closed_again(
    window: Window, workspace: Path
) -> None:
    window.open("brackets.py")
    window.key("Control+End")
    window.type("\nprint(first = ")
    window.wait_ghost("values[0]")
    window.key("Tab")
    window.wait_ghost("")
    window.wait_saved(workspace / "brackets.py", CODE + "\nprint(first = values[0])")


def test_a_late_answer_is_not_shown_where_the_cursor_was(window: Window) -> None:
    window.open("stale.py")
    window.goto(2, 5)
    window.key("Shift+End")
    window.type("first = ")
    window.key("ArrowUp", "ArrowUp", "Home")
    window.type("#")
    window.page.wait_for_timeout(500)
    assert window.ghost() == ""


def test_below_the_list_of_completions_only_what_extends_the_chosen_one(window: Window) -> None:
    window.open("listed.py")
    window.goto(2, 5)
    window.key("Shift+End")
    window.type("first = ")
    window.wait_ghost("values[0]")
    window.key("Control+Space")
    listed = window.page.locator(".suggest-widget.visible .monaco-list-row.focused")
    listed.wait_for()

    def extends_the_chosen_one() -> bool:
        chosen = str(listed.get_attribute("aria-label")).split(",")[0]
        return not window.ghost() or window.ghost().startswith(chosen)

    for _ in range(3):
        until(extends_the_chosen_one)
        window.key("ArrowDown")
    window.key("Escape")
    listed.wait_for(state="detached")


def test_fast_typing_does_not_ask_at_each_key(window: Window, workspace: Path) -> None:
    window.open("fast.py")
    window.goto(2, 5)
    window.key("Shift+End")
    window.type("first = ")
    window.wait_ghost("values[0]")
    asked = workspace.parent / "suggestions"
    before, began = asked.stat().st_size, time.monotonic()
    window.type("1; a = values; b = values; first = ", pause_ms=5)
    window.wait_ghost("values[0]")
    # VS Code itself waits for 50 ms without a key, so a busy machine may ask now and then between;
    # each key would be 34, and a provider that is registered twice asks twice each time.
    pauses = (time.monotonic() - began) / 0.05
    assert asked.stat().st_size - before <= 2 + pauses


def test_a_file_of_twenty_thousand_lines(window: Window, workspace: Path) -> None:
    window.open("large.py")
    window.goto(20_000, 5)
    window.key("Shift+End")
    window.type("first = ")
    window.wait_ghost("values[0]")
    window.key("Tab")
    window.wait_ghost("")
    expected = BROAD.removesuffix("return values[9999]\n") + "first = values[0]\n"
    window.wait_saved(workspace / "large.py", expected)


def test_a_language_that_is_turned_off_gets_only_what_is_asked_for(window: Window) -> None:
    window.open("notes.md")
    window.key("Control+End")
    window.type("first = ")
    window.page.wait_for_timeout(500)
    assert window.ghost() == ""
    window.command("Pillion: Suggest at the Cursor")
    window.wait_ghost("values[0]")


def test_a_read_only_file_gets_no_suggestion_and_no_edit(window: Window, workspace: Path) -> None:
    window.open("frozen.py")
    window.goto(2, 5)
    window.type("first = ")
    window.page.wait_for_timeout(300)
    assert window.ghost() == ""
    ask_for_edit(window)
    window.command("Pillion: Accept All Changes")
    until(lambda: "read-only" in window.notifications() or not window.proposal())
    assert "numbers" not in window.saved(workspace / "frozen.py").decode()


def ask_for_edit(window: Window, instruction: str = RENAME) -> None:
    """Of the whole file; returns once the proposal is on the screen."""
    window.key("Control+a")
    window.command("Pillion: Edit Selection")
    window.answer(instruction, "Edit lines")
    until(window.in_proposal)


def test_an_edit_is_taken_and_left_change_by_change(window: Window, workspace: Path) -> None:
    window.open("hunks.py")
    ask_for_edit(window)
    window.wait_proposal_changes(5)
    window.key("Alt+Backspace")  # first
    window.wait_proposal_changes(4)
    window.key("Alt+Enter")  # the head of average
    window.wait_proposal_changes(3)
    window.key("Control+Enter")
    until(lambda: not window.proposal())
    expected = CODE.replace("values", "numbers").replace("numbers", "values", 2)
    window.wait_saved(workspace / "hunks.py", expected)
    # What was accepted at once is undone at once.
    window.key("Control+z", "Control+z")
    window.wait_saved(workspace / "hunks.py", CODE)


def test_the_arrow_between_the_two_sides_leaves_a_change_as_well(
    window: Window, workspace: Path
) -> None:
    window.open("moved.py")
    ask_for_edit(window)
    window.wait_proposal_changes(5)
    window.leave_first_change()
    window.wait_proposal_changes(4)
    assert (workspace / "moved.py").read_text() == CODE


def test_a_discarded_edit_changes_nothing(window: Window, workspace: Path) -> None:
    window.open("discard.py")
    ask_for_edit(window)
    window.key("Escape")
    until(lambda: not window.proposal())
    window.wait_saved(workspace / "discard.py", CODE)


def test_an_edit_is_of_what_the_editor_shows_not_of_what_was_saved(
    window: Window, workspace: Path
) -> None:
    window.open("unsaved.py")
    window.key("Control+Home")
    window.type("values = []\n")
    ask_for_edit(window)
    window.key("Control+Enter")
    until(lambda: not window.proposal())
    expected = ("values = []\n" + CODE).replace("values", "numbers")
    window.wait_saved(workspace / "unsaved.py", expected)


def test_an_answer_without_code_is_refused_with_a_word(window: Window, workspace: Path) -> None:
    window.open("refused.py")
    window.key("Control+a")
    window.command("Pillion: Edit Selection")
    window.answer("Answer in prose.", "Edit lines")
    until(lambda: "no code block" in window.notifications())
    assert not window.proposal()


def test_a_cancelled_edit_leaves_the_model(
    window: Window, workspace: Path, daemon: ScriptedDaemon
) -> None:
    window.open("cancel.py")
    window.key("Control+a")
    window.command("Pillion: Edit Selection")
    window.answer("Rename slowly `values` to `numbers`.", "Edit lines")
    window.cancel()
    until(lambda: daemon.status()["active"] == 0)
    assert not window.proposal()
    window.wait_saved(workspace / "cancel.py", CODE)


def test_a_comment_that_asks_becomes_a_code_action(window: Window, workspace: Path) -> None:
    window.open("asked.py")
    window.goto(1, 3)
    window.key("Control+.")
    window.pick_action("Pillion: rename")
    until(window.in_proposal)
    window.key("Control+Enter")
    until(lambda: not window.proposal())
    until(lambda: "numbers" in window.saved(workspace / "asked.py").decode())


def test_a_problem_that_the_editor_reports_is_fixed(window: Window, workspace: Path) -> None:
    window.open("broken.json")
    window.page.locator(".squiggly-error, .squiggly-warning").first.wait_for(state="attached")
    window.goto(2, 9)
    window.key("Control+.")
    window.pick_action("Pillion: Fix: Trailing comma")
    until(window.in_proposal)
    window.key("Control+Enter")
    until(lambda: not window.proposal())
    window.wait_saved(workspace / "broken.json", '{\n  "a": 1\n}\n')


def test_an_explanation_is_shown_beside_the_code(window: Window) -> None:
    window.open("explained.py")
    window.key("Control+a")
    window.command("Pillion: Explain")
    frame = window.page.frame_locator("iframe.webview").frame_locator("iframe")
    frame.locator("strong").filter(has_text="adds").wait_for()


def test_a_refactor_is_looked_at_taken_and_taken_back(window: Window, workspace: Path) -> None:
    places = [workspace / "refactored" / name for name in ("a.py", "b.py")]
    window.open("explained.py")
    ask_for_refactor(window, RENAME)
    window.page.get_by_text("Apply", exact=True).click()
    changed = CODE.replace("values", "numbers")
    until(lambda: [place.read_text() for place in places] == [changed, changed])
    until(lambda: "2 files changed" in window.notifications())
    window.command("Pillion: Undo Last Refactor")
    until(lambda: [place.read_text() for place in places] == [CODE, CODE])


def test_a_discarded_refactor_changes_nothing(window: Window, workspace: Path) -> None:
    window.open("explained.py")
    ask_for_refactor(window, RENAME)
    window.page.get_by_text("Discard", exact=True).click()
    window.page.get_by_text("Discard", exact=True).wait_for(state="detached")
    assert (workspace / "refactored/a.py").read_text() == CODE


def test_a_cancelled_refactor_changes_nothing(
    window: Window, workspace: Path, daemon: ScriptedDaemon
) -> None:
    window.open("explained.py")
    ask_for_refactor(window, "Rename slowly `values` to `numbers`.")
    window.cancel()
    until(lambda: daemon.status()["active"] == 0)
    assert (workspace / "refactored/a.py").read_text() == CODE


def ask_for_refactor(window: Window, instruction: str) -> None:
    window.command("Pillion: Refactor Workspace")
    window.answer(instruction, "1 of 2")
    window.answer("refactored/*.py", "2 of 2")


def test_two_windows_each_with_its_own_suggestions(
    window: Window, server: Server, chromium: Browser, workspace: Path
) -> None:
    other = Window(server, chromium.new_page(), workspace)
    other.wait_status("fake")
    for one, name in ((window, "one.py"), (other, "two.py")):
        one.open(name)
        one.goto(2, 5)
        one.key("Shift+End")
    window.type("first = ")
    other.type("first = ")
    window.wait_ghost("values[0]")
    other.wait_ghost("values[0]")
    other.page.close()
    window.key("Tab")
    window.wait_ghost("")
    taken = "def first(values):\n    first = v"
    until(lambda: window.saved(workspace / "one.py").decode().startswith(taken))


def test_the_menu_turns_suggestions_off_for_a_language_and_on_again(
    window: Window, workspace: Path
) -> None:
    window.open("toggled.py")
    window.pick("Turn Off for python")
    window.wait_menu("uggestions are off for python")
    window.goto(2, 5)
    window.key("Shift+End")
    asked = (workspace.parent / "suggestions").stat().st_size
    window.type("first = ")
    window.page.wait_for_timeout(500)
    assert (workspace.parent / "suggestions").stat().st_size == asked
    window.pick("Turn On for python")
    window.wait_menu("fake is ready")
    window.key("End")
    window.type("1\n    first = ")
    window.wait_ghost("values[0]")


def test_the_log_is_an_output_channel(window: Window) -> None:
    """What is in it is not looked at: a code-server without native modules writes no logs."""
    window.command("Pillion: Show Log")
    until(lambda: window.output_channel() == "Pillion", what=window.output_channel)
    window.key("Control+j")


def test_the_walkthrough_begins_with_the_command(window: Window) -> None:
    window.command("Welcome: Open Walkthrough...")
    rows = window.page.locator(".quick-input-list .monaco-list-row")
    rows.filter(has_text="Get Started with Pillion").click()
    step = window.page.locator(".getting-started-step.expanded")
    step.filter(has_text="Install the pillion command").wait_for()


def test_the_status_bar_says_each_state_and_the_menu_says_why(
    window: Window, told: ScriptedDaemon
) -> None:
    told.tell(state="loading", progress=0.4, detail="weights", model=None)
    window.wait_status("^Pillion: loading 40 %$")
    window.wait_menu("weights")
    told.tell(drafters=(), notes=("no drafter fits this model",))
    window.wait_status(r"^fake \(target-only\)$")
    window.wait_menu("no drafter fits this model")
    told.tell()
    window.wait_status("^fake$")


def test_a_model_that_cannot_be_had_is_an_error_that_says_what_to_do(
    window: Window, told: ScriptedDaemon
) -> None:
    told.tell(state="loading", progress=0.4, detail="weights", model=None)
    window.wait_status("^Pillion: loading 40 %$")
    told.tell(state="failed", detail="layers.7 is missing", model=None)
    window.wait_status("^Pillion$")
    window.wait_menu("layers.7 is missing")
    assert told.process.wait(60) == 3
    told.kill()
    told.tell()
    told.start()
    window.command("Pillion: Connect to the Daemon, or Start It")
    window.wait_status("^fake$")
