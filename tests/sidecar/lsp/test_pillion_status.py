"""The state that a plugin shows, and being told when it changes."""

import threading

from waiting import until

from engine import GenerateRequest, Priority
from sidecar.lsp import pillion_status

URI = "file:///w/a.py"


def told(client):
    return [
        params for method, params in client.notifications if method == "pillion/didChangeStatus"
    ]


async def test_a_watcher_sees_the_model_come(serve):
    loading = threading.Event()
    door = await serve("ok", loading=loading, wait=False)
    client = await door.client()
    status = await client.request("pillion/status", {"watch": True})
    assert (status["state"], status["summary"]["state"]) == ("loading", "loading")
    assert status["summary"]["model"] == door.services.config.engine.model
    loading.set()
    await until(lambda: [one["state"] for one in told(client)] == ["ready"])
    assert told(client)[0]["model"] == "fake"


async def test_a_watcher_sees_work_begin_and_end(serve):
    door = await serve("a" * 300, round_seconds=0.002)
    watcher, other = await door.client(), await door.client()
    await watcher.request("pillion/status", {"watch": True})
    await watcher.request("pillion/status", {"watch": True})  # once more changes nothing
    answer = other.request("pillion/complete", {"prefix": "x = ", "maxTokens": 300})
    await until(lambda: [one["state"] for one in told(watcher)][:1] == ["busy"])
    await answer
    await until(lambda: [one["state"] for one in told(watcher)] == ["busy", "ready"])
    assert told(other) == []


async def test_idle_work_is_not_busy(serve):
    door = await serve("ok")
    client = await door.client()
    client.open(URI, "x = 1\n" * 40)
    await client.request("pillion/status", {"watch": True})
    engine = door.services.engine
    async with engine.generate(
        GenerateRequest(id="idle", prompt=(1,), priority=Priority.IDLE)
    ) as reply:
        assert not engine.working
        await reply.finished()
    assert not engine.working
    assert told(client) == []


async def test_a_watcher_that_leaves_is_forgotten(serve):
    door = await serve("ok")
    client = await door.client()
    await client.request("pillion/status", {"watch": True})
    await client.close()
    await until(lambda: not door.connections)


async def test_a_watcher_hears_of_the_end(serve):
    door = await serve("ok")
    client = await door.client()
    await client.request("pillion/status", {"watch": True})
    await door.services.engine.stop()
    await until(lambda: [one["state"] for one in told(client)] == ["stopped"])
    assert told(client)[0]["action"]


async def test_the_end_is_told_at_once_behind_other_news(serve, monkeypatch):
    """The connection closes soon after it."""
    monkeypatch.setattr(pillion_status, "PAUSE_SECONDS", 600)
    loading = threading.Event()
    door = await serve("ok", loading=loading, wait=False)
    client = await door.client()
    await client.request("pillion/status", {"watch": True})
    loading.set()
    await until(lambda: [one["state"] for one in told(client)] == ["ready"])
    await door.services.engine.stop()
    await until(lambda: [one["state"] for one in told(client)] == ["ready", "stopped"])
