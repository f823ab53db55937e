"""Who may talk to the door, and in what form."""

from __future__ import annotations

from typing import Any

import pytest
from http_door import COMPLETIONS, HELLO, asgi_door, error_of

from engine.testing import FakeEngine
from sidecar.config import Config, HttpConfig

PATHS = ["/health", "/v1/models", "/nothing"]


async def get(headers: dict[str, str], path: str = "/health", **http: Any) -> int:
    config = Config(http=HttpConfig(**http))
    async with asgi_door(FakeEngine(), config=config) as client:
        response = await client.get(path, headers=headers)
    assert "access-control-allow-origin" not in response.headers
    if response.status_code >= 400 and response.status_code != 503:
        error_of(response)
    return response.status_code


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:7455", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:7455", "127.0.0.2"],
)
async def test_loopback_names_and_the_configured_host_are_served(host: str) -> None:
    assert await get({"host": host}, host="127.0.0.2") == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7455",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "[::1].evil.example",
        "[::1",
        "::1",
        "localhost:port",
        "localhost:7455:1",
        "127.0.0.2",
        "192.168.1.5",
        "",
        " ",
        "localhost/../",
    ],
)
async def test_a_foreign_host_is_refused(host: str) -> None:
    assert await get({"host": host}) == 403


async def test_a_configured_ipv6_host() -> None:
    assert await get({"host": "[fd00::1]:7455"}, host="fd00::1", api_key="k") == 401
    assert await get({"host": "[fd00::2]:7455"}, host="fd00::1", api_key="k") == 403


async def test_on_a_wildcard_address_the_key_stands_in_for_the_host() -> None:
    header = {"host": "box.lan:7455", "authorization": "Bearer k"}
    assert await get(header, host="0.0.0.0", api_key="k") == 200
    assert await get({"host": "box.lan:7455"}, host="0.0.0.0", api_key="k") == 401
    assert await get({"host": "box.lan"}, host="0.0.0.0") == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://localhost:3000"},
        {"origin": "http://127.0.0.1"},
        {"origin": "https://localhost"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_web_pages_of_other_origins_are_refused(headers: dict[str, str]) -> None:
    for path in PATHS:
        assert await get({"host": "localhost", **headers}, path) == 403


@pytest.mark.parametrize(
    "headers", [{"origin": "http://localhost:7455"}, {"sec-fetch-site": "same-origin"}]
)
async def test_a_page_of_its_own_would_be_served(headers: dict[str, str]) -> None:
    assert await get({"host": "localhost:7455", **headers}) == 200


async def test_a_preflight_gets_no_permission() -> None:
    async with asgi_door(FakeEngine()) as client:
        response = await client.options(
            COMPLETIONS,
            headers={
                "origin": "https://evil.example",
                "access-control-request-method": "POST",
                "access-control-request-headers": "content-type",
            },
        )
    assert response.status_code == 403
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer s3cret"},
        {"authorization": "bearer  s3cret"},
        {"x-api-key": "s3cret"},
        {"x-api-key": "s3cret", "authorization": "Basic abc"},
    ],
)
async def test_the_key_opens_every_path(headers: dict[str, str]) -> None:
    assert [await get(headers, path, api_key="s3cret") for path in PATHS] == [200, 200, 404]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer"},
        {"authorization": "s3cret"},
        {"authorization": "Basic s3cret"},
        {"authorization": "Bearer s3cret2"},
        {"authorization": "Bearer s3cre"},
        {"x-api-key": ""},
        {"x-api-key": "wrong"},
        {"x-api-key": "wrong", "authorization": "Bearer wrong"},
    ],
)
async def test_without_the_key_no_path_answers(headers: dict[str, str]) -> None:
    engine = FakeEngine()
    config = Config(http=HttpConfig(api_key="s3cret"))
    async with asgi_door(engine, config=config) as client:
        for path in PATHS:
            response = await client.get(path, headers=headers)
            assert response.status_code == 401
            asked = response.headers.get_list("www-authenticate")
            assert [challenge.split()[0] for challenge in asked] == ["Bearer", "Basic"]
            error = error_of(response)
            assert error["code"] == "invalid_api_key"
            assert error["type"] == "authentication_error"
            assert "s3cret" not in error["message"]
        response = await client.post(COMPLETIONS, headers=headers, json={"messages": HELLO})
        assert response.status_code == 401
    assert engine.seen == []


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""],
)
async def test_what_is_not_json_is_415(content_type: str) -> None:
    async with asgi_door(FakeEngine()) as client:
        response = await client.post(
            COMPLETIONS, content=b'{"messages":[]}', headers={"content-type": content_type}
        )
    assert response.status_code == 415
    assert error_of(response)["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/x+json"]
)
async def test_kinds_of_json(content_type: str) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}]}'
    async with asgi_door(FakeEngine()) as client:
        headers = {"content-type": content_type}
        assert (await client.post(COMPLETIONS, content=body, headers=headers)).status_code == 200
        assert (await client.post(COMPLETIONS, content=body)).status_code == 200


async def test_a_compressed_body_is_415() -> None:
    async with asgi_door(FakeEngine()) as client:
        response = await client.post(
            COMPLETIONS,
            content=b"x",
            headers={"content-type": "application/json", "content-encoding": "gzip"},
        )
    assert response.status_code == 415
    assert "gzip" in error_of(response)["message"]
