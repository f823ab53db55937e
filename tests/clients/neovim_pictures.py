"""The pictures of docs/: `python tests/clients/neovim_pictures.py`. What a real Neovim has on its
screen, cell by cell, as SVG."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).parents[1]))

from embedded_neovim import EmbeddedNeovim, Screen
from neovim_daemon import ScriptedDaemon
from private_home import private_environment, short_folder

DOCS = Path(__file__).parents[2] / "docs"
COLUMNS, ROWS, WIDTH, HEIGHT, SIZE = 78, 26, 9, 20, 15
FONT = "DejaVu Sans Mono, Menlo, Consolas, monospace"
CODE = '''\
class Stack:
    """Last in, first out."""

    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def walk(self):

    def peek(self):
        return self.items[-1]
'''
BLOCK = """\
        for item in self.items:
            yield item
            yield from item.children
"""
SETUP = """
vim.o.number, vim.o.laststatus, vim.o.ruler, vim.o.showmode = true, 2, false, false
vim.o.statusline = " %f %m%=%{%v:lua.require'pillion'.statusline()%}  %l:%c "
vim.o.background = "dark"
"""


def style_of(screen: Screen, look: int) -> tuple[int, int, str]:
    """Ink, paper, and SVG attributes of a cell."""
    style = screen.looks.get(look, {})
    ink = style.get("foreground", screen.colors["foreground"])
    paper = style.get("background", screen.colors["background"])
    if style.get("reverse"):
        ink, paper = paper, ink
    slant = ' font-style="italic"' if style.get("italic") else ""
    weight = ' font-weight="bold"' if style.get("bold") else ""
    return ink, paper, slant + weight


def drawn_row(screen: Screen, y: int) -> Iterator[str]:
    """Backgrounds, then each run of one style, every character at its own place."""
    row = [(char, *style_of(screen, look)) for char, look in screen.cells[y]]
    for paper, run in groupby(enumerate(row), key=lambda cell: cell[1][2]):
        cells = [x for x, _ in run]
        if paper != screen.colors["background"]:
            yield (
                f'<rect x="{cells[0] * WIDTH}" y="{y * HEIGHT}" width="{len(cells) * WIDTH}" '
                f'height="{HEIGHT}" fill="#{paper:06x}"/>'
            )
    if screen.cursor[0] == y:
        x = screen.cursor[1] * WIDTH
        yield f'<rect x="{x}" y="{y * HEIGHT}" width="2" height="{HEIGHT}" fill="#e0e2ea"/>'
    inked = [(x, cell) for x, cell in enumerate(row) if cell[0].strip()]
    for (ink, extra), run in groupby(inked, key=lambda cell: (cell[1][1], cell[1][3])):
        cells = list(run)
        at = " ".join(str(x * WIDTH) for x, _ in cells)
        text = escape("".join(cell[0] for _, cell in cells))
        yield f'<text x="{at}" y="{y * HEIGHT + SIZE}" fill="#{ink:06x}"{extra}>{text}</text>'


def draw(editor: EmbeddedNeovim, name: str) -> None:
    screen = editor.screen
    width, height = screen.columns * WIDTH, screen.rows * HEIGHT
    rows = [line for y in range(screen.rows) for line in drawn_row(screen, y)]
    paper = f'<rect width="100%" height="100%" fill="#{screen.colors["background"]:06x}"/>'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="{FONT}" font-size="{SIZE}">'
    )
    (DOCS / f"{name}.svg").write_text("\n".join([head, paper, *rows, "</svg>", ""]))


def scenes(daemon: ScriptedDaemon, project: Path) -> None:
    (project / ".git").mkdir(parents=True)
    file = project / "stack.py"
    file.write_text(CODE)
    daemon.say(
        BLOCK,
        edit=(
            (r"def (\w+)\(self, item\)", r"def \1(self, item: object) -> None"),
            (r"def (\w+)\(self\):", r"def \1(self) -> object:"),
        ),
    )
    editor = EmbeddedNeovim(
        daemon.environment, file, folder=project, before=SETUP, columns=COLUMNS, rows=ROWS
    )
    try:
        editor.wait(editor.connected)
        editor.keys("10Go")
        editor.wait(lambda: editor.ghost().count("\n") == 2)
        editor.wait(lambda: editor.state() == "ready")
        draw(editor, "nvim-ghost-text")
        editor.keys("<Esc>:7,$Pillion edit Add type hints.<CR>")
        editor.wait(lambda: editor.lua("return vim.bo.filetype") == "diff")
        editor.keys("]cr")
        editor.wait(lambda: editor.shows("[ ]"))
        editor.wait(lambda: editor.state() == "ready")
        draw(editor, "nvim-edit-preview")
    finally:
        editor.quit()


def main() -> None:
    home = short_folder()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    daemon = ScriptedDaemon(home, private_environment(home) | {"PATH": path})
    try:
        scenes(daemon, home / "project")
    finally:
        daemon.stop()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
