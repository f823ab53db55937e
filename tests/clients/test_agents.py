"""Real coding agents finish a task: they read a file, change it, and say so.

The daemon is real: doors, parser, scheduler, cache, speculative loop, template. The built-in model
is too small to plan, so here a script says what it thinks (`agent_daemon`); in the last test it is
the model itself, held to read a file first and to answer then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_daemon import SAID
from coding_agent import AGENTS, RIGHT, Agent, AgentHome
from conftest import own_environment
from forced_calls import forced_calls
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


@pytest.mark.parametrize("name", ["opencode", "pi"])
def test_an_agent_works_with_the_builtin_model(name: str, completed: Completed) -> None:
    (agent,) = (agent for agent in AGENTS if agent.name == name)
    folder = short_folder()
    home = AgentHome(folder, own_environment(folder))
    try:
        assert home.run(["pillion", "serve", "--detach", "--context", CONTEXT]).returncode == 0
        home.set_up(agent)
        with forced_calls(home.url()) as (proxy, bodies):
            point(home, proxy)
            done = home.work(agent)
        roles = [message["role"] for body in bodies for message in body["messages"]]
        assert "tool" in roles, done.stdout + done.stderr
        assert done.returncode == 0, done.stdout + done.stderr
        completed(name, home.version(agent), "the model's own call to read, answer")
    finally:
        home.run(["pillion", "stop"])
        home.stop()


def point(home: AgentHome, url: str) -> None:
    """Let what `pillion setup` wrote name another URL."""
    places = ("config/opencode/opencode.json", ".pi/agent/models.json")
    (written,) = (home.home / place for place in places if (home.home / place).exists())
    written.write_text(written.read_text().replace(home.url(), url))
