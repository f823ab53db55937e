"""Typing or taking what is shown needs no model; what follows it is computed ahead; asking by hand
brings alternatives."""

import pytest
from rpc_client import RpcFailure
from waiting import until

from engine import Priority
from engine.testing import FIM_PREFIX, FIM_SUFFIX
from sidecar.config import CompletionConfig, Config, WorkspaceConfig
from sidecar.jobs import suggestions

URI = "file:///w/a.py"
NOT_AHEAD = Config(workspace=WorkspaceConfig(warm=False))
INVOKED = {"triggerKind": 1}
LONG = " ".join(map(str, range(100)))
"""Longer than a suggestion may be, and no loop: it ends as ``length`` unless it is stopped."""


@pytest.fixture(autouse=True)
def ahead_at_once(monkeypatch):
    monkeypatch.setattr(suggestions, "AHEAD_SECONDS", 0.0)


def before(request):
    tokens = list(request.prompt)
    start = tokens.index(FIM_PREFIX) + 1
    return bytes(tokens[start : tokens.index(FIM_SUFFIX)]).decode()


def texts(answer):
    return [] if answer is None else [item["insertText"] for item in answer["items"]]


def asked(door, priority=Priority.INTERACTIVE):
    return [one for one in door.backend.seen if one.priority is priority and not one.warm]


async def shown_at(door, text, *, encoding="utf-16"):
    """A client that is shown a suggestion at the end of `text`."""
    client = await door.client(encoding)
    client.open(URI, text)
    lines = text.split("\n")
    answer = await client.inline(URI, len(lines) - 1, len(lines[-1]))
    assert answer is not None
    return client


async def test_each_key_of_what_is_shown_is_answered_without_the_model(serve):
    door = await serve("compute(é, 😀)", config=NOT_AHEAD)
    client = await shown_at(door, "x = ")
    text, column = "compute(é, 😀)", 4
    for at, char in enumerate(text[:-1]):
        client.change(URI, at + 2, char, 0, column, 0, column)
        column += len(char.encode("utf-16-le")) // 2
        answer = await client.inline(URI, 0, column)
        assert texts(answer) == [text[at + 1 :]]
        place = {"line": 0, "character": column}
        assert answer["items"][0]["range"] == {"start": place, "end": place}
    assert len(asked(door)) == 1


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
async def test_taking_a_word_or_a_line_leaves_the_rest(serve, newline):
    door = await serve("if n < 2:\n        return n\n    return f(n - 1)\n", config=NOT_AHEAD)
    client = await door.client()
    client.open(URI, f"def f(n):{newline}    {newline}")
    whole = texts(await client.inline(URI, 1, 4))[0]
    assert whole == newline.join(["if n < 2:", "        return n", "    return f(n - 1)"])
    client.change(URI, 2, "if ", 1, 4, 1, 4)
    assert texts(await client.inline(URI, 1, 7)) == [whole[3:]]
    line = f"n < 2:{newline}"
    client.change(URI, 3, line, 1, 7, 1, 7)
    assert texts(await client.inline(URI, 2, 0)) == [whole[3 + len(line) :]]
    client.change(URI, 4, "", 1, 7, 2, 0)
    assert texts(await client.inline(URI, 1, 7)) == [whole[3:]]
    client.change(URI, 5, "", 1, 4, 1, 7)
    assert texts(await client.inline(URI, 1, 4)) == [whole]
    assert len(asked(door)) == 1


async def test_something_else_that_is_typed_asks_the_model(serve):
    door = await serve(lambda r: "one" if before(r) == "x = " else "two", config=NOT_AHEAD)
    client = await shown_at(door, "x = ")
    client.change(URI, 2, "t", 0, 4, 0, 4)
    assert texts(await client.inline(URI, 0, 5)) == ["two"]
    assert len(asked(door)) == 2


async def test_a_bracket_that_the_editor_closed_is_not_repeated(serve):
    door = await serve("f(a, b)", config=NOT_AHEAD)
    client = await shown_at(door, "x = ")
    client.change(URI, 2, "f()", 0, 4, 0, 4)
    assert texts(await client.inline(URI, 0, 6)) == ["a, b"]
    assert len(asked(door)) == 1


async def test_a_change_elsewhere_in_the_file_makes_the_shown_text_unknown(serve):
    door = await serve("one", config=NOT_AHEAD)
    client = await door.client()
    client.open(URI, "# a\nx = \n# b\n")
    assert texts(await client.inline(URI, 1, 4)) == ["one"]
    for version, line in ((2, 0), (3, 2)):
        client.change(URI, version, "!", line, 3, line, 3)
        assert texts(await client.inline(URI, 1, 4)) == ["one"]
        assert len(asked(door)) == version


async def test_documents_do_not_share_what_was_shown(serve):
    door = await serve("one", config=NOT_AHEAD)
    client = await shown_at(door, "x = ")
    client.open("file:///w/b.py", "x = ")
    assert texts(await client.inline("file:///w/b.py", 0, 4)) == ["one"]
    assert len(asked(door)) == 2


async def test_a_document_that_is_closed_is_forgotten(serve):
    door = await serve("one", config=NOT_AHEAD)
    client = await shown_at(door, "x = ")
    client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    client.open(URI, "x = ")
    await client.inline(URI, 0, 4)
    assert len(asked(door)) == 2


async def test_nothing_worth_showing_is_not_computed_again(serve):
    door = await serve("   ", config=NOT_AHEAD)
    client = await door.client()
    client.open(URI, "x = ")
    assert [await client.inline(URI, 0, 4) for _ in range(3)] == [None] * 3
    assert len(asked(door)) == 1


def one_after_the_other(request):
    return {"x = ": "one", "x = one": " + two", "x = one + two": " + three"}[before(request)]


async def test_what_follows_the_shown_text_is_computed_ahead_at_idle_priority(serve):
    door = await serve(one_after_the_other)
    client = await shown_at(door, "x = ")
    await until(lambda: len(door.backend.endings) == 2)
    client.change(URI, 2, "one", 0, 4, 0, 4)
    assert texts(await client.inline(URI, 0, 7)) == [" + two"]
    await until(lambda: len(door.backend.endings) == 3)
    assert [before(one) for one in asked(door)] == ["x = "]
    ahead = [before(one) for one in asked(door, Priority.IDLE)]
    assert ahead == ["x = one", "x = one + two"]


async def test_what_is_computed_ahead_goes_on_while_the_shown_text_is_typed(serve):
    door = await serve(one_after_the_other, round_seconds=0.005)
    client = await shown_at(door, "x = ")
    for at, char in enumerate("on"):
        client.change(URI, at + 2, char, 0, at + 4, 0, at + 4)
        assert texts(await client.inline(URI, 0, at + 5)) == ["one"[at + 1 :]]
    await until(lambda: len(door.backend.endings) == 2)
    assert [one.finish_reason for one in door.backend.endings.values()][1] != "cancelled"


async def test_what_is_computed_ahead_stops_when_something_else_is_asked(serve):
    door = await serve(
        lambda r: "one" if r.priority is Priority.INTERACTIVE else LONG, round_seconds=0.005
    )
    client = await shown_at(door, "x = ")
    await until(lambda: asked(door, Priority.IDLE) and door.backend.steps[door.backend.seen[1].id])
    client.change(URI, 2, "y", 0, 4, 0, 4)
    assert texts(await client.inline(URI, 0, 5)) == ["one"]
    ending = door.backend.endings[door.backend.seen[1].id]
    assert (ending.finish_reason, len(ending.tokens) < 90) == ("cancelled", True)


@pytest.mark.parametrize("leave", ["close", "exit"])
async def test_what_is_computed_ahead_stops_with_its_document_and_client(serve, leave):
    door = await serve(
        lambda r: "one" if r.priority is Priority.INTERACTIVE else LONG, round_seconds=0.005
    )
    client = await shown_at(door, "x = ")
    await until(lambda: asked(door, Priority.IDLE) and door.backend.steps[door.backend.seen[1].id])
    if leave == "close":
        client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    else:
        await client.close()
    await until(lambda: not door.services.engine.open_requests)
    ending = door.backend.endings[door.backend.seen[1].id]
    assert (ending.finish_reason, len(ending.tokens) < 90) == ("cancelled", True)


async def test_nothing_is_computed_ahead_where_that_is_off(serve):
    door = await serve("one", config=NOT_AHEAD)
    client = await shown_at(door, "x = ")
    client.change(URI, 2, "one", 0, 4, 0, 4)
    await client.inline(URI, 0, 7)
    assert [one.priority for one in door.backend.seen] == [Priority.INTERACTIVE] * 2


def by_seed(request):
    return {None: "likely", 1: "other", 2: "likely  "}[request.seed]


async def test_asking_by_hand_brings_different_alternatives_the_likeliest_first(serve):
    door = await serve(by_seed, config=NOT_AHEAD)
    client = await door.client()
    client.open(URI, "x = ")
    assert texts(await client.inline(URI, 0, 4, **INVOKED)) == ["likely", "other"]
    assert len(asked(door)) == 3
    # They stay while one of them is typed.
    client.change(URI, 2, "o", 0, 4, 0, 4)
    assert texts(await client.inline(URI, 0, 5)) == ["ther"]
    assert len(asked(door)) == 3


async def test_asking_by_hand_keeps_what_is_shown_and_adds_to_it(serve):
    door = await serve(by_seed, config=NOT_AHEAD)
    client = await shown_at(door, "x = ")
    assert texts(await client.inline(URI, 0, 4, **INVOKED)) == ["likely", "other"]
    assert [one.seed for one in asked(door)] == [None, 1, 2]
    assert texts(await client.inline(URI, 0, 4, **INVOKED)) == ["likely", "other"]
    assert len(asked(door)) == 3


async def test_how_many_alternatives_is_a_setting(serve):
    config = Config(
        completion=CompletionConfig(alternatives=1), workspace=WorkspaceConfig(warm=False)
    )
    door = await serve(by_seed, config=config)
    client = await door.client()
    client.open(URI, "x = ")
    assert texts(await client.inline(URI, 0, 4, **INVOKED)) == ["likely"]
    assert len(asked(door)) == 1


async def test_cancelling_stops_all_alternatives(serve):
    door = await serve(LONG, round_seconds=0.005, config=NOT_AHEAD)
    client = await door.client()
    client.open(URI, "x = ")
    answer = client.inline(URI, 0, 4, **INVOKED)
    await until(lambda: any(door.backend.steps.values()))
    client.cancel(answer)
    with pytest.raises(RpcFailure, match="-32800"):
        await answer
    await until(lambda: not door.services.engine.open_requests)
    endings = door.backend.endings.values()
    assert all(one.finish_reason == "cancelled" and len(one.tokens) < 90 for one in endings)


async def test_what_looks_like_a_snippet_is_plain_text(serve):
    door = await serve("${1:name} $0 \\n", config=NOT_AHEAD)
    client = await door.client()
    client.open(URI, "x = ")
    (item,) = (await client.inline(URI, 0, 4))["items"]
    assert item == {"insertText": "${1:name} $0 \\n", "range": item["range"]}


@pytest.mark.parametrize(
    ("line", "column", "shown"),
    [
        ("value = foobar", 11, False),
        ("value = foo_bar", 11, False),
        ("value = größe", 10, False),
        ("value = foobar", 8, True),
        ("value = foobar", 14, True),
        ("f(a)", 3, True),
    ],
)
async def test_nothing_comes_by_itself_inside_a_name(serve, line, column, shown):
    door = await serve("xyz", config=NOT_AHEAD)
    client = await door.client()
    client.open(URI, line)
    assert (await client.inline(URI, 0, column) is not None) is shown
    assert (await client.inline(URI, 0, column, **INVOKED)) is not None
