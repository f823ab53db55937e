"""How the verbs show what drafting did and gained."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

# Spans of a timeline that fit a screen.
MOST_SPANS = 60


def show_surplus(facts: Mapping[str, Any]) -> None:
    """Tables on stderr for the `pillion` object of a reply that was asked to explain itself."""
    from rich.console import Console

    console = Console(stderr=True, width=None if sys.stderr.isatty() else 140)
    regimes = facts.get("regimes") or []
    if not regimes:
        console.print("nothing was decoded behind the first token")
        return
    console.print(by_regime(regimes))
    saved = sum(regime["saved"] for regime in regimes)
    console.print(saved_line(saved), highlight=False)
    if timeline := facts.get("timeline"):
        console.print(f"rounds: {' '.join(spans(timeline))}", highlight=False)


def saved_line(saved: float) -> str:
    verb = "saved" if saved >= 0 else "lost"
    return f"drafting {verb} {abs(saved):.2f} s against target-only"


def by_regime(regimes: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each regime, and one for each of its drafters."""
    from rich.table import Table

    table = Table(title="Drafting by kind of text")
    table.add_column("regime")
    for name in ("tokens", "tok/s", "surplus", "saved"):
        table.add_column(name, justify="right")
    table.add_column("rounds by rows")
    table.add_column("drafts right, by position")
    table.add_column("target-only")
    for regime in regimes:
        table.add_row(
            regime["regime"],
            str(regime["tokens"]),
            f"{regime['tok_s']:.1f}",
            f"{regime['surplus_ms']:+.2f} ms/token",
            f"{regime['saved']:+.2f} s",
            " ".join(f"{width}:{rounds}" for width, rounds in regime["widths"].items()),
            "\n".join(drafters(regime["drafters"])),
            "\n".join(target_only(regime["target_only"])),
        )
    return table


def drafters(used: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """``copy in 12 rounds: 100% 92% 75%``."""
    for drafter in used:
        pairs = zip(drafter["accepted"], drafter["tried"], strict=True)
        shares = " ".join(f"{accepted / tried:.0%}" for accepted, tried in pairs if tried)
        yield f"{drafter['drafter']} in {drafter['rounds']} rounds: {shares}"


def target_only(reasons: Mapping[str, float]) -> Iterator[str]:
    """``0.31 s: does not pay``, the longest first."""
    for reason, seconds in sorted(reasons.items(), key=lambda item: -item[1]):
        yield f"{seconds:.2f} s: {reason}"


def spans(timeline: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """``code`` where a regime begins, then ``copy/8x11``: eleven rounds of eight rows."""
    regime = ""
    for span in timeline[:MOST_SPANS]:
        if span["regime"] != regime:
            regime = span["regime"]
            yield f"[{regime}]".replace("[", "\\[")
        yield f"{span['drafter'] or 'target'}/{span['width']}x{span['rounds']}"
    if len(timeline) > MOST_SPANS:
        yield f"and {len(timeline) - MOST_SPANS} more"
