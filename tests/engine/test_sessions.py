"""A session's own thread and what is asked beside it, through the decoding loop."""

from __future__ import annotations

import pytest
from loops import LoopUnderTest, scripted

from engine.messages import GenerateRequest, Priority
from engine.sessions import MOST_SESSIONS, Sessions

PROMPT = (*b"a long prompt " * 8, 0)


def ask(id: str, session: str | None, tools: bool) -> GenerateRequest:
    return GenerateRequest(id=id, prompt=PROMPT, session=session, tools=tools, max_tokens=4)


def order(loop: LoopUnderTest) -> str:
    loop.until_idle()
    return "".join(event.id for event in loop.events if hasattr(event, "finish_reason"))


@pytest.mark.parametrize("active", [1, 8])
@pytest.mark.parametrize("first", ["title", "thread"])
def test_a_title_yields_whichever_comes_first(first, active):
    loop = scripted("a reply", draft="none", max_active=active)
    title, thread = ask("t", "s", False), ask("m", "s", True)
    for one in (title, thread) if first == "title" else (thread, title):
        loop.open(one)
        loop.turn()
    assert order(loop) == "mt"


def test_a_chat_without_tools_is_no_aside():
    """Neither of a session that never had any, nor of another session, nor of none."""
    loop = scripted("a reply", draft="none")
    for one in (ask("a", "plain", False), ask("b", None, False), ask("m", "s", True)):
        loop.open(one)
    # They take turns.
    assert order(loop) == "abm"


def test_a_summary_that_its_thread_waits_for_yields_to_nobody():
    """An agent that makes its conversation shorter asks nothing else meanwhile."""
    loop = scripted("a reply", draft="none")
    loop.open(ask("1", "s", True))
    assert order(loop) == "1"
    for one in (ask("2", "s", False), ask("3", "other", True)):
        loop.open(one)
    assert order(loop) == "123"


def test_a_title_whose_thread_has_ended_takes_turns_again():
    loop = scripted("a reply", draft="none")
    for one in (ask("t", "s", False), ask("m", "s", True)):
        loop.open(one)
    loop.cancel("m")
    loop.open(ask("o", "other", True))
    assert order(loop) == "mto"


def test_who_carries_on_a_session():
    sessions = Sessions()
    for number in range(MOST_SESSIONS + 1):
        sessions.heard(ask("m", f"{number}", True))
    title = ask("t", f"{MOST_SESSIONS}", False)
    assert sessions.aside(title)
    assert sessions.thread_of(title) is None
    assert sessions.thread_of(ask("m", "new", True)) == "new"
    assert sessions.thread_of(ask("p", "plain", False)) == "plain"
    # The oldest is forgotten.
    assert not sessions.aside(ask("t", "0", False))
    replay = GenerateRequest(id="r", prompt=PROMPT, session="r", tools=True, priority=Priority.IDLE)
    assert sessions.thread_of(replay) is None
    sessions.heard(replay)
    assert not sessions.aside(ask("t", "r", False))
