"""The Neovim plugin on a real screen: what is typed, what is shown, what is accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from embedded_neovim import EmbeddedNeovim
from neovim_daemon import ScriptedDaemon

pytestmark = pytest.mark.clients

HEAD = "class Stack:\n    def push(self, item):\n"
APPEND = "        self.items.append(item)\n"
BLOCK = "        for item in items:\n            self.push(item)\n            self.count += 1\n"
BLOCK_BEHIND = "em in items:\nself.push(item)\nself.count += 1"
"""What is left of BLOCK behind `for it`, as the screen has it."""
Start = Callable[..., EmbeddedNeovim]


@pytest.fixture
def editor(scripted: ScriptedDaemon, neovim: Start) -> EmbeddedNeovim:
    """In insert mode on an empty line with the indentation of a method, told to say APPEND."""
    scripted.say(APPEND)
    editor = neovim(scripted.environment, "stack.py", HEAD)
    editor.keys("Go")
    return editor


def test_typing_shows_ghost_text_and_accepting_it_is_one_step_of_undo(
    editor: EmbeddedNeovim,
) -> None:
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
    editor.wait(lambda: editor.lines()[-1] == "        self.it")
    editor.keys("<Tab>")
    editor.wait(lambda: editor.lines()[-1] == APPEND.rstrip())
    editor.wait(lambda: editor.cursor() == (3, len(APPEND) - 1))
    editor.wait(lambda: editor.mode() == "i")
    editor.wait(lambda: editor.ghost() == "")
    editor.type("  # done")
    editor.keys("<Esc>u")
    editor.wait(lambda: editor.lines()[-1] == APPEND.rstrip())
    editor.keys("u")
    editor.wait(lambda: editor.lines()[-1] == "        self.it")
    editor.keys("<C-r>")
    editor.wait(lambda: editor.lines()[-1] == APPEND.rstrip())


def test_a_word_and_then_the_rest_of_the_line(editor: EmbeddedNeovim) -> None:
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
    editor.keys("<M-Right>")
    editor.wait_ghost(".append(item)")
    editor.wait(lambda: editor.lines()[-1] == "        self.items")
    editor.keys("<M-Right><M-Right>")
    editor.wait_ghost("(item)")
    editor.keys("<S-Tab>")
    editor.wait(lambda: editor.lines()[-1] == APPEND.rstrip())
    editor.wait(lambda: editor.mode() == "i")


def test_typing_along_what_is_shown_neither_flickers_nor_asks(editor: EmbeddedNeovim) -> None:
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
    asked = editor.asked()
    editor.frames()
    editor.type("ems.appe", pause=0.03)
    editor.wait_ghost("nd(item)")
    editor.let_pauses_end()
    assert editor.asked() == asked
    frames = [frame[2].strip() for frame in editor.frames()]
    assert frames
    # Every screen of the way shows an end of the suggestion, never nothing.
    assert all(frame and "ems.append(item)".endswith(frame) for frame in frames)
    editor.keys("<BS><BS>")
    editor.wait_ghost("pend(item)")
    editor.let_pauses_end()
    assert editor.asked() == asked


def test_typing_something_else_asks_again(editor: EmbeddedNeovim, scripted: ScriptedDaemon) -> None:
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
    scripted.say("        self.item = item\n")
    editor.type("em =")
    editor.wait_ghost("item")


def test_a_block_is_shown_below_and_the_cursor_ends_behind_it(
    editor: EmbeddedNeovim, scripted: ScriptedDaemon
) -> None:
    scripted.say(BLOCK)
    editor.keys("# end<Esc>O")
    editor.type("for it")
    editor.wait_ghost(BLOCK_BEHIND)
    # The indentation is on the screen as it will be in the file.
    editor.wait(lambda: editor.screen.text()[3].startswith("            self.push"))
    editor.keys("<Tab>")
    lines = (HEAD + BLOCK).splitlines()
    editor.wait(lambda: editor.lines()[: len(lines)] == lines)
    editor.wait(lambda: editor.lines()[-1].strip() == "# end")
    editor.wait(lambda: editor.cursor() == (len(lines), len(lines[-1])))


def test_lines_of_a_block_one_after_the_other(
    editor: EmbeddedNeovim, scripted: ScriptedDaemon
) -> None:
    scripted.say(BLOCK)
    editor.type("for it")
    editor.wait_ghost(BLOCK_BEHIND)
    editor.keys("<S-Tab>")
    editor.wait_ghost("self.push(item)\nself.count += 1")
    editor.wait(lambda: editor.lines()[2:] == BLOCK.splitlines()[:1])
    # Enter and its indentation are typing along, too.
    asked = editor.asked()
    editor.keys("<CR>")
    editor.wait(lambda: editor.cursor() == (4, 12))
    editor.wait_ghost("self.push(item)\nself.count += 1")
    editor.let_pauses_end()
    assert editor.asked() == asked
    editor.keys("<S-Tab><S-Tab>")
    editor.wait(lambda: editor.lines() == (HEAD + BLOCK).splitlines())


def test_what_follows_the_cursor_is_shown_behind_the_last_line(
    editor: EmbeddedNeovim, scripted: ScriptedDaemon
) -> None:
    """Served by hand: what a server may say of a text right of the cursor."""
    editor.type("call(1)")
    editor.keys("<Left>")
    editor.lua(
        """
        local item = { insertText = ",\\n    2,\\n    3", range = {
          start = { line = 2, character = 14 }, ["end"] = { line = 2, character = 14 } } }
        local server = require("pillion.server")
        server.request = function(client, method, params, answer)
          vim.schedule(function() answer(nil, { items = { item } }) end)
        end
        require("pillion.completion").trigger()
        """
    )
    shown = ["        call(1,", "    2,", "    3)"]
    editor.wait(lambda: [row.rstrip() for row in editor.screen.text()[2:5]] == shown)
    editor.keys("<Tab>")
    editor.wait(lambda: editor.lines()[2:] == ["        call(1,", "    2,", "    3)"])


def test_a_bracket_that_the_editor_closed_is_not_inserted_twice(
    scripted: ScriptedDaemon, neovim: Start
) -> None:
    scripted.say(APPEND)
    editor = neovim(scripted.environment, "stack.py", HEAD)
    editor.command("inoremap ( ()<Left>")
    editor.keys("Go")
    editor.type("self.items.app")
    editor.wait_ghost("end(item)")
    asked = editor.asked()
    editor.type("end(")
    editor.wait(lambda: editor.lines()[-1] == "        self.items.append()")
    editor.wait(lambda: editor.screen.text()[2].rstrip() == APPEND.rstrip())
    assert editor.asked() == asked
    editor.keys("<Tab>")
    editor.wait(lambda: editor.lines()[-1] == APPEND.rstrip())


def test_dismissed_text_goes_and_a_key_brings_a_new_one(editor: EmbeddedNeovim) -> None:
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
    editor.keys("<C-]>")
    editor.wait_ghost("")
    editor.wait(lambda: editor.lines()[-1] == "        self.it")
    editor.keys("<M-Bslash>")
    editor.wait_ghost("ems.append(item)")


def test_alternatives_go_round(editor: EmbeddedNeovim, scripted: ScriptedDaemon) -> None:
    scripted.say(APPEND, alternatives=("ems.insert(0, item)",))
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
    editor.keys("<M-]>")
    editor.wait_ghost("ems.insert(0, item)")
    editor.keys("<M-]>")
    editor.wait_ghost("ems.append(item)")
    editor.keys("<M-[>")
    editor.wait_ghost("ems.insert(0, item)")
    editor.keys("<Tab>")
    editor.wait(lambda: editor.lines()[-1] == "        self.items.insert(0, item)")


def test_no_ghost_text_while_the_popup_menu_is_open(
    editor: EmbeddedNeovim, scripted: ScriptedDaemon
) -> None:
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
    editor.command("set completeopt=menuone,noselect")
    editor.keys("<C-n>")
    editor.wait(lambda: editor.lua("return vim.fn.pumvisible()") == 1)
    editor.wait_ghost("")
    editor.keys("<C-e>")
    editor.wait(lambda: editor.lua("return vim.fn.pumvisible()") == 0)
    editor.wait_ghost("ems.append(item)")
    # With the menu open the keys are the menu's.
    editor.keys("<C-n>")
    editor.wait(lambda: editor.lua("return vim.fn.pumvisible()") == 1)
    editor.wait(
        lambda: editor.lua("return vim.fn.maparg('<Tab>', 'i', false, true).buffer or 0") == 0
    )


def test_a_word_of_ideographs_is_one_of_them(scripted: ScriptedDaemon, neovim: Start) -> None:
    scripted.say("# 数据库连接 данные ok\n")
    editor = neovim(scripted.environment, "words.py", "x = 1\n")
    editor.keys("Go")
    editor.type("# 数")
    editor.wait_ghost("据库连接 данные ok")
    editor.keys("<M-Right>")
    editor.wait_ghost("库连接 данные ok")
    editor.keys("<M-Right><M-Right><M-Right><M-Right>")
    editor.wait_ghost("ok")
    editor.wait(lambda: editor.lines()[-1] == "# 数据库连接 данные")


def test_a_latin1_file_stays_latin1(scripted: ScriptedDaemon, neovim: Start, project: Path) -> None:
    scripted.say("ä = 'größe'\n")
    editor = neovim(scripted.environment, "old.py", "# Grüße\n".encode("latin-1"))
    assert editor.lua("return vim.bo.fileencoding") == "latin1"
    editor.keys("Go")
    editor.type("ä = ")
    editor.wait_ghost("'größe'")
    editor.keys("<Tab>")
    editor.wait(lambda: editor.lines()[-1] == "ä = 'größe'")
    editor.keys("<Esc>:write<CR>")
    editor.wait(
        lambda: (project / "old.py").read_bytes() == "# Grüße\nä = 'größe'\n".encode("latin-1")
    )


def test_leaving_insert_mode_or_the_line_takes_the_ghost_along(editor: EmbeddedNeovim) -> None:
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
    editor.keys("<Esc>")
    editor.wait_ghost("")
    editor.keys("A")
    editor.wait_ghost("ems.append(item)")
    editor.keys("<C-o>dd")
    editor.wait(lambda: len(editor.lines()) == 2)
    editor.wait_ghost("")
    editor.keys("<Esc>u")
    editor.wait(lambda: len(editor.lines()) == 3)
    editor.wait_ghost("")


def test_moving_the_cursor_takes_the_question_back(
    slow_daemon: ScriptedDaemon, neovim: Start
) -> None:
    slow_daemon.say("        self.items.append(" + "x" * 80 + ")\n")
    editor = neovim(slow_daemon.environment, "stack.py", HEAD)
    editor.keys("Go")
    editor.type("self.it")
    editor.wait(lambda: editor.waiting())
    editor.keys("<Left>")
    editor.wait(lambda: not editor.waiting())
    assert editor.ended() == "cancel"
    editor.wait_ghost("")
    assert editor.command("messages").strip() == ""


def test_keys_are_the_users_while_nothing_is_shown(scripted: ScriptedDaemon, neovim: Start) -> None:
    scripted.say(APPEND)
    editor = neovim(scripted.environment, "stack.py", HEAD)
    editor.lua("vim.keymap.set('i', '<Tab>', '<lt>mine>', { buffer = true })")
    editor.keys("Go<Tab>")
    editor.wait(lambda: editor.lines()[-1].strip() == "<mine>")
    editor.keys("<BS>" * len("<mine>"))
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
    editor.keys("<Tab>")
    editor.wait(lambda: editor.lines()[-1] == APPEND.rstrip())
    editor.wait_ghost("")
    editor.keys("<CR><Tab>")
    editor.wait(lambda: editor.lines()[-1].strip() == "<mine>")


def test_keys_of_ones_own(scripted: ScriptedDaemon, neovim: Start) -> None:
    scripted.say(APPEND)
    own = """
    vim.g.pillion = { keys = false }
    vim.keymap.set("i", "<C-l>", "<Plug>(pillion-accept)")
    vim.keymap.set("i", "<C-j>", "<Plug>(pillion-accept-word)")"""
    editor = neovim(scripted.environment, "stack.py", HEAD, before=own)
    editor.keys("Go")
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
    assert editor.lua("return vim.fn.maparg('<Tab>', 'i', false, true).buffer or 0") == 0
    editor.keys("<C-j>")
    editor.wait_ghost(".append(item)")
    editor.keys("<C-l>")
    editor.wait(lambda: editor.lines()[-1] == APPEND.rstrip())
    editor.keys("<C-l>x")
    editor.wait(lambda: editor.lines()[-1] == APPEND.rstrip() + "x")


def test_a_macro_means_what_it_meant_when_it_was_recorded(editor: EmbeddedNeovim) -> None:
    editor.keys("<Esc>qq")
    asked = editor.asked()
    editor.keys("o")
    editor.type("self.it")
    editor.let_pauses_end()
    assert (editor.asked(), editor.ghost()) == (asked, "")
    editor.keys("<Esc>q")
    editor.keys("2@q")
    editor.wait(lambda: len(editor.lines()) == 6)
    assert [line.strip() for line in editor.lines()[3:]] == ["self.it"] * 3
    editor.wait_ghost("")


def test_a_dot_repeats_what_was_typed(editor: EmbeddedNeovim) -> None:
    editor.keys("<Esc>o")
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
    editor.keys("<Tab>")
    editor.wait(lambda: editor.lines()[-1] == APPEND.rstrip())
    editor.keys("<Esc>.")
    editor.wait(lambda: len(editor.lines()) == 5)
    assert "\t" not in editor.lines()[-1]
    assert "self" in editor.lines()[-1] or editor.lines()[-1].strip() == ""


def test_fast_typing_leaves_one_suggestion_and_no_message(editor: EmbeddedNeovim) -> None:
    editor.type("self.items.app", pause=0)
    editor.wait_ghost("end(item)")
    # One for entering the insert mode, and none twice.
    assert editor.asked() <= 1 + len("self.items.app")
    assert editor.command("messages").strip() == ""


def test_a_suggestion_that_only_indents_can_be_accepted(
    editor: EmbeddedNeovim,
) -> None:
    """Blanks have to be inserted even where nothing of them can be seen."""
    editor.lua(
        """
        require("pillion.server").request = function(client, method, params, answer)
          local at = params.position
          local item = { insertText = "    ", range = { start = at, ["end"] = at } }
          vim.schedule(function() answer(nil, { items = { item } }) end)
        end
        require("pillion.completion").trigger()
        """
    )
    editor.wait(lambda: editor.lua("return require('pillion').visible()"))
    editor.keys("<Tab>x")
    editor.wait(lambda: editor.lines()[-1] == " " * 12 + "x")


def test_no_suggestion_in_the_middle_of_a_line_unless_asked(editor: EmbeddedNeovim) -> None:
    editor.type("return something + other")
    editor.keys("<Home>")
    asked = editor.asked()
    editor.type("self.it")
    editor.let_pauses_end()
    assert editor.asked() == asked
    editor.keys("<M-Bslash>")
    editor.wait(lambda: editor.asked() > asked)
    assert editor.asked() == asked + 1


def test_undo_and_redo_leave_no_ghost_behind(editor: EmbeddedNeovim) -> None:
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
    editor.keys("<M-Right>")
    editor.wait_ghost(".append(item)")
    editor.keys("<Esc>uu")
    editor.wait(lambda: editor.lines() == HEAD.splitlines())
    editor.wait_ghost("")
    editor.keys("<C-r><C-r>")
    editor.wait(lambda: editor.lines()[-1] == "        self.items")
    editor.wait_ghost("")


def test_a_long_suggestion_wraps_without_moving_the_cursor(
    editor: EmbeddedNeovim, scripted: ScriptedDaemon
) -> None:
    words = "alpha, beta, gamma, delta, epsilon, zeta, eta, theta, iota, kappa"
    scripted.say(f"        self.items.append({words})\n")
    editor.type("self.it")
    editor.wait(lambda: editor.ghost().endswith(")") and "\n" in editor.ghost())
    editor.wait(lambda: editor.screen.cursor == (2, len("        self.it")))
    editor.wait(lambda: editor.cursor() == (3, len("        self.it")))


def test_replace_mode_and_the_command_line_have_no_ghost_text(editor: EmbeddedNeovim) -> None:
    editor.type("self.xx")
    editor.wait(lambda: editor.lines()[-1].endswith("xx"))
    editor.keys("<Esc>hR")
    editor.type("it")
    editor.wait(lambda: editor.mode() == "R")
    editor.let_pauses_end()
    assert editor.ghost() == ""
    editor.keys("<Esc>:self.it")
    editor.let_pauses_end()
    assert editor.ghost() == ""
    editor.keys("<C-c>")


def test_the_menu_of_nvim_cmp_hides_it_too(scripted: ScriptedDaemon, neovim: Start) -> None:
    """A stand-in with nvim-cmp's functions and events; the plugin itself is on no registry."""
    scripted.say(APPEND)
    menu = """
    Menu = { open = false, listeners = {} }
    package.loaded["cmp"] = {
      visible = function() return Menu.open end,
      event = { on = function(_, name, listener) Menu.listeners[name] = listener end },
    }"""
    editor = neovim(scripted.environment, "stack.py", HEAD, before=menu)
    editor.keys("Go")
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
    editor.lua("Menu.open = true Menu.listeners.menu_opened()")
    editor.wait_ghost("")
    editor.type("e")
    editor.wait_ghost("")
    editor.lua("Menu.open = false Menu.listeners.menu_closed()")
    editor.wait_ghost("ms.append(item)")
