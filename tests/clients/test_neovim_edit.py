"""`:Pillion edit`, fix, explain and refactor in a real Neovim: previews, hunks, progress, undo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from embedded_neovim import EmbeddedNeovim
from neovim_daemon import ScriptedDaemon

pytestmark = pytest.mark.clients

Start = Callable[..., EmbeddedNeovim]
LINES = [
    "def first(a):",
    "    return a + 1  # 😀",
    "",
    "",
    "def second(a):",
    "    return a + 2",
    "",
    "",
    "def third(a):",
    "    return a + 3",
]
TEXT = "\n".join(LINES) + "\n"
RENAME = (("return a", "return b"), (r"\(a\)", "(b)"))


def changed(*numbers: int) -> list[str]:
    """LINES after the edit RENAME of some of its functions."""
    lines = list(LINES)
    for number in numbers:
        for row in (4 * number, 4 * number + 1):
            lines[row] = lines[row].replace("(a)", "(b)").replace("return a", "return b")
    return lines


@pytest.fixture
def editor(scripted: ScriptedDaemon, neovim: Start) -> EmbeddedNeovim:
    scripted.say(edit=RENAME, explain="It **adds**.")
    return neovim(scripted.environment, "sums.py", TEXT)


def preview(editor: EmbeddedNeovim) -> list[str]:
    """The lines of the window with the hunks, which is the current one."""
    editor.wait(lambda: editor.lua("return vim.bo.filetype") == "diff")
    return editor.lines()


def test_an_edit_is_shown_before_it_is_made_and_a_hunk_can_be_left(
    editor: EmbeddedNeovim,
) -> None:
    editor.keys(":%Pillion edit Rename a to b.<CR>")
    shown = preview(editor)
    assert [line for line in shown if line.startswith("@@")] == [
        "@@ -1,2 +1,2 @@ [x]",
        "@@ -5,2 +5,2 @@ [x]",
        "@@ -9,2 +9,2 @@ [x]",
    ]
    assert "-def second(a):" in shown
    assert "+def second(b):" in shown
    editor.wait(lambda: editor.shows("+    return b + 1  # 😀"))
    editor.wait(lambda: editor.shows("Rename a to b."))
    # Nothing is changed yet.
    assert editor.lua("return vim.api.nvim_buf_get_lines(1, 0, -1, false)") == LINES
    editor.keys("]cr")
    editor.wait(lambda: "@@ -5,2 +5,2 @@ [ ]" in editor.lines())
    editor.keys("<CR>")
    editor.wait(lambda: editor.lines() == changed(0, 2))
    editor.wait(lambda: editor.shows("2 hunks applied"))
    editor.keys("u")
    editor.wait(lambda: editor.lines() == LINES)


def test_a_selection_is_what_is_edited(editor: EmbeddedNeovim) -> None:
    editor.keys("5GVj:Pillion edit Rename a to b.<CR>")
    assert sum(line.startswith("@@") for line in preview(editor)) == 1
    editor.keys("<CR>")
    editor.wait(lambda: editor.lines() == changed(1))


def test_the_instruction_is_asked_for(editor: EmbeddedNeovim) -> None:
    editor.keys("1GVj:Pillion edit<CR>")
    editor.wait(lambda: editor.shows("Pillion edit: "))
    editor.keys("Rename a to b.<CR>")
    preview(editor)
    editor.keys("<CR>")
    editor.wait(lambda: editor.lines() == changed(0))


def test_a_preview_that_is_closed_changes_nothing(editor: EmbeddedNeovim) -> None:
    editor.keys(":%Pillion edit Rename a to b.<CR>")
    preview(editor)
    editor.keys("q")
    editor.wait(lambda: editor.lines() == LINES)
    assert editor.lua("return vim.bo.modified") is False
    assert editor.lua("return #vim.api.nvim_list_wins()") == 1


def test_a_preview_of_an_older_text_is_not_forced_upon_it(editor: EmbeddedNeovim) -> None:
    editor.keys(":%Pillion edit Rename a to b.<CR>")
    preview(editor)
    editor.lua("vim.api.nvim_buf_set_lines(1, 0, 0, false, { '# new' })")
    editor.keys("<CR>")
    editor.wait(lambda: editor.shows("changed meanwhile"))
    editor.wait(lambda: editor.lines() == ["# new", *LINES])


def test_an_answer_that_is_no_edit_says_so(
    editor: EmbeddedNeovim, scripted: ScriptedDaemon
) -> None:
    scripted.say(explain="I would rather not.")
    editor.keys(":%Pillion edit Rename a to b.<CR>")
    editor.wait(lambda: editor.shows("no code block"))
    assert editor.lines() == LINES
    scripted.say(edit=(("zzz", "y"),))
    editor.keys(":%Pillion edit Rename z.<CR>")
    editor.wait(lambda: editor.lua("return require('pillion.job').current()") is None)
    editor.wait(lambda: "left the code as it is" in editor.command("messages"))


def test_crlf_stays_crlf_in_an_edit(scripted: ScriptedDaemon, neovim: Start, project: Path) -> None:
    scripted.say(edit=(("return a", "b = a\n    return b"),))
    editor = neovim(scripted.environment, "dos.py", TEXT.replace("\n", "\r\n"))
    editor.keys(":1,2Pillion edit Use b.<CR>")
    shown = preview(editor)
    assert "+    b = a" in shown
    editor.keys("<CR>:write<CR>")
    expected = TEXT.replace("    return a + 1", "    b = a\n    return b + 1")
    saved = expected.replace("\n", "\r\n").encode()
    editor.wait(lambda: (project / "dos.py").read_bytes() == saved)


def test_a_problem_that_is_reported_is_fixed(editor: EmbeddedNeovim) -> None:
    editor.lua(
        """
        vim.diagnostic.set(vim.api.nvim_create_namespace("test"), 0, {
          { lnum = 5, col = 11, end_lnum = 5, end_col = 12, message = "a is not b" } })
        """
    )
    editor.keys("6G:Pillion fix<CR>")
    preview(editor)
    editor.wait(lambda: editor.shows("Fix: a is not b"))
    editor.keys("<CR>")
    editor.wait(lambda: editor.lines() == changed(1))
    editor.keys("1G:Pillion fix<CR>")
    editor.wait(lambda: editor.shows("nothing is reported"))


def test_an_explanation_opens_beside_the_code(
    editor: EmbeddedNeovim, scripted: ScriptedDaemon
) -> None:
    scripted.say(explain="It **adds** one.\n\n- 😀")
    editor.keys("1GVj:Pillion explain<CR>")
    editor.wait(lambda: editor.lua("return vim.bo.filetype") == "markdown")
    editor.wait(lambda: editor.lines() == ["It **adds** one.", "", "- 😀"])
    editor.keys("q")
    editor.wait(lambda: editor.lines() == LINES)


def test_the_menu_of_code_actions_has_ours(editor: EmbeddedNeovim) -> None:
    editor.lua(
        """
        vim.ui.select = function(items, options, chosen)
          for _, item in ipairs(items) do
            if item.action.title:find("Edit selection") then return chosen(item) end
          end
        end
        vim.ui.input = function(options, answered) answered("Rename a to b.") end
        """
    )
    editor.keys("5GVj<Cmd>lua vim.lsp.buf.code_action()<CR>")
    preview(editor)
    editor.keys("<CR>")
    editor.wait(lambda: editor.lines() == changed(1))


@pytest.fixture
def other_file(project: Path) -> Path:
    file = project / "folder with blanks" / "other.py"
    file.parent.mkdir()
    file.write_text(TEXT)
    return file


def test_a_refactor_of_two_files_is_shown_and_applied_to_both(
    editor: EmbeddedNeovim, other_file: Path
) -> None:
    editor.keys(":Pillion refactor Rename `a` to b.<CR>")
    shown = preview(editor)
    assert sum(line.startswith("--- ") for line in shown) == 2
    # A preview that is closed leaves no buffer behind.
    editor.keys("q")
    editor.wait(lambda: len(editor.call("nvim_list_bufs")) == 1)
    editor.keys(":Pillion refactor Rename `a` to b.<CR>")
    preview(editor)
    assert other_file.read_text() == TEXT
    editor.keys("<CR>")
    editor.wait(lambda: editor.lines() == changed(0, 1, 2))
    editor.wait(lambda: editor.shows("in 2 files; :wall writes them"))
    assert other_file.read_text() == TEXT
    editor.keys(":wall<CR>")
    editor.wait(lambda: other_file.read_text() == "\n".join(changed(0, 1, 2)) + "\n")


def test_a_refactor_shows_how_far_it_is_and_can_be_cancelled(
    slow_daemon: ScriptedDaemon, neovim: Start, other_file: Path
) -> None:
    slow_daemon.say(edit=RENAME)
    editor = neovim(slow_daemon.environment, "sums.py", TEXT)
    editor.command("set statusline=%{%v:lua.require'pillion'.statusline()%} laststatus=2")
    editor.keys(":Pillion refactor Rename `a` to b.<CR>")
    editor.wait(lambda: editor.shows("Pillion refactor 0%"))
    # One at a time; the editor stays usable meanwhile.
    editor.keys(":Pillion edit Something.<CR>")
    editor.wait(lambda: editor.shows(":Pillion cancel ends it"))
    editor.keys(":Pillion cancel<CR>")
    editor.wait(lambda: editor.shows("refactor was cancelled"))
    editor.wait(lambda: editor.state() == "ready")
    assert editor.lua("return #vim.api.nvim_list_wins()") == 1
    assert (editor.lines(), other_file.read_text()) == (LINES, TEXT)
    editor.keys(":Pillion cancel<CR>")
    editor.wait(lambda: editor.shows("nothing is at work"))


def test_a_killed_daemon_loses_the_edit_and_nothing_else(
    slow_daemon: ScriptedDaemon, neovim: Start
) -> None:
    slow_daemon.say(edit=RENAME)
    # The test starts the next one.
    own = "vim.g.pillion = { cmd = { 'pillion', 'lsp', '--no-start' } }"
    editor = neovim(slow_daemon.environment, "sums.py", TEXT, before=own)
    editor.keys(":%Pillion edit Rename a to b.<CR>")
    editor.wait(lambda: editor.lua("return require('pillion.job').current()"))
    slow_daemon.kill()
    editor.wait(lambda: "lost with the connection" in editor.command("messages"))
    slow_daemon.start()
    editor.keys(":Pillion restart<CR>")
    editor.wait(editor.connected)
    assert editor.lines() == LINES
