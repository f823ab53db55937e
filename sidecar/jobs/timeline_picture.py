"""A reply's rounds as a picture: which regime it was in, and how many rows each round verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from engine import Span

WIDTH, LEFT, RIGHT = 960, 64, 16
TOP, PLOT, BAND, AXIS = 56, 160, 28, 28
HEIGHT = TOP + PLOT + BAND + AXIS + 34
# Colour-blind safe (Okabe and Ito, "Color Universal Design", 2008).
DRAFTERS = {
    "": "#999999",
    "copy": "#0072b2",
    "prediction": "#56b4e9",
    "dflash": "#d55e00",
    "grammar": "#009e73",
}
REGIMES = {"reasoning": "#cc79a7", "prose": "#e69f00", "code": "#56b4e9", "tool_call": "#f0e442"}
UNKNOWN = "#444444"


def timeline_svg(spans: Sequence[Span], title: str) -> str:
    """An SVG document. Across: time. Up: rows of the rounds, coloured by drafter (grey is
    target-only). Below: the regime."""
    seconds = sum(span.seconds for span in spans) or 1.0
    most = max((span.width for span in spans), default=1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
        *_rows_axis(most),
        *_spans(spans, seconds, most),
        *_regimes(spans, seconds),
        *_time_axis(seconds),
        *_legend(spans),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _x(second: float, seconds: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * second / seconds


def _rows_axis(most: int) -> Iterator[str]:
    step = max(1, round(most / 8))
    for rows in range(step, most + 1, step):
        y = TOP + PLOT * (1 - rows / most)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eeeeee"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{rows}</text>'
    middle = TOP + PLOT / 2
    yield (
        f'<text x="16" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 16 {middle})">rows a round</text>'
    )


def _spans(spans: Sequence[Span], seconds: float, most: int) -> Iterator[str]:
    at = 0.0
    for span in spans:
        start, end = _x(at, seconds), _x(at + span.seconds, seconds)
        height = PLOT * span.width / most
        what = span.drafter or "target-only"
        yield (
            f'<rect x="{start:.2f}" y="{TOP + PLOT - height:.1f}" width="{end - start:.2f}" '
            f'height="{height:.1f}" fill="{DRAFTERS.get(span.drafter, UNKNOWN)}">'
            f"<title>{escape(f'{what}: {span.rounds} rounds of {span.width} rows')}, "
            f"{span.tokens} tokens, {1e3 * span.seconds:.0f} ms</title></rect>"
        )
        at += span.seconds


def _regimes(spans: Sequence[Span], seconds: float) -> Iterator[str]:
    at, y = 0.0, TOP + PLOT + 4
    for regime, length in _joined(spans):
        start, end = _x(at, seconds), _x(at + length, seconds)
        yield (
            f'<rect x="{start:.2f}" y="{y}" width="{end - start:.2f}" height="{BAND - 6}" '
            f'fill="{REGIMES.get(regime, UNKNOWN)}"><title>{escape(regime)}</title></rect>'
        )
        # About seven units a letter.
        if end - start > 7 * len(regime) + 8:
            yield (
                f'<text x="{(start + end) / 2:.1f}" y="{y + 15}" text-anchor="middle">'
                f"{escape(regime)}</text>"
            )
        at += length


def _joined(spans: Sequence[Span]) -> list[tuple[str, float]]:
    """(regime, seconds), neighbours of one regime together."""
    joined: list[tuple[str, float]] = []
    for span in spans:
        if joined and joined[-1][0] == span.regime:
            joined[-1] = (span.regime, joined[-1][1] + span.seconds)
        else:
            joined.append((span.regime, span.seconds))
    return joined


def _time_axis(seconds: float) -> Iterator[str]:
    y = TOP + PLOT + BAND + 14
    for tenth in range(0, 11, 2):
        second = seconds * tenth / 10
        # Centred, the last label would reach beyond the picture.
        anchor = "middle" if tenth < 10 else "end"
        yield (
            f'<text x="{_x(second, seconds):.1f}" y="{y}" text-anchor="{anchor}">'
            f"{1e3 * second:.0f} ms</text>"
        )


def _legend(spans: Sequence[Span]) -> Iterator[str]:
    x, y = LEFT, TOP - 14
    for drafter in dict.fromkeys(span.drafter for span in spans):
        name = drafter or "target-only"
        colour = DRAFTERS.get(drafter, UNKNOWN)
        yield f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 18}" y="{y}">{escape(name)}</text>'
        x += 36 + 8 * len(name)
