"""Edits of a document, or of a text."""

import pytest
from edited_code import CODE, LINE_2, URI, ProgressClient, answer
from rpc_client import RpcFailure
from waiting import until

from sidecar.workspace.documents import Change, Document
from sidecar.workspace.positions import Position, Range


def applied(text, edits, encoding):
    """What an editor makes of edits whose positions are all of the old text."""
    document = Document.of(text)
    for edit in reversed(edits):
        start, end = (Position(**edit["range"][name]) for name in ("start", "end"))
        document = document.changed(Change(edit["newText"], Range(start, end)), encoding)
    return document.text


async def test_an_edit_of_an_open_document_is_for_its_version(serve):
    door = await serve(answer)
    client = await door.client("utf-16")
    client.open(URI, CODE, version=4)
    result = await client.request("pillion/edit", {"uri": URI, "instruction": "x", "range": LINE_2})
    (change,) = result["edit"]["documentChanges"]
    assert change["textDocument"] == {"uri": URI, "version": 4}
    assert change["edits"] == [
        {
            "range": {"start": {"line": 1, "character": 4}, "end": {"line": 1, "character": 8}},
            "newText": "this",
        }
    ]
    assert (result["uri"], result["version"], result["message"]) == (URI, 4, "")
    assert result["lines"] == [1, 2]
    assert {"tokens_per_round", "exact", "form", "hunks", "completion_tokens"} <= set(result)


async def test_an_edit_of_a_text(serve):
    client = await (await serve(answer)).client(handshake=False)
    asked = {"text": CODE, "path": "a.py", "instruction": "x"}
    result = await client.request("pillion/edit", asked)
    (hunk,) = result["hunks"]
    assert (hunk["oldText"], hunk["newText"]) == (CODE, CODE.replace("self", "this"))
    assert [edit["newText"] for edit in hunk["edits"]] == ["this", "this"]
    assert not {"edit", "uri", "version"} & set(result)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
async def test_each_hunk_can_be_taken_alone(serve, encoding):
    """Whole lines or their smallest changes, in the client's own positions: the same text."""
    old = "a = self\r\nkeep\r\n'🙂é'; b = self\r\nkeep\r\nlast = self"
    client = await (await serve(answer)).client(encoding)
    client.open(URI, old)
    result = await client.request("pillion/edit", {"uri": URI, "instruction": "x"})
    hunks = result["hunks"]
    assert [hunk["oldText"] for hunk in hunks] == [
        "a = self\r\n",
        "'🙂é'; b = self\r\n",
        "last = self",
    ]
    for hunk in hunks:
        whole = [{"range": hunk["range"], "newText": hunk["newText"]}]
        texts = [applied(old, edits, encoding) for edits in (whole, hunk["edits"])]
        assert texts == 2 * [old.replace(hunk["oldText"], hunk["newText"])]


async def test_an_edit_that_changes_nothing_says_so(serve):
    client = await (await serve(answer)).client()
    client.open(URI, "x = 1\n")
    result = await client.request("pillion/edit", {"uri": URI, "instruction": "x"})
    assert result["hunks"] == []
    assert result["message"] == "the model left the code as it is"
    assert result["edit"]["documentChanges"][0]["edits"] == []


async def test_an_edit_of_another_version_than_is_open(serve):
    door = await serve(answer)
    client = await door.client()
    client.open(URI, CODE, version=4)
    with pytest.raises(RpcFailure) as raised:
        await client.request("pillion/edit", {"uri": URI, "version": 3, "instruction": "x"})
    assert (raised.value.code, raised.value.data["code"]) == (-32801, "content_modified")
    assert door.backend.seen == []


async def test_an_edit_of_a_document_that_moved_on_is_refused(serve):
    door = await serve(answer, round_seconds=0.005)
    client = await door.client()
    client.open(URI, CODE)
    asked = client.request("pillion/edit", {"uri": URI, "instruction": "x"})
    await until(lambda: door.backend.steps)
    client.change(URI, 2, "other = self\n")
    with pytest.raises(RpcFailure, match="was changed meanwhile") as raised:
        await asked
    assert raised.value.data == {"code": "refused"}


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"instruction": "x"}, "uri"),
        ({"instruction": "x", "uri": URI, "text": ""}, "uri"),
        ({"instruction": "x", "uri": "file:///none"}, "uri"),
        ({"text": "a"}, "instruction"),
        ({"text": "a", "instruction": " "}, "instruction"),
        ({"text": "\n", "instruction": "x"}, "range"),
    ],
)
async def test_bad_edits_name_their_field(serve, params, field):
    client = await (await serve(answer)).client()
    with pytest.raises(RpcFailure) as raised:
        await client.request("pillion/edit", params)
    assert raised.value.data["field"] == field


async def test_a_secret_document_reaches_no_prompt(serve):
    door = await serve(answer)
    client = await door.client()
    client.open("file:///w/.env", "KEY=self\n")
    with pytest.raises(RpcFailure, match="holds secrets"):
        await client.request("pillion/edit", {"uri": "file:///w/.env", "instruction": "x"})
    assert door.backend.seen == []


async def test_an_edit_has_progress(serve):
    client = await (await serve(answer)).client()
    seen = ProgressClient(client)
    client.open(URI, CODE)
    asked = {"uri": URI, "instruction": "Call it this.", "workDoneToken": 7}
    await client.request("pillion/edit", asked)
    begin, *reports, end = seen.of(7)
    assert (begin["kind"], begin["title"]) == ("begin", "Pillion: Call it this.")
    assert begin["cancellable"]
    shares = [report["percentage"] for report in reports]
    assert shares == sorted(set(shares))
    assert shares[-1] == 100
    assert end["kind"] == "end"
    assert seen.created == []


async def test_progress_of_its_own_for_a_client_that_shows_it(serve):
    door = await serve(answer, round_seconds=0.002)
    client = await door.client(handshake=False)
    seen = ProgressClient(client)
    await client.initialize(capabilities={"window": {"workDoneProgress": True}})
    client.open(URI, CODE)
    await client.request("pillion/edit", {"uri": URI, "instruction": "x"})
    (token,) = seen.created
    assert [value["kind"] for value in seen.of(token)][:1] == ["begin"]
    assert seen.of(token)[-1]["kind"] == "end"
    seen.refuses = True
    await client.request("pillion/edit", {"uri": URI, "instruction": "x"})
    assert seen.of(seen.created[1]) == []


@pytest.mark.parametrize("method", ["pillion/edit", "pillion/explain"])
@pytest.mark.parametrize("by", ["request", "progress"])
async def test_whatever_is_asked_can_be_cancelled(serve, method, by):
    door = await serve("```\n" + "a" * 3000, round_seconds=0.002)
    client = await door.client()
    client.open(URI, CODE)
    asked = client.request(method, {"uri": URI, "instruction": "x", "workDoneToken": "t"})
    await until(lambda: door.backend.steps)
    if by == "request":
        client.cancel(asked)
    else:
        client.notify("window/workDoneProgress/cancel", {"token": "t"})
        client.notify("window/workDoneProgress/cancel", {"token": "another"})
    with pytest.raises(RpcFailure) as raised:
        await asked
    assert raised.value.code == -32800
    await until(lambda: door.backend.endings)
    assert next(iter(door.backend.endings.values())).finish_reason == "cancelled"
