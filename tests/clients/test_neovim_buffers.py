"""The Neovim plugin and what buffers can be: line ends, encodings, sizes, ones to leave alone."""

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
Start = Callable[..., EmbeddedNeovim]


@pytest.fixture
def editor(scripted: ScriptedDaemon, neovim: Start) -> EmbeddedNeovim:
    """In insert mode on an empty line with the indentation of a method, told to say APPEND."""
    scripted.say(APPEND)
    editor = neovim(scripted.environment, "stack.py", HEAD)
    editor.keys("Go")
    return editor


def test_tabs_are_as_wide_as_in_the_buffer(scripted: ScriptedDaemon, neovim: Start) -> None:
    scripted.say("\tif x {\n\t\treturn\t1\n\t}\n")
    editor = neovim(scripted.environment, "main.go", "func f(x bool) int {\n}\n")
    editor.command("setlocal tabstop=4 noexpandtab noautoindent indentexpr=")
    editor.keys("ggo")
    editor.type("\tif")
    shown = ["    if x {", "        return  1", "    }"]
    editor.wait(lambda: [row.rstrip() for row in editor.screen.text()[1:4]] == shown)
    editor.keys("<Tab>")
    editor.wait(lambda: editor.lines()[1:4] == ["\tif x {", "\t\treturn\t1", "\t}"])


def test_emoji_left_of_the_cursor_and_crlf_line_ends(
    scripted: ScriptedDaemon, neovim: Start, project: Path
) -> None:
    scripted.say("        é = '😀', self.items.append(item)\n", BLOCK)
    text = HEAD.replace("\n", "\r\n")
    editor = neovim(scripted.environment, "dos.py", text)
    assert editor.lua("return vim.bo.fileformat") == "dos"
    editor.keys("Go")
    editor.type("é = '😀', self.it")
    editor.wait_ghost("ems.append(item)")
    editor.keys("<Tab><CR>")
    editor.type("for it")
    editor.wait_ghost("em in items:\nself.push(item)\nself.count += 1")
    editor.keys("<Tab>")
    editor.wait(lambda: len(editor.lines()) == 6)
    editor.keys("<Esc>:write<CR>")
    expected = HEAD + "        é = '😀', self.items.append(item)\n" + BLOCK
    saved = expected.replace("\n", "\r\n").encode()
    editor.wait(lambda: (project / "dos.py").read_bytes() == saved)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_columns_are_right_in_every_encoding(
    scripted: ScriptedDaemon, neovim: Start, encoding: str
) -> None:
    scripted.say("        é😀漢 = self.items.append(item)\n")
    only = f"""
    local make = vim.lsp.protocol.make_client_capabilities
    vim.lsp.protocol.make_client_capabilities = function()
      local able = make()
      able.general.positionEncodings = {{ "{encoding}" }}
      return able
    end"""
    editor = neovim(scripted.environment, "wide.py", HEAD, before=only)
    editor.keys("Go")
    editor.type("é😀漢 = self.it")
    editor.wait_ghost("ems.append(item)")
    editor.keys("<Tab>")
    editor.wait(lambda: editor.lines()[-1] == "        é😀漢 = self.items.append(item)")


@pytest.mark.parametrize(
    "setting",
    ["readonly", "nomodifiable", "buftype=nofile", "filetype=help"],
)
def test_a_buffer_that_is_not_to_be_edited_is_left_alone(
    scripted: ScriptedDaemon, neovim: Start, setting: str
) -> None:
    scripted.say(APPEND)
    editor = neovim(scripted.environment, "stack.py", HEAD)
    editor.command(f"setlocal {setting}")
    asked = editor.asked()
    if setting != "nomodifiable":
        editor.keys("Go")
        editor.type("self.it")
        editor.wait(lambda: editor.mode() == "i")
    editor.let_pauses_end()
    assert editor.ghost() == ""
    assert editor.asked() == asked
    why = editor.lua("return select(2, require('pillion').attach(vim.api.nvim_get_current_buf()))")
    assert why


def test_a_buffer_without_a_file_is_left_alone(scripted: ScriptedDaemon, neovim: Start) -> None:
    editor = neovim(scripted.environment, "stack.py", HEAD)
    editor.command("enew")
    editor.keys("i")
    editor.type("        self.it")
    editor.let_pauses_end()
    assert not editor.connected()
    assert (editor.asked(), editor.ghost()) == (0, "")


def test_twenty_thousand_lines(scripted: ScriptedDaemon, neovim: Start) -> None:
    text = "".join(f"x{number} = {number}\n" for number in range(20_000)) + HEAD
    scripted.say(APPEND)
    editor = neovim(scripted.environment, "long.py", text)
    editor.keys("Go")
    editor.type("self.it", pause=0)
    editor.wait_ghost("ems.append(item)")
    editor.keys("<Tab>")
    editor.wait(lambda: editor.lines()[-1] == APPEND.rstrip())
    assert len(editor.lines()) == 20_003


def test_a_buffer_that_was_read_again_from_the_disk_is_what_is_completed(
    editor: EmbeddedNeovim, scripted: ScriptedDaemon, project: Path
) -> None:
    """As when an agent edits the file under the editor."""
    editor.keys("<Esc>:write<CR>")
    editor.wait(lambda: editor.lua("return vim.bo.modified") is False)
    (project / "stack.py").write_text("# first\n# second\n" + HEAD)
    editor.command("set autoread")
    editor.command("checktime")
    editor.wait(lambda: editor.lines()[0] == "# first")
    scripted.say("# second\n" + HEAD + APPEND)
    editor.keys("Go")
    editor.type("self.it")
    editor.wait_ghost("ems.append(item)")
