"""What a key costs with the real engine: the prompt is computed once, then only what is new."""

import asyncio
import contextlib

import pytest
from rpc_client import RpcClient
from waiting import until

from engine import EngineClient
from sidecar.config import CompletionConfig, Config, WorkspaceConfig
from sidecar.lsp.server import serve_connection
from sidecar.services import Services
from sidecar.workspace import view

LINE = "    total = total + price_of(item) * rate(item, self.region, 1)"
PARTS = 6


class Recording:
    """A backend that remembers what it was asked."""

    def __init__(self, backend):
        self._backend = backend
        self.seen = []

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def post(self, request):
        self.seen.append(request)
        self._backend.post(request)


def definitions(part, kind="int"):
    return "".join(
        f"def function_{part}_{n}(first: {kind}, second: str) -> list[int]:\n    return []\n\n"
        for n in range(2)
    )


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(view, "IDLE_SECONDS", 0.05)
    folder = tmp_path / "shop"
    folder.mkdir()
    for part in range(PARTS):
        (folder / f"part_{part}.py").write_text(definitions(part))
    return folder


async def until_demoted(engine, paths, changed):
    """Until the cache knows that of these files just `changed` hold something else by now."""
    async with asyncio.timeout(60):
        while True:
            nodes = (await engine.cache("outline")).nodes
            if {node.path for node in nodes if node.demoted and node.path in paths} == changed:
                return
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def editor(backend, folder, config):
    """A client of a door on `backend`, with the services behind it."""
    engine = EngineClient(backend)
    engine.start()
    await engine.ready()
    services = Services(engine=engine, config=config, shutdown=lambda: None)
    tasks = set()

    def connected(reader, writer):
        tasks.add(asyncio.create_task(serve_connection(reader, writer, services)))

    server = await asyncio.start_unix_server(connected, str(folder.parent / "door"))
    client = await RpcClient.connect(str(folder.parent / "door"))
    await client.initialize("utf-32", rootUri=folder.as_uri())
    await until(lambda: [one.mode for one in services.workspace.status()] == ["watch"])
    try:
        yield client, services
    finally:
        server.close()
        await client.close()
        await asyncio.wait(tasks)
        services.workspace.close()
        await engine.stop()


@pytest.mark.parametrize(
    ("lines", "tokens", "step"),
    [(60, 128, 12), pytest.param(400, 1536, 1, marks=pytest.mark.slow)],
)
async def test_a_key_costs_what_was_typed(builtin_backend, project, lines, tokens, step):
    backend = Recording(builtin_backend)
    config = Config(
        completion=CompletionConfig(max_tokens=1, prompt_tokens=tokens),
        workspace=WorkspaceConfig(context="on", warm=False),
    )
    text = [
        f"from part_{part} import function_{part}_0, function_{part}_1" for part in range(PARTS)
    ]
    text += [f"value_{n} = function_{n % PARTS}_0({n}, 'text')" for n in range(lines - PARTS)]
    # What another variant computed is in the engine that they share.
    before, kind = f"int_{lines}", f"bytes_{lines}"
    for part in range(PARTS):
        (project / f"part_{part}.py").write_text(definitions(part, before))
    row, uri = lines * 3 // 4, (project / "main.py").as_uri()
    text[row] = ""
    async with editor(backend, project, config) as (client, services):
        client.open(uri, "\n".join(text))

        async def key(column):
            answer = await client.request(
                "pillion/complete", {"uri": uri, "position": {"line": row, "character": column}}
            )
            return answer["prompt_tokens"], answer["cached_tokens"], backend.seen[-1]

        async def settled(*, changed):
            """The first key whose prompt shows every part, one of them changed or none."""
            async with asyncio.timeout(60):
                while True:
                    total, cached, request = await key(column)
                    shown = await services.engine.decode(request.prompt)
                    if len(request.segments) == PARTS and (f"first: {kind}" in shown) is changed:
                        return total, cached, request
                    await asyncio.sleep(0.02)

        column = 0
        _, _, first = await settled(changed=False)
        stable = first.segments[-1].end
        for column in range(1, len(LINE) + 1):
            client.change(uri, column + 1, LINE[column - 1], row, column - 1, row, column - 1)
            if column % step:
                continue
            total, cached, request = await key(column)
            typed = len(await services.engine.encode(LINE[:column]))
            assert request.prompt[:stable] == first.prompt[:stable]
            assert total - cached <= 8 + typed
        # Another file changes what it offers: all in front of its segment is still known.
        other = project / "part_3.py"
        other.write_text(definitions(3, kind))
        total, cached, request = await settled(changed=True)
        paths = [one.path for one in request.segments]
        unchanged = request.segments[paths.index(str(other)) - 1].end
        assert unchanged <= cached < request.segments[-1].end
        await until_demoted(services.engine, paths, {str(other)})
        # And when it is put back, so is the whole prompt.
        other.write_text(definitions(3, before))
        total, cached, request = await settled(changed=False)
        assert request.prompt[:stable] == first.prompt[:stable]
        assert total - cached <= 8 + typed
