"""What Neovim shows of each state that the daemon can be in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from conftest import own_environment
from embedded_neovim import EmbeddedNeovim
from neovim_daemon import ScriptedDaemon
from private_home import short_folder

pytestmark = pytest.mark.clients

Start = Callable[..., EmbeddedNeovim]
HEAD = "class Stack:\n    def push(self, item):\n"
STATUSLINE = "set statusline=%{%v:lua.require'pillion'.statusline()%} laststatus=2"
# The tests start the daemons.
OWN = "vim.g.pillion = { cmd = { 'pillion', 'lsp', '--no-start' } }"


@pytest.fixture
def loading() -> Iterator[ScriptedDaemon]:
    """A daemon that has no model yet."""
    home = short_folder()
    daemon = ScriptedDaemon(
        home, own_environment(home), state="loading", detail="weights", progress=0.4, model=None
    )
    yield daemon
    daemon.stop()


def test_loading_says_how_far_it_is_and_target_only_says_why(
    loading: ScriptedDaemon, neovim: Start
) -> None:
    editor = neovim(loading.environment, "stack.py", HEAD, before=OWN, columns=120)
    editor.command(STATUSLINE)
    editor.wait(lambda: editor.shows("Pillion loading 40%"))
    loading.tell(drafters=(), notes=("no drafter fits this model",))
    editor.wait(lambda: editor.shows("Pillion fake target-only"))
    editor.keys(":Pillion<CR>")
    editor.wait(lambda: editor.shows("drafting   no: no drafter fits this model"))
    editor.keys("q")
    loading.tell()
    editor.wait(lambda: editor.shows("Pillion fake") and not editor.shows("target-only"))


def test_busy_is_shown_while_somebody_waits(slow_daemon: ScriptedDaemon, neovim: Start) -> None:
    slow_daemon.say("        self.items.append(" + "x" * 300 + ")\n")
    editor = neovim(slow_daemon.environment, "stack.py", HEAD, before=OWN)
    editor.command(STATUSLINE)
    editor.keys("Go")
    editor.type("self.it")
    editor.wait(lambda: editor.shows("Pillion fake busy"))
    editor.keys("<Esc>")
    editor.wait(lambda: editor.shows("Pillion fake") and not editor.shows("busy"))


def test_a_model_that_cannot_be_had_is_said_once_and_not_loaded_again_and_again(
    loading: ScriptedDaemon, neovim: Start
) -> None:
    editor = neovim(loading.environment, "stack.py", HEAD, before=OWN, columns=120)
    editor.command(STATUSLINE)
    editor.wait(lambda: editor.shows("Pillion loading 40%"))
    loading.tell(state="failed", detail="layers.7 is missing", model=None)
    assert loading.process.wait(60) == 3
    editor.wait(lambda: editor.shows("Pillion failed"))
    editor.wait(lambda: "layers.7 is missing; see `pillion models`" in editor.command("messages"))
    editor.keys(":Pillion<CR>")
    editor.wait(lambda: editor.shows("layers.7 is missing; see `pillion models`"))
    editor.keys("q:edit<CR>")
    editor.let_pauses_end()
    assert editor.state() == "failed"
    assert editor.command("messages").count("layers.7") == 1
    # Who has put it right says so.
    loading.kill()
    loading.tell()
    loading.start()
    editor.keys(":Pillion restart<CR>")
    editor.wait(lambda: editor.shows("Pillion fake"))
    editor.wait(editor.connected)
