"""`/v1/models`, `/health`, and the paths that do not exist."""

from __future__ import annotations

import pytest
from http_door import COMPLETIONS, asgi_door, error_of

from engine.testing import FakeEngine


async def test_the_served_model() -> None:
    async with asgi_door(FakeEngine(context=1234)) as client:
        listed = (await client.get("/v1/models")).json()
        assert listed["object"] == "list"
        [model] = listed["data"]
        assert model["id"] == "fake"
        assert model["object"] == "model"
        assert model["owned_by"] == "pillion"
        assert model["context_length"] == model["max_model_len"] == 1234
        assert isinstance(model["created"], int)
        for name in ("fake", "default", "builtin"):
            assert (await client.get(f"/v1/models/{name}")).json() == model


async def test_a_model_that_is_not_served() -> None:
    async with asgi_door(FakeEngine()) as client:
        response = await client.get("/v1/models/org/other")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"
    assert "org/other" in error_of(response)["message"]


async def test_health_is_the_whole_status() -> None:
    async with asgi_door(FakeEngine()) as client:
        response = await client.get("/health")
        head = await client.head("/health")
    assert response.status_code == head.status_code == 200
    report = response.json()
    assert report["state"] == "ready"
    assert report["model"]["id"] == "fake"
    assert report["pid"]


@pytest.mark.parametrize("path", ["/v1", "/v2/completions", "/v1/models/", "/%ff%00"])
async def test_an_unknown_path_names_the_endpoints(path: str) -> None:
    async with asgi_door(FakeEngine()) as client:
        for response in (await client.get(path), await client.post(path, json={})):
            if path == "/v1/models/" and response.request.method == "GET":
                assert error_of(response)["code"] == "model_not_found"
                continue
            assert response.status_code in (404, 405)
            error = error_of(response)
            if response.status_code == 404:
                assert error["code"] == "not_found"
                assert f"POST {COMPLETIONS}" in error["message"]
                assert "GET /health" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", COMPLETIONS, "POST"),
        ("DELETE", COMPLETIONS, "POST"),
        ("OPTIONS", COMPLETIONS, "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_405_with_allow(method: str, path: str, allow: str) -> None:
    async with asgi_door(FakeEngine()) as client:
        response = await client.request(method, path)
    assert response.status_code == 405
    assert sorted(response.headers["allow"].split(", ")) == sorted(allow.split(", "))
    error = error_of(response)
    assert error["code"] == "method_not_allowed"
    assert method in error["message"]
    assert path in error["message"]


async def test_metrics_for_prometheus_and_as_json() -> None:
    async with asgi_door(FakeEngine("x")) as client:
        scraped = await client.get("/metrics")
        plain = await client.get("/metrics", headers={"accept": "application/json"})
    assert scraped.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# TYPE pillion_ready gauge\npillion_ready 1\n" in scraped.text
    assert plain.json()["state"] == "ready"
