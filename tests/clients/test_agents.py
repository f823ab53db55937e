"""Real coding agents finish a task: they read a file, change it, and say so.

The daemon is real: doors, parser, scheduler, cache, speculative loop, template. The built-in model
is too small to plan, so here a script says what it thinks (`agent_daemon`); in the last test it is
the model itself, held to read a file first, to change it in one of two ways, and to answer then.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from agent_daemon import SAID
from coding_agent import AGENTS, RIGHT, WRONG, Agent, AgentHome
from conftest import own_environment
from forced_calls import Step, Turn, forced_calls
from private_home import short_folder

pytestmark = pytest.mark.clients

# More than the model was trained with: the agents begin with that much.
CONTEXT = "32768"

Completed = Callable[[str, str, str], None]


@pytest.fixture(scope="module")
def scripted_home() -> Iterator[AgentHome]:
    folder = short_folder()
    home = AgentHome(folder, own_environment(folder))
    home.serve(Path(__file__).with_name("agent_daemon.py"), home.project)
    yield home
    home.stop()


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_an_agent_mends_a_file(
    agent: Agent, scripted_home: AgentHome, completed: Completed
) -> None:
    assert scripted_home.has(agent), f"`make test-clients` installs {agent.program}"
    scripted_home.set_up(agent)
    done = scripted_home.work(agent)
    said = done.stdout + done.stderr
    assert (scripted_home.project / "hello.py").read_text() == RIGHT, said
    assert done.returncode == 0, said
    if agent.name != "aider":
        # Which is said only behind what two calls, to read and to edit, brought.
        assert SAID in said
    steps = "the whole file" if agent.name == "aider" else "read, edit"
    completed(agent.name, scripted_home.version(agent), f"{steps}, answer")


OLD, CHOICES = 'return "helo"', ('return "hello"', 'return "hallo"')


def steps(name: str, file: Path) -> list[Step]:
    """To read the file, and to change it in one of two ways."""
    if name == "opencode":
        path: dict[str, list[Any]] = {"filePath": [str(file)]}
        edit = {"oldString": [OLD], "newString": list(CHOICES), "replaceAll": [False]}
    else:
        path = {"path": [str(file)]}
        edit = {"edits": [[{"oldText": OLD, "newText": new}] for new in CHOICES]}
    return [Step("read", path), Step("edit", path | edit)]


@pytest.mark.parametrize("name", ["opencode", "pi"])
def test_an_agent_works_with_the_builtin_model(name: str, completed: Completed) -> None:
    (agent,) = (agent for agent in AGENTS if agent.name == name)
    folder = short_folder()
    home = AgentHome(folder, own_environment(folder))
    file = home.project / "hello.py"
    try:
        assert home.run(["pillion", "serve", "--detach", "--context", CONTEXT]).returncode == 0
        home.set_up(agent)
        with forced_calls(home.url(), steps(name, file)) as (proxy, turns):
            point(home, proxy)
            done = home.work(agent)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        read, edit, answer = turns
        for turn, tool in ((read, "read"), (edit, "edit")):
            assert turn.finish_reason == "tool_calls", said
            assert [call["function"]["name"] for call in turn.calls if call.get("id")] == [tool]
            (offered,) = (
                offered["function"]["parameters"]
                for offered in turn.body["tools"]
                if offered["function"]["name"] == tool
            )
            jsonschema.validate(turn.called(), offered)
        # The agent ran both: it has read what was there, and what the model chose is there now.
        assert OLD in brought(edit)
        changed = {WRONG.replace(OLD, new) for new in CHOICES}
        assert file.read_text() in changed, brought(answer)
        assert not answer.calls
        assert answer.finish_reason in ("stop", "length")
        shown = " ".join(said.split())
        assert all(line.strip() in shown for line in answer.text.splitlines()[:1]), answer.text
        for turn in turns:
            assert 0 < turn.usage["completion_tokens"] <= turn.usage["total_tokens"]
            assert turn.usage["prompt_tokens"] > 100
        for before, turn in itertools.pairwise(turns):
            # Each turn goes on where the one before ended, and that is not computed again.
            cached = turn.usage["prompt_tokens_details"]["cached_tokens"]
            assert before.usage["prompt_tokens"] // 2 < cached < turn.usage["prompt_tokens"]
        completed(name, home.version(agent), "the model's own calls to read and edit, answer")
    finally:
        home.run(["pillion", "stop"])
        home.stop()


def brought(turn: Turn) -> str:
    """What the last call of the turn before brought."""
    *_, last = (message for message in turn.body["messages"] if message["role"] == "tool")
    return json.dumps(last["content"], ensure_ascii=False).replace('\\"', '"')


def point(home: AgentHome, url: str) -> None:
    """Let what `pillion setup` wrote name another URL."""
    places = ("config/opencode/opencode.json", ".pi/agent/models.json")
    (written,) = (home.home / place for place in places if (home.home / place).exists())
    written.write_text(written.read_text().replace(home.url(), url))
