"""``pillion bench fim``: how well holes of several lines are filled, with other ways beside."""

from __future__ import annotations

import asyncio
import http.client
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine import (
    EngineClient,
    EngineError,
    EngineOptions,
    GenerateRequest,
    PillionError,
    engine_client,
)
from sidecar.cli.background import child_environment
from sidecar.cli.bench_peers import install_peers, laid_out_weights
from sidecar.cli.in_process import cancelled_by_signals, started
from sidecar.cli.report import report_console, write_report
from sidecar.cli.terminal import note
from sidecar.config import CompletionConfig
from sidecar.jobs.completion import CompletionRequest, complete, fill
from sidecar.jobs.fim_benchmark import (
    HOLES,
    IN_THE_MIDDLE,
    PREFIX_ONLY,
    FimRow,
    Hole,
    begun_text,
    holes,
    judged,
    settled_text,
)
from sidecar.jobs.held_out_code import held_out_folders
from sidecar.jobs.race.roster import LLAMA, SERVED_PEERS
from sidecar.jobs.suggestion import settle

if TYPE_CHECKING:
    from rich.table import Table

SMALL_MODEL = "smollm2-135m"
# The same room for all: what the large one takes for a hole is seconds on two cores.
CONFIG = CompletionConfig(prompt_tokens=256)
_CHARACTERS = 3 * CONFIG.prompt_tokens
_SECONDS = 120.0

Filler = Callable[[Hole], Awaitable[str]]


class FimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """holes: of all held-out code. peers: llama.cpp, too."""

    holes: int = HOLES
    peers: bool = True
    json: Path | None = None


async def fim(options: EngineOptions, settings: FimSettings) -> dict[str, Any]:
    """Fill, print and write; the figures. A signal ends it, and the server that it has started."""
    cancelled_by_signals()
    try:
        return await _fim(options, settings)
    except asyncio.CancelledError:
        raise EngineError("interrupted; nothing was written") from None


async def _fim(options: EngineOptions, settings: FimSettings) -> dict[str, Any]:
    folders, sources = await asyncio.to_thread(held_out_folders)
    asked = holes(folders, settings.holes)
    if not asked:
        raise PillionError("there is no held-out code: pip cannot fetch it and none is installed")
    rows, absent = await _ours(msgspec.structs.replace(options, audit=False), asked), ""
    if settings.peers:
        try:
            rows.append(await _llama(asked))
        except PillionError as error:
            absent = error.message
    found = fim_figures(rows)
    console = report_console()
    console.print(fim_table(rows))
    if absent:
        console.print(f"{LLAMA}: not measured: {absent}", highlight=False, markup=False)
    console.print(msgspec.json.encode(found).decode(), highlight=False, soft_wrap=True)
    if settings.json is not None:
        write_report(
            settings.json,
            found,
            rows=msgspec.to_builtins(rows),
            held_out_code=sources,
            absent=absent,
            prompt_tokens=CONFIG.prompt_tokens,
            max_tokens=CONFIG.max_tokens,
        )
    return found


def fim_figures(rows: Sequence[FimRow]) -> dict[str, Any]:
    """Of filling in the middle, and of each baseline under its name."""
    first, *others = rows
    kept = ("holes", "exact_match", "edit_similarity")

    def figures(row: FimRow) -> dict[str, Any]:
        return {name: getattr(row, name) for name in kept}

    return figures(first) | {
        "baselines": {f"{row.system}, {row.model}": figures(row) for row in others}
    }


async def _ours(options: EngineOptions, asked: Sequence[Hole]) -> list[FimRow]:
    client = engine_client(options)

    async def in_the_middle(hole: Hole) -> str:
        request = CompletionRequest(prefix=hole.prefix, suffix=hole.suffix, path=hole.path)
        return (await complete(client, CONFIG, request)).text

    async def prefix_only(hole: Hole) -> str:
        return await _continued(client, hole)

    async with started(client, options.model):
        return [
            await _filled(system, options.model, asked, filler)
            for system, filler in ((IN_THE_MIDDLE, in_the_middle), (PREFIX_ONLY, prefix_only))
        ]


async def _continued(client: EngineClient, hole: Hole) -> str:
    """The text goes on where the hole begins; the same rules decide what of it is shown."""
    generate = GenerateRequest(
        id=client.new_id("continue"),
        prompt=tuple(await client.encode(begun_text(hole, _CHARACTERS).rstrip(" \t"))),
        max_tokens=CONFIG.max_tokens,
        must_start_with=hole.gap.before,
    )
    return (await fill(client, generate, hole.gap)).text


async def _llama(asked: Sequence[Hole]) -> FimRow:
    weights = await asyncio.to_thread(laid_out_weights)
    installed, absent = await asyncio.to_thread(
        install_peers, (LLAMA,), Path(weights.cache) / "peers"
    )
    if LLAMA in absent:
        raise EngineError(absent[LLAMA])
    peer = next(one for one in SERVED_PEERS if one.name == LLAMA)
    served = await peer.start(installed[LLAMA], weights, child_environment(os.environ, {}, None))

    async def plain(hole: Hole) -> str:
        return await asyncio.to_thread(_continued_by_llama, served.server.port, hole)

    try:
        return await _filled(f"{LLAMA}, {PREFIX_ONLY}", SMALL_MODEL, asked, plain)
    finally:
        await served.stop()


def _continued_by_llama(port: int, hole: Hole) -> str:
    """llama.cpp's own completion of the text up to the hole, as far as it belongs there: like ours
    it ends where the text is decided, and what would follow is not waited for."""
    body = {
        # With the line's indentation, though that cuts a token in two: without it SmolLM2 begins
        # another function, and is right even less often.
        "prompt": begun_text(hole, _CHARACTERS),
        "n_predict": CONFIG.max_tokens,
        "temperature": 0,
        "cache_prompt": False,
        "stream": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    try:
        connection.request(
            "POST", "/completion", msgspec.json.encode(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        if answer.status != 200:
            raise EngineError(f"{LLAMA} answers with {answer.status}: {answer.read()[:200]!r}")
        text = ""
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            said: dict[str, Any] = msgspec.json.decode(line[len(b"data: ") :])
            text += str(said.get("content", ""))
            if said.get("stop"):
                break
            if "\n" in str(said.get("content", "")) and (found := settle(text, hole.gap)).decided:
                return found.text
        else:
            raise EngineError(f"{LLAMA} broke off")
        return settled_text(hole, text, whole=said.get("stop_type") != "limit")
    except OSError as error:
        raise EngineError(f"{LLAMA} does not answer: {error}") from error
    finally:
        connection.close()


async def _filled(system: str, model: str, asked: Sequence[Hole], filler: Filler) -> FimRow:
    texts = []
    for number, hole in enumerate(asked, 1):
        texts.append(await filler(hole))
        if number % 50 == 0:
            note(f"{system}, {model}: {number} of {len(asked)}")
    return judged(system, model, asked, texts)


def fim_table(rows: Sequence[FimRow]) -> Table:
    """A row for each system."""
    from rich.table import Table

    table = Table(title="Holes of several lines in held-out code, greedily")
    for name in ("system", "model"):
        table.add_column(name)
    for name in ("holes", "exact match", "edit similarity", "first line", "empty"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.system,
            row.model,
            str(row.holes),
            f"{row.exact_match:.1%}",
            f"{row.edit_similarity:.3f}",
            f"{row.first_line:.1%}",
            str(row.empty),
        )
    return table
