"""The daemon's status in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sidecar.metrics import status_report
from sidecar.services import Services

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """One line."""

    labels: Mapping[str, object]
    value: float


class Metric(NamedTuple):
    """kind: ``counter`` or ``gauge``."""

    name: str
    kind: str
    help: str
    samples: list[Sample]


def exposition(services: Services) -> str:
    """Every metric that has samples, with its help."""
    return "".join(f"{line}\n" for line in lines(status_report(services)))


def lines(status: Mapping[str, Any]) -> Iterator[str]:
    """status: as `sidecar.metrics.status_report` has it."""
    for metric in metrics(status):
        yield from _lines(metric)


def metrics(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Those that have no samples included."""
    totals = status["totals"]
    yield _one("pillion_ready", "gauge", "1 while the model answers.", status["state"] == "ready")
    yield _one("pillion_uptime_seconds", "gauge", "Since the daemon began.", status["uptime_s"])
    yield Metric(
        "pillion_requests_total",
        "counter",
        "Replies that ended, by how.",
        [
            Sample({"outcome": "cancelled"}, totals["cancelled"]),
            Sample({"outcome": "failed"}, totals["failed"]),
            Sample(
                {"outcome": "finished"},
                totals["requests"] - totals["cancelled"] - totals["failed"],
            ),
        ],
    )
    for name, what in (("active", "being decoded"), ("queued", "waiting")):
        yield _one(f"pillion_{name}_requests", "gauge", f"Replies {what} now.", status[name])
    computed = totals["prompt_tokens"] - totals["cached_tokens"]
    yield Metric(
        "pillion_prompt_tokens_total",
        "counter",
        "Prompt tokens, by whether a cache had them.",
        [
            Sample({"source": "computed"}, computed),
            Sample({"source": "cached"}, totals["cached_tokens"]),
        ],
    )
    for name, what in (
        ("completion_tokens", "Tokens of replies."),
        ("prefill_seconds", "Time spent on prompts."),
        ("decode_seconds", "Time spent on replies."),
        ("audits", "Past replies decoded again, target-only, in idle time."),
        ("audit_differences", "Audits that found another reply. Anything but 0 is a defect."),
    ):
        yield _one(f"pillion_{name}_total", "counter", what, totals[name])
    yield Metric(
        "pillion_draft_tokens_total",
        "counter",
        "Verified draft tokens, by what the target said.",
        [Sample({"outcome": name}, totals[name]) for name in ("accepted", "rejected")],
    )
    yield _one("pillion_target_forwards_total", "counter", "Decoding rounds.", totals["rounds"])
    yield _one(
        "pillion_memory_bytes", "gauge", "Bytes that MLX holds in arrays.", status["memory_bytes"]
    )
    yield from _cache(status["cache"])
    yield from _workspace(status["workspace"])
    yield from _surplus(status["regimes"])
    yield from _costs(status)


def _workspace(folders: list[dict[str, Any]]) -> Iterator[Metric]:
    """The folders that clients work in, together; their paths are nobody else's business."""
    for name, what in (
        ("files", "Files that are not ignored, of the folders that clients work in."),
        ("directories", "Directories that are watched or polled."),
    ):
        total = sum(folder[name] for folder in folders)
        yield _one(f"pillion_workspace_{name}", "gauge", what, total)
    yield Metric(
        "pillion_workspace_folders",
        "gauge",
        "Folders that clients work in, by how their changes become known.",
        [
            Sample({"mode": mode}, sum(folder["mode"] == mode for folder in folders))
            for mode in ("watch", "poll", "starting", "missing", "off")
        ],
    )
    yield _one(
        "pillion_workspace_changes",
        "gauge",
        "Changes of files seen since the folders were opened.",
        sum(folder["changes"] for folder in folders),
    )
    yield _one(
        "pillion_workspace_last_change_timestamp_seconds",
        "gauge",
        "When a file changed last, in Unix time; 0 for never.",
        max((folder["last_change"] or 0 for folder in folders), default=0),
    )


def _surplus(regimes: list[dict[str, Any]]) -> Iterator[Metric]:
    """What drafting does, by kind of text."""
    for field, name, what in (
        ("tokens", "tokens", "Tokens decoded, by kind of text."),
        ("rounds", "rounds", "Decoding rounds, by kind of text."),
        ("seconds", "decode_seconds", "Time of decoding rounds, by kind of text."),
        ("looks", "looks", "Proposals that were compared with the reply, not verified."),
    ):
        samples = [Sample({"regime": regime["regime"]}, regime[field]) for regime in regimes]
        yield Metric(f"pillion_regime_{name}_total", "counter", what, samples)
    yield Metric(
        "pillion_surplus_seconds",
        "gauge",
        "Time that drafting has saved against target-only, as the measured costs have it; "
        "negative if it lost.",
        [Sample({"regime": regime["regime"]}, regime["saved"]) for regime in regimes],
    )
    yield Metric(
        "pillion_verify_rounds_total",
        "counter",
        "Rounds by the rows of their target forward; 1 is target-only.",
        [
            Sample({"regime": regime["regime"], "rows": rows}, rounds)
            for regime in regimes
            for rows, rounds in regime["widths"].items()
        ],
    )
    yield Metric(
        "pillion_drafted_rounds_total",
        "counter",
        "Rounds with drafts, by whose they were.",
        [
            Sample({"regime": regime["regime"], "drafter": drafter["drafter"]}, drafter["rounds"])
            for regime in regimes
            for drafter in regime["drafters"]
        ],
    )
    yield Metric(
        "pillion_target_only_seconds_total",
        "counter",
        "Time of rounds without drafts, by why there were none.",
        [
            Sample({"regime": regime["regime"], "reason": reason}, seconds)
            for regime in regimes
            for reason, seconds in regime["target_only"].items()
        ],
    )
    yield Metric(
        "pillion_drafts_total",
        "counter",
        "Drafts that the target's choice decided about, by position in their block (from 1).",
        [
            Sample({**labels, "position": position, "outcome": outcome}, count)
            for regime in regimes
            for drafter in regime["drafters"]
            for labels in [{"regime": regime["regime"], "drafter": drafter["drafter"]}]
            for position, (accepted, tried) in enumerate(
                zip(drafter["accepted"], drafter["tried"], strict=True), 1
            )
            for outcome, count in (("accepted", accepted), ("rejected", tried - accepted))
        ],
    )


def _cache(cache: Mapping[str, Any]) -> Iterator[Metric]:
    """The prefix cache, by tier."""
    for field, name, what in (
        ("bytes", "bytes", "Bytes in the prefix cache."),
        ("budget", "budget_bytes", "Bytes that the prefix cache may take."),
    ):
        samples = [Sample({"tier": t}, cache[f"{t}_{field}"]) for t in ("memory", "disk")]
        yield Metric(f"pillion_prefix_cache_{name}", "gauge", what, samples)
    for field, name, what in (
        ("nodes", "nodes", "Stretches of tokens in memory."),
        ("snapshots", "snapshots", "Lengths in memory at which recurrent state is known."),
        ("disk_files", "files", "Files of the prefix cache."),
    ):
        yield _one(f"pillion_prefix_cache_{name}", "gauge", what, cache[field])
    yield Metric(
        "pillion_prefix_cache_hit_tokens_total",
        "counter",
        "Prompt tokens found, by tier and by what made them known.",
        [Sample({"tier": h["tier"], "kind": h["kind"]}, h["tokens"]) for h in cache["hits"]],
    )
    yield Metric(
        "pillion_prefix_cache_evictions_total",
        "counter",
        "Entries dropped, by tier and reason.",
        [
            Sample({"tier": e["tier"], "reason": e["reason"]}, e["count"])
            for e in cache["evictions"]
        ],
    )
    for field, what in (
        ("saved_seconds", "Time that finding prompts in the cache has saved."),
        ("shared_tokens", "Prompt tokens taken over from a request that was computing them."),
    ):
        yield _one(f"pillion_prefix_cache_{field}_total", "counter", what, cache[field])


def _costs(status: Mapping[str, Any]) -> Iterator[Metric]:
    costs = status["costs"] or {"forward": None, "drafters": {}}
    yield Metric(
        "pillion_forward_seconds",
        "gauge",
        "What a target forward takes on this machine, as measured at load.",
        [
            Sample({"context": context, "rows": rows}, seconds)
            for context, rows, seconds in _measured(costs["forward"])
        ],
    )
    yield Metric(
        "pillion_proposal_seconds",
        "gauge",
        "What a drafter's proposal takes on this machine, as measured at load.",
        [
            Sample({"drafter": drafter, "context": context, "drafts": drafts}, seconds)
            for drafter, grid in costs["drafters"].items()
            for context, drafts, seconds in _measured(grid)
        ],
    )
    yield _one(
        "pillion_slowdown_ratio",
        "gauge",
        "How much longer rounds take now than was measured at load.",
        status["slowdown"],
    )


def _measured(grid: Mapping[str, Any] | None) -> Iterator[tuple[int, int, float]]:
    """(context, count, seconds) of a cost grid."""
    if grid is not None:
        for context, row in zip(grid["contexts"], grid["seconds"], strict=True):
            for count, seconds in zip(grid["counts"], row, strict=True):
                yield context, count, seconds


def _one(name: str, kind: str, what: str, value: float) -> Metric:
    return Metric(name, kind, what, [Sample({}, value)])


def _lines(metric: Metric) -> Iterator[str]:
    if not metric.samples:
        return
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for labels, value in metric.samples:
        pairs = ",".join(f'{name}="{_escaped(str(text))}"' for name, text in labels.items())
        yield (
            f"{metric.name}{{{pairs}}} {float(value):.17g}"
            if pairs
            else (f"{metric.name} {float(value):.17g}")
        )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
