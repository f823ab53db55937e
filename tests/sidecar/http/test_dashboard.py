"""The dashboard: its page, what it is fed with, and the replay of a past request."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import httpx2
import pytest
from http_door import asgi_door, chat, error_of, socket_door
from waiting import until

from engine import Failed, Finished, GenerateRequest
from engine.testing import FakeEngine
from sidecar.config import Config, HttpConfig
from sidecar.http.dashboard import feed, record
from sidecar.http.dashboard.record import Record

EVENTS = "/dashboard/events"
ASSETS = resources.files("sidecar.http.dashboard") / "assets"


class Page(HTMLParser):
    """What a page refers to, and what its policy forbids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.inline: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [given[name] or "" for name in ("src", "href") if name in given]
        self.inline += [name for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)
        self.ids += [given["id"] or ""] if "id" in given else []


async def test_the_page_and_all_that_it_loads() -> None:
    async with asgi_door(FakeEngine()) as client:
        answer = await client.get("/")
        page = Page(answer.text)
        loaded = [link for link in page.links if not link.startswith("#")]
        assert "/dashboard/main.js" in loaded
        answers = [answer, *[await client.get(link) for link in loaded]]
        for entry in ASSETS.iterdir():
            answers.append(await client.get(f"/dashboard/{entry.name}"))
        tag = answer.headers["etag"]
        assert (await client.get("/", headers={"if-none-match": tag})).status_code == 304
        assert (await client.head("/")).status_code == 200
    assert page.inline == []
    assert len(page.ids) == len(set(page.ids))
    for one in answers:
        assert one.status_code == 200, one.url
        policy = one.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert one.headers["x-content-type-options"] == "nosniff"


def test_nothing_comes_from_outside() -> None:
    for entry in ASSETS.iterdir():
        text = entry.read_text()
        assert set(re.findall(r"https?://[^\s\"'`)]+", text)) <= {"http://www.w3.org/2000/svg"}
        assert "@import" not in text
        for module in re.findall(r'from "(.*?)"', text):
            assert (ASSETS / module.removeprefix("./")).is_file(), module


def test_every_module_finds_its_places() -> None:
    ids = set(Page((ASSETS / "index.html").read_text()).ids)
    for entry in ASSETS.iterdir():
        if entry.name.endswith(".js"):
            assert set(re.findall(r'byId\("(.*?)"\)', entry.read_text())) <= ids, entry.name


async def test_what_is_not_there_or_not_allowed() -> None:
    async with asgi_door(FakeEngine()) as client:
        for name in ("nothing.js", "..%2fpage.py", "__init__.py", "%00"):
            assert (await client.get(f"/dashboard/{name}")).status_code == 404
        assert (await client.post("/", json={})).status_code == 405
        assert (await client.get("/dashboard/replay")).status_code in (404, 405)
        foreign = {"sec-fetch-site": "cross-site"}
        for path in ("/", EVENTS):
            refused = await client.get(path, headers=foreign)
            assert error_of(refused)["code"] == "forbidden"
        refused = await client.get("/", headers={"host": "evil.example"})
        assert refused.status_code == 403


async def test_a_browser_gives_the_key_as_a_password() -> None:
    config = Config(http=HttpConfig(api_key="a-key"))

    def password(key: str) -> dict[str, str]:
        return {"authorization": f"Basic {b64encode(f'any:{key}'.encode()).decode()}"}

    async with asgi_door(FakeEngine(), config=config) as client:
        asked = await client.get("/")
        assert asked.status_code == 401
        assert "Basic realm=" in asked.headers["www-authenticate"]
        assert (await client.get("/", headers=password("a-key"))).status_code == 200
        for wrong in (password("other"), password(""), {"authorization": "Basic %%%"}):
            assert (await client.get("/", headers=wrong)).status_code == 401


async def events(url: str) -> AsyncIterator[dict[str, Any]]:
    async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
        async with client.stream("GET", EVENTS) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))


async def test_what_a_page_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "TICK_SECONDS", 0.01)
    engine = FakeEngine("four", facts={"inexact_reason": "a reason"})
    async with socket_door(engine) as door:
        client = door.services.engine
        async with httpx2.AsyncClient(base_url=door.url) as http:
            await chat(http, max_tokens=3)
            assert client.watchers == []
            told = events(door.url)
            first = await anext(told)
            assert len(client.watchers) == 1
            secret = [{"role": "user", "content": "nobody's business"}]
            await chat(http, messages=secret)
        seen = [first]
        while not any("ended" in event for event in seen[1:]):
            seen.append(await anext(told))
        await told.aclose()
        await until(lambda: client.watchers == [])
    [early] = first["ended"]
    assert (early["kind"], early["ending"], early["tokens"]) == ("chat", "length", 3)
    assert {"reason": "a reason", "seconds": None} in early["fallbacks"]
    assert first["status"]["model"]["id"] == "fake"
    assert first["open"] == []
    assert first["cache"] == {"nodes": [], "left_out": 0}
    [late] = [past for event in seen[1:] for past in event.get("ended", [])]
    assert late["ending"] == "stop"
    assert sum(event["committed"] for event in seen) == late["tokens"] == 5
    assert "business" not in json.dumps(seen)


async def test_so_many_pages_look_on_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_WATCHERS", 1)
    async with socket_door(FakeEngine()) as door:
        told = events(door.url)
        await anext(told)
        async with httpx2.AsyncClient(base_url=door.url) as http:
            refused = await http.get(EVENTS)
            headless = await http.head(EVENTS)
        assert (refused.status_code, error_of(refused)["code"]) == (429, "overloaded")
        assert (headless.status_code, headless.headers["allow"]) == (405, "GET")
        await told.aclose()


async def test_the_feed_ends_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "TICK_SECONDS", 0.01)
    async with socket_door(FakeEngine()) as door:
        told = events(door.url)
        await anext(told)
        await door.services.engine.stop()
        rest = [event async for event in told]
    assert rest[-1]["over"] == "stopped"


async def test_a_replay_compares_tokens() -> None:
    engine = FakeEngine("the same", facts=lambda request: {"accepted": int(request.draft)})
    async with asgi_door(engine) as client:
        reply = (await chat(client, max_tokens=6, temperature=1.0, seed=7)).json()
        again = await client.post("/dashboard/replay", json={"id": reply["id"]})
    answer = again.json()
    first, plain, drafted = engine.seen
    assert answer["id"] == reply["id"]
    for decoded in (answer["target_only"], answer["drafted"]):
        assert decoded["same"] is True
        assert decoded["parts_at"] is None
        assert decoded["tokens"] == 6
        assert decoded["token_hash"] == reply["pillion"]["token_hash"]
    assert (plain.draft, drafted.draft) == (False, True)
    assert plain.prompt == first.prompt
    assert plain.seed == 7
    assert plain.max_tokens == 6
    assert plain.priority > first.priority


async def test_a_replay_says_where_it_parts() -> None:
    engine = FakeEngine(lambda request: "abcd" if request.draft else "abXd")
    async with asgi_door(engine) as client:
        reply = (await chat(client)).json()
        answer = (await client.post("/dashboard/replay", json={"id": reply["id"]})).json()
    assert answer["target_only"]["same"] is False
    assert answer["target_only"]["parts_at"] == 3
    assert answer["drafted"]["same"] is True


async def test_a_replay_of_nothing_known() -> None:
    async with asgi_door(FakeEngine()) as client:
        answer = await client.post("/dashboard/replay", json={"id": "chatcmpl-none"})
        assert answer.status_code == 404
        assert error_of(answer)["param"] == "id"
        assert (await client.post("/dashboard/replay", json={})).status_code == 400


async def test_a_replay_that_nobody_waits_for_ends() -> None:
    engine = FakeEngine("x" * 500, round_seconds=0.002)
    async with socket_door(engine) as door:
        async with httpx2.AsyncClient(base_url=door.url, timeout=60) as client:
            reply = (await chat(client, max_tokens=40)).json()
            asked = asyncio.create_task(client.post("/dashboard/replay", json={"id": reply["id"]}))
            await until(lambda: len(engine.seen) == 2)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            await until(lambda: door.services.engine.open_requests == 0)
    assert len(engine.seen) == 2


def finished(request_id: str) -> Finished:
    return Finished(
        id=request_id, finish_reason="stop", tokens=(1,), token_hash="", seed=0, prompt_tokens=1
    )


async def test_the_record_is_bounded() -> None:
    kept = Record()
    for index in range(record.MOST_REQUESTS + 5):
        kept(GenerateRequest(id=f"complete-{index}", prompt=(1,)))
        kept(finished(f"complete-{index}"))
    assert kept.open() == []
    assert kept.past()[0].id == "complete-5"
    assert len(kept.past()) == record.MOST_REQUESTS
    assert len(kept.past(after=kept.ended - 2)) == 2
    assert kept.past(after=kept.ended) == []
    assert kept.replayable("complete-4") is None
    assert kept.replayable("complete-5") is not None


async def test_long_prompts_are_not_kept_for_a_replay() -> None:
    kept = Record()
    for name, size in (("a-1", 10), ("b-1", record.MOST_REPLAY_TOKENS - 20), ("c-1", 30)):
        kept(GenerateRequest(id=name, prompt=(1,) * size))
        kept(finished(name))
    assert kept.replayable("c-1") is not None
    assert kept.replayable("a-1") is kept.replayable("b-1") is None
    predicted = (1,) * record.MOST_REPLAY_TOKENS
    kept(GenerateRequest(id="d-1", prompt=(1,), prediction=predicted))
    kept(finished("d-1"))
    assert kept.replayable("c-1") is kept.replayable("d-1") is None
    assert len(kept.past()) == 4


async def test_what_the_record_leaves_out() -> None:
    kept = Record()
    kept(GenerateRequest(id="warm-1", prompt=(1,), warm=True))
    kept(GenerateRequest(id="replay-1", prompt=(1,)))
    assert [request.kind for request in kept.open()] == ["replay"]
    kept(finished("replay-1"))
    kept(finished("warm-1"))
    assert kept.past() == []


async def test_a_failed_request_has_its_reason() -> None:
    kept = Record()
    kept(GenerateRequest(id="msg_1", prompt=(1,)))
    kept(Failed(id="msg_1", code="engine_error", message="it died"))
    [past] = kept.past()
    assert (past.kind, past.ending, past.replay) == ("message", "failed", False)
    assert past.fallbacks[0].reason == "engine_error: it died"
