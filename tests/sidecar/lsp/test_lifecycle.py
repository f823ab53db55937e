"""From connect to exit, and what may go wrong on the way."""

import asyncio
import threading

import pytest
from rpc_client import RpcFailure
from waiting import until

URI = "file:///w/a.py"


async def refused(answer, code, *said):
    with pytest.raises(RpcFailure) as raised:
        await answer
    assert raised.value.code == code
    for words in said:
        assert words in raised.value.message
    assert "Traceback" not in str(raised.value.data)
    return raised.value


async def test_the_handshake(serve):
    door = await serve()
    client = await door.client(handshake=False)
    result = await client.initialize("utf-8", "utf-16")
    assert result["serverInfo"]["name"] == "pillion"
    assert result["serverInfo"]["version"]
    capabilities = result["capabilities"]
    assert capabilities["positionEncoding"] == "utf-8"
    assert capabilities["textDocumentSync"] == {"openClose": True, "change": 2, "save": True}
    folders = {"supported": True, "changeNotifications": True}
    assert capabilities["workspace"] == {"workspaceFolders": folders}
    assert capabilities["inlineCompletionProvider"] == {}
    assert "pillion/complete" in capabilities["experimental"]["pillion"]["methods"]


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (("utf-8", "utf-16"), "utf-8"),
        (("utf-32", "utf-8"), "utf-32"),
        (("utf-16",), "utf-16"),
        (("utf-7", "utf-32"), "utf-32"),
        (("utf-7",), "utf-16"),
        ((), "utf-16"),
    ],
)
async def test_the_position_encoding_is_the_clients_first_that_we_know(serve, offered, chosen):
    door = await serve()
    client = await door.client(handshake=False)
    result = await client.initialize(*offered)
    assert result["capabilities"]["positionEncoding"] == chosen


async def test_the_handshake_answers_before_the_model_is_there(serve):
    door = await serve("1", wait=False, loading=threading.Event())
    client = await door.client()
    client.open(URI, "x = ")
    assert await client.inline(URI, 0, 4) is None
    assert await client.inline(URI, 0, 4) is None
    (told,) = [p for method, p in client.notifications if method == "window/logMessage"]
    assert "the engine is loading" in told["message"]
    status = await client.request("pillion/status")
    assert status["state"] == "loading"
    failure = await refused(client.request("pillion/complete", {"prefix": "x"}), -32803, "loading")
    assert failure.data["code"] == "not_ready"
    assert "progress" in failure.data
    door.backend._loading.set()
    await door.services.engine.ready()
    answer = await client.inline(URI, 0, 4)
    assert answer["items"][0]["insertText"] == "1"


async def test_only_the_api_methods_answer_before_initialize(serve):
    door = await serve()
    client = await door.client(handshake=False)
    client.open(URI, "x")
    await refused(client.inline(URI, 0, 1), -32002, "came before initialize")
    await refused(client.request("shutdown"), -32002)
    await refused(client.request("no/such"), -32002)
    assert (await client.request("pillion/status"))["state"] == "ready"
    await client.initialize()
    await refused(client.inline(URI, 0, 1), -32602, "textDocument.uri", "is not open")


async def test_initialize_comes_once(serve):
    door = await serve()
    client = await door.client()
    await refused(client.request("initialize", {"capabilities": {}}), -32600, "already")


async def test_after_shutdown_only_exit_is_left(serve):
    door = await serve()
    client = await door.client()
    assert await client.request("shutdown") is None
    await refused(client.request("pillion/status"), -32600, "shutdown")
    await refused(client.request("shutdown"), -32600)
    client.notify("exit")
    await client.closed()


async def test_exit_ends_one_connection_and_not_the_daemon(serve):
    door = await serve()
    first, second = await door.client(), await door.client()
    await first.request("shutdown")
    first.notify("exit")
    await first.closed()
    assert (await second.request("pillion/status"))["state"] == "ready"
    assert not door.stopped.is_set()
    third = await door.client()
    third.notify("exit")  # without the shutdown that should come first
    await third.closed()
    await (await door.client()).request("pillion/status")


async def test_pillion_shutdown_answers_and_then_stops_the_daemon(serve):
    door = await serve()
    client = await door.client(handshake=False)
    assert await client.request("pillion/shutdown") is None
    async with asyncio.timeout(10):
        await door.stopped.wait()


async def test_a_daemon_that_ends_a_connection_answers_what_is_open_first(serve):
    door = await serve("a" * 500, round_seconds=0.002)
    client = await door.client()
    waiting = client.request("pillion/complete", {"prefix": "x = "})
    await until(lambda: any(door.backend.steps.values()))
    (connection,) = door.connections
    connection.cancel()
    await refused(waiting, -32800, "cancelled")
    await client.closed()
    await until(lambda: not door.services.engine.open_requests)


async def test_shutdown_answers_what_is_open(serve):
    door = await serve("a" * 500, round_seconds=0.002)
    client = await door.client()
    client.open(URI, "x = ")
    waiting = client.inline(URI, 0, 4)
    assert await client.request("shutdown") is None
    await refused(waiting, -32800, "cancelled")


async def test_status_is_the_same_as_for_every_door(serve):
    door = await serve()
    client = await door.client()
    status = await client.request("pillion/status")
    assert status["model"]["id"] == "fake"
    assert {"version", "pid", "uptime_s", "socket", "url", "exactness"} <= set(status)
