"""Ghost text: the right text at the right place, for the newest text only."""

import asyncio

import pytest
from rpc_client import RpcFailure
from waiting import until

from engine.testing import FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, FakeEngine
from sidecar.config import CompletionConfig, Config, WorkspaceConfig

URI = "file:///w/a.py"


def halves(request):
    """(prefix, suffix) of a fill-in-middle prompt."""
    tokens = list(request.prompt)
    suffix_at = tokens.index(FIM_SUFFIX)
    prefix = tokens[tokens.index(FIM_PREFIX) + 1 : suffix_at]
    suffix = tokens[suffix_at + 1 : tokens.index(FIM_MIDDLE)]
    return bytes(prefix).decode(), bytes(suffix).decode()


def item_of(answer):
    (item,) = answer["items"]
    return item["insertText"], item["range"]["start"], item["range"]["end"]


def place(line, character):
    return {"line": line, "character": character}


async def test_an_item_inserts_at_the_cursor(serve):
    door = await serve("a + b")
    client = await door.client("utf-16")
    client.open(URI, "def add(a, b):\n    return \n")
    answer = await client.inline(URI, 1, 11)
    assert item_of(answer) == ("a + b", place(1, 11), place(1, 11))
    assert halves(door.backend.seen[0]) == ("def add(a, b):\n    return ", "\n")


async def test_nothing_to_show_is_null(serve):
    door = await serve("   ")
    client = await door.client()
    client.open(URI, "x = ")
    assert await client.inline(URI, 0, 4) is None


@pytest.mark.parametrize(("encoding", "units"), [("utf-8", 6), ("utf-16", 3), ("utf-32", 2)])
async def test_columns_are_in_the_connections_encoding_both_ways(serve, encoding, units):
    door = await serve("1")
    client = await door.client(encoding)
    client.open(URI, "é😀 = y")
    client.change(URI, 2, " += ", 0, units, 0, units + 4)
    answer = await client.inline(URI, 0, units + 4)
    assert item_of(answer) == ("1", place(0, units + 4), place(0, units + 4))
    assert halves(door.backend.seen[0]) == ("é😀 += ", "")


async def test_three_clients_with_three_encodings_at_once(serve):
    config = Config(workspace=WorkspaceConfig(warm=False))
    door = await serve(lambda request: halves(request)[0][-1] * 3, config=config)
    clients = {name: await door.client(name) for name in ("utf-8", "utf-16", "utf-32")}
    line = "é😀𝒳"
    answers = {}
    for name, client in clients.items():
        client.open(URI, f"# {name}\n{line}\n")
        units = {"utf-8": 10, "utf-16": 5, "utf-32": 3}[name]
        client.change(URI, 2, name[-1], 1, units, 1, units)
        answers[name] = client.inline(URI, 1, units + 1)
    for name, answer in answers.items():
        units = {"utf-8": 11, "utf-16": 6, "utf-32": 4}[name]
        assert item_of(await answer) == (name[-1] * 3, place(1, units), place(1, units))
    assert sorted(halves(request)[0] for request in door.backend.seen) == sorted(
        f"# {name}\n{line}{name[-1]}" for name in clients
    )


async def test_positions_beyond_the_line_and_the_file_are_their_ends(serve):
    door = await serve("1")
    client = await door.client("utf-16")
    client.open(URI, "x\n😀 =")
    assert item_of(await client.inline(URI, 1, 99))[1] == place(1, 4)
    assert item_of(await client.inline(URI, 9, 9))[1] == place(1, 4)
    assert item_of(await client.inline(URI, 0, 2**31 - 1))[1] == place(0, 1)


async def test_a_carriage_return_document_gets_carriage_returns(serve):
    door = await serve("a()\n    b()")
    client = await door.client()
    client.open(URI, "def f():\r\n    \r\nend\r\n")
    answer = await client.inline(URI, 1, 4)
    assert item_of(answer) == ("a()\r\n    b()", place(1, 4), place(1, 4))
    assert "\r" not in "".join(halves(door.backend.seen[0]))


async def test_a_change_behind_a_request_does_not_slip_under_it(serve):
    """The text race: both arrive in one read."""
    door = await serve("1")
    client = await door.client()
    client.open(URI, "def hello")
    asked = client.request("pillion/complete", {"uri": URI, "position": place(0, 9)})
    client.change(URI, 2, "REPLACED")
    await asked
    assert halves(door.backend.seen[0])[0] == "def hello"


async def test_an_answer_for_an_old_text_is_dropped(serve):
    door = await serve("a" * 500, round_seconds=0.002)
    client = await door.client()
    client.open(URI, "x = ")
    stale = client.inline(URI, 0, 4)
    await until(lambda: any(door.backend.steps.values()))
    client.change(URI, 2, "x", 0, 0, 0, 0)
    assert await stale is None
    await until(lambda: not door.services.engine.open_requests)
    (ending,) = door.backend.endings.values()
    assert ending.finish_reason == "cancelled"


@pytest.mark.parametrize("close", [True, False])
async def test_closing_or_reopening_a_document_drops_its_request(serve, close):
    door = await serve("a" * 500, round_seconds=0.002)
    client = await door.client()
    client.open(URI, "x = ")
    stale = client.inline(URI, 0, 4)
    if close:
        client.notify("textDocument/didClose", {"textDocument": {"uri": URI}})
    else:
        client.open(URI, "y = ", version=9)
    assert await stale is None


async def test_a_cancelled_request_is_answered_and_leaves_the_engine(serve):
    door = await serve("a" * 500, round_seconds=0.002)
    client = await door.client()
    client.open(URI, "x = ")
    answer = client.inline(URI, 0, 4)
    await until(lambda: any(door.backend.steps.values()))
    client.cancel(answer)
    with pytest.raises(RpcFailure) as raised:
        await answer
    assert raised.value.code == -32800
    await until(lambda: not door.services.engine.open_requests)
    (ending,) = door.backend.endings.values()
    assert (ending.finish_reason, len(ending.tokens) < 90) == ("cancelled", True)


async def test_a_cancel_in_the_same_read_as_its_request_counts(serve):
    door = await serve("a")
    client = await door.client()
    client.open(URI, "x = ")
    answer = client.inline(URI, 0, 4)
    client.cancel(answer)
    with pytest.raises(RpcFailure, match="-32800"):
        await answer
    client.cancel(answer)  # once more, too late: no second answer
    assert (await client.inline(URI, 0, 4))["items"]


async def test_documents_and_connections_do_not_cancel_each_other(serve):
    door = await serve("ab", round_seconds=0.002)
    first, second = await door.client(), await door.client()
    other = "file:///w/b.py"
    for client in (first, second):
        client.open(URI, "x = ")
        client.open(other, "y = ")
    answers = [c.inline(uri, 0, 4) for c in (first, second) for uri in (URI, other)]
    for answer in answers:
        assert (await answer)["items"][0]["insertText"] == "ab"


class MarkingEngine(FakeEngine):
    """Notes how many tokens a request had when it was told to stop."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.at_cancel = {}

    def cancel(self, request_id):
        super().cancel(request_id)
        self.at_cancel.setdefault(request_id, self.steps.get(request_id, 0))


UNITS = {
    "utf-8": lambda char: len(char.encode()),
    "utf-16": lambda char: len(char.encode("utf-16-le")) // 2,
    "utf-32": lambda char: 1,
}


async def type_forty(door, encoding):
    """Type 40 characters, a change and a request per key; return the prefix and the answers.

    At every fourth key typing waits until the engine is at work on it, so that the next key finds
    a request in the middle of its reply; the others find theirs still waiting.
    """
    client = await door.client(encoding)
    above, text = f"# 😀 é {encoding}\n", "über_den_Wolken = compute(éé, 😀, of_all_"
    assert len(text) == 40
    client.open(URI, f"{above}\nafter = 1\n")
    answers, column = [], 0
    for key, char in enumerate(text):
        client.change(URI, key + 2, char, 1, column, 1, column)
        column += UNITS[encoding](char)
        answers.append(client.inline(URI, 1, column))
        if key % 4 == 0:
            typed = above + text[: key + 1]
            await until(lambda typed=typed: door.backend.reached(typed))
    return above + text, [await answer for answer in answers]


class TypingEngine(MarkingEngine):
    def reached(self, typed):
        """Whether the reply to this prefix has begun."""
        ids = [r.id for r in list(self.seen) if halves(r)[0] == typed]
        return any(self.steps.get(request_id) for request_id in ids)


async def test_typing_forty_characters_with_a_request_per_key(serve):
    """Stale requests stop within one round, and one answer a client is ever shown as current."""

    def reply(request):
        # Only what follows the whole text is short: a stale reply never ends by itself.
        return "zz" if halves(request)[0].endswith("of_all_") else "z" * 3000

    config = Config(
        completion=CompletionConfig(max_tokens=3000), workspace=WorkspaceConfig(warm=False)
    )
    door = await serve(reply, kind=TypingEngine, config=config, round_seconds=0.001)
    encodings = ("utf-8", "utf-16", "utf-32")
    sessions = await asyncio.gather(*(type_forty(door, encoding) for encoding in encodings))
    for text, answers in sessions:
        assert [answer for answer in answers if answer is not None] == [answers[-1]]
        assert item_of(answers[-1])[0] == "zz"
        (last,) = [r for r in door.backend.seen if halves(r)[0] == text]
        assert halves(last)[1] == "\nafter = 1\n"
        assert door.backend.endings[last.id].finish_reason == "stop"
    backend = door.backend
    begun = [request_id for request_id in backend.at_cancel if backend.at_cancel[request_id]]
    assert len(begun) >= 10 * len(encodings)
    for request_id, at_cancel in backend.at_cancel.items():
        assert backend.steps.get(request_id, 0) <= at_cancel + 1
    assert door.services.engine.open_requests == 0


async def test_the_newest_of_two_requests_for_one_text_wins(serve):
    door = await serve("ab", kind=MarkingEngine, round_seconds=0.002)
    client = await door.client()
    client.open(URI, "x = ")
    answers = [client.inline(URI, 0, 4) for _ in range(5)]
    shown = [await answer for answer in answers]
    assert shown[:4] == [None] * 4
    assert item_of(shown[4])[0] == "ab"


def selected(text, start, end, line=0):
    span = {"start": place(line, start), "end": place(line, end)}
    return {"selectedCompletionInfo": {"range": span, "text": text}}


async def test_a_suggestion_extends_the_entry_chosen_in_the_completion_list(serve):
    door = await serve("(path)")
    client = await door.client("utf-16")
    client.open(URI, "😀.rea + 1\n")
    answer = await client.inline(URI, 0, 6, **selected("read_text", 3, 6))
    assert item_of(answer) == ("read_text(path)", place(0, 3), place(0, 6))
    assert halves(door.backend.seen[0]) == ("😀.read_text", " + 1\n")


@pytest.mark.parametrize(
    "context",
    [
        selected("read", 0, 2),  # not where the cursor is
        {
            "selectedCompletionInfo": {
                "range": {"start": place(0, 0), "end": place(1, 0)},
                "text": "read",
            }
        },
    ],
)
async def test_an_entry_that_no_suggestion_can_extend_gets_none(serve, context):
    door = await serve("(path)")
    client = await door.client()
    client.open(URI, "x.rea\n\n")
    assert await client.inline(URI, 0, 5, **context) is None
    assert door.backend.seen == []


async def test_a_chosen_entry_with_nothing_to_add_gets_none(serve):
    door = await serve("")
    client = await door.client()
    client.open(URI, "x.rea\n")
    assert await client.inline(URI, 0, 5, **selected("read", 2, 5)) is None


async def test_no_file_is_read_for_a_document_that_is_not_open(serve, home):
    (home / "secret.py").write_text("SECRET = 1\n")
    uri = (home / "secret.py").as_uri()
    door = await serve("1")
    client = await door.client()
    for asked in (
        client.inline(uri, 0, 0),
        client.request("pillion/complete", {"uri": uri, "position": place(0, 0)}),
    ):
        with pytest.raises(RpcFailure, match="is not open"):
            await asked
    client.change(uri, 2, "x", 0, 0, 0, 0)
    client.open(URI, "x = ")
    await client.inline(URI, 0, 4)
    assert all(b"SECRET" not in bytes(halves(r)[0], "utf-8") for r in door.backend.seen)


async def test_partial_result_tokens_are_accepted_and_unused(serve):
    client = await (await serve("1")).client()
    client.open(URI, "x = ")
    params = {"textDocument": {"uri": URI}, "position": place(0, 4), "context": {"triggerKind": 1}}
    tokens = {"partialResultToken": "p", "workDoneToken": 7}
    answer = await client.request("textDocument/inlineCompletion", params | tokens)
    assert answer["items"]
    assert client.notifications == []
