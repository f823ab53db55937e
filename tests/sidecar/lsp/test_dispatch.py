"""One answer for every request, whatever it holds."""

import asyncio
import itertools

import pytest
from rpc_client import RpcFailure
from waiting import until

from sidecar.lsp.server import MAX_OPEN_REQUESTS

URI = "file:///w/a.py"
PLACE = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 1}, "context": {}}


async def failure_of(answer):
    with pytest.raises(RpcFailure) as raised:
        await answer
    return raised.value


async def test_an_unknown_request_is_method_not_found(serve):
    client = await (await serve()).client()
    failure = await failure_of(client.request("textDocument/hover", {"a": 1}))
    assert (failure.code, failure.message) == (-32601, "textDocument/hover is not known here")
    assert (await failure_of(client.request("$/anything"))).code == -32601
    failure = await failure_of(client.request("textDocument/didOpen"))
    assert (failure.code, "notification" in failure.message) == (-32601, True)


async def test_unknown_notifications_are_ignored(serve):
    client = await (await serve()).client()
    for method in ("$/setTrace", "workspace/didChangeConfiguration", "no/such", "pillion/status"):
        client.notify(method, {"value": "off"})
    assert (await client.request("pillion/status"))["state"] == "ready"


@pytest.mark.parametrize(
    ("method", "params", "field", "complaint"),
    [
        ("textDocument/inlineCompletion", {}, "textDocument", "is missing"),
        (
            "textDocument/inlineCompletion",
            PLACE | {"textDocument": {}},
            "textDocument.uri",
            "is missing",
        ),
        (
            "textDocument/inlineCompletion",
            PLACE | {"textDocument": {"uri": 5}},
            "textDocument.uri",
            "expected str, got int",
        ),
        (
            "textDocument/inlineCompletion",
            PLACE | {"position": {"line": -1, "character": 0}},
            "position.line",
            ">= 0",
        ),
        (
            "textDocument/inlineCompletion",
            PLACE | {"context": {"selectedCompletionInfo": {"text": "x"}}},
            "context.selectedCompletionInfo.range",
            "is missing",
        ),
        ("textDocument/inlineCompletion", [1, 2], "params", "expected object, got array"),
        ("textDocument/inlineCompletion", "x", "params", "expected object, got str"),
        ("pillion/complete", {}, "prefix", "is missing"),
        ("pillion/complete", {"prefix": 1}, "prefix", "expected str"),
        ("pillion/complete", {"prefix": "x", "maxTokens": 0}, "maxTokens", ">= 1"),
        ("pillion/complete", {"prefix": "x", "maxTokens": "9"}, "maxTokens", "expected int"),
        ("pillion/complete", {"prefix": "x", "multiline": "so"}, "multiline", "so"),
        ("pillion/complete", {"prefix": "x", "uri": URI}, "uri", "not both"),
        ("pillion/complete", {"text": "x"}, "position", "is missing"),
        (
            "pillion/complete",
            {"uri": URI, "position": {"line": 0, "character": 0}},
            "uri",
            "is not open",
        ),
    ],
)
async def test_ill_formed_params_are_answered_and_name_the_field(
    serve, method, params, field, complaint
):
    client = await (await serve()).client()
    answer = client.expect(99)
    client.send({"jsonrpc": "2.0", "id": 99, "method": method, "params": params})
    failure = await failure_of(answer)
    assert failure.code == -32602
    assert failure.data == {"code": "invalid_params", "field": field}
    assert failure.message.startswith(f"{field}: ")
    assert complaint in failure.message


async def test_initialize_with_wrong_types_names_the_field_and_can_be_tried_again(serve):
    client = await (await serve()).client(handshake=False)
    bad = {"capabilities": {"general": {"positionEncodings": "utf-8"}}}
    failure = await failure_of(client.request("initialize", bad))
    assert failure.data["field"] == "capabilities.general.positionEncodings"
    await client.initialize()


async def test_ill_formed_notifications_are_logged_and_cost_nothing(serve, caplog):
    client = await (await serve("1")).client()
    client.notify("textDocument/didOpen", {"textDocument": {"uri": 5}})
    client.notify("textDocument/didChange", {"contentChanges": "x"})
    client.notify("$/cancelRequest", {"id": []})
    client.notify("$/cancelRequest", {"id": 12345})
    client.change("file:///never/opened.py", 2, "x")
    client.open(URI, "x =")
    assert (await client.inline(URI, 0, 3))["items"]
    assert "textDocument.uri" in caplog.text
    assert "file:///never/opened.py, which is not open" in caplog.text


async def test_bad_json_and_no_message_are_answered_with_id_null(serve):
    client = await (await serve()).client()
    client.send_body(b"{nope")
    assert (await client.orphan())["code"] == -32700
    client.send_body(b"[]")
    assert (await client.orphan())["code"] == -32600
    client.send_body(b'{"jsonrpc":"2.0"}')
    assert (await client.orphan())["code"] == -32600
    assert (await client.request("pillion/status"))["state"] == "ready"


async def test_an_id_in_use_is_refused_and_the_first_request_goes_on(serve):
    door = await serve("abc", round_seconds=0.02)
    client = await door.client()
    first = client.expect("same")
    request = {
        "jsonrpc": "2.0",
        "id": "same",
        "method": "pillion/complete",
        "params": {"prefix": "x = "},
    }
    client.send(request)
    await until(lambda: door.backend.seen)
    client.send(request)
    # Two answers with one id: the refusal, at once, and then the result.
    failure = await failure_of(first)
    assert (failure.code, "in use" in failure.message) == (-32600, True)
    assert (await client.expect("same"))["text"] == "abc"


async def test_numbers_and_strings_are_different_ids(serve):
    client = await (await serve()).client()
    answers = [client.request("pillion/status", request_id=i) for i in (1, "1", "é😀", 2**60)]
    for answer in answers:
        assert (await answer)["state"] == "ready"


async def test_too_many_open_requests_are_refused_one_by_one(serve):
    door = await serve("a" * 90, round_seconds=0.05)
    client = await door.client()
    waiting = [
        client.request("pillion/complete", {"prefix": "x = "}) for _ in range(MAX_OPEN_REQUESTS)
    ]
    failure = await failure_of(client.request("pillion/complete", {"prefix": "x = "}))
    assert (failure.code, failure.data) == (-32803, {"code": "overloaded"})
    for answer in waiting:
        client.cancel(answer)
    for answer in waiting:
        assert (await failure_of(answer)).code == -32800


async def test_an_unexpected_error_is_answered_without_a_traceback(serve, caplog):
    def broken(_request):
        raise RuntimeError("unreachable")

    door = await serve()
    client = await door.client()
    door.services.engine.status = broken  # the door must survive what nobody thought of
    failure = await failure_of(client.request("pillion/complete", {"prefix": "x"}))
    del door.services.engine.status
    assert (failure.code, failure.data) == (-32603, None)
    assert "unreachable" not in failure.message
    assert "Traceback" in caplog.text
    assert (await client.request("pillion/status"))["state"] == "ready"


async def test_an_engine_that_dies_fails_the_request_once(serve):
    door = await serve("abcdef", dies_after=3)
    client = await door.client()
    failure = await failure_of(client.request("pillion/complete", {"prefix": "x"}))
    assert failure.code == -32603
    assert failure.data == {"code": "engine_error"}
    client.open(URI, "x =")
    assert (await failure_of(client.inline(URI, 0, 3))).message == "the engine died"


async def test_a_client_that_is_gone_leaves_nothing_behind_in_the_engine(serve):
    door = await serve("a" * 2000, round_seconds=0.002)
    client = await door.client()
    client.open(URI, "x = ")
    client.inline(URI, 0, 4)
    client.request("pillion/complete", {"prefix": "y", "maxTokens": 2000})
    await until(
        lambda: door.services.engine.open_requests == 2 and any(door.backend.steps.values())
    )
    client.writer.transport.abort()
    await until(lambda: not door.services.engine.open_requests)
    await until(lambda: not door.connections)
    assert [ending.finish_reason for ending in door.backend.endings.values()] == ["cancelled"] * 2
    assert (await (await door.client()).request("pillion/status"))["state"] == "ready"


async def test_a_client_that_only_stops_sending_gets_its_last_answers(serve):
    door = await serve("abc")
    client = await door.client()
    answer = client.request("pillion/status")
    open_request = client.request("pillion/complete", {"prefix": "x"})
    client.writer.write_eof()
    assert (await answer)["state"] == "ready"
    assert (await failure_of(open_request)).code == -32800
    await client.closed()


async def test_a_client_that_does_not_read_is_cut_off(serve, caplog):
    door = await serve()
    client = await door.client()
    other = await door.client()
    client.stop_reading()

    async def send_until_cut_off():
        request = b'{"jsonrpc":"2.0","id":%d,"method":"pillion/status","params":{}}'
        for number in itertools.count():
            client.send_body(request % number)
            if number % 100 == 0:
                await client.writer.drain()

    with pytest.raises(OSError):  # noqa: PT011, broken pipe or reset, as it comes
        await send_until_cut_off()
    await until(lambda: len(door.connections) == 1)
    assert "does not read" in caplog.text
    assert (await other.request("pillion/status"))["state"] == "ready"


async def test_a_flood_from_one_client_does_not_starve_another(serve):
    door = await serve("ok")
    loud, quiet = await door.client(), await door.client()
    flood = [loud.request("pillion/status") for _ in range(2000)]
    async with asyncio.timeout(10):
        assert (await quiet.request("pillion/complete", {"prefix": "x"}))["text"] == "ok"
    for answer in flood:
        await answer
