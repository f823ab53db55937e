"""The race as a picture: a bar for every system, in tokens a second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from xml.sax.saxutils import escape

from sidecar.jobs.race.results import Results, Row

WIDTH, LEFT, RIGHT, TOP = 960, 230, 90, 58
BAR, GAP, HEAD = 14, 5, 34
# Colour-blind safe (Okabe and Ito, "Color Universal Design", 2008).
OURS, THEIRS, WHISKER = "#0072b2", "#e69f00", "#444444"


def chart(results: Results) -> str:
    """An SVG document: decoding by regime, then prompts; the thin line spans the repeats."""
    panels = list(_panels(results))
    height = TOP + sum(HEAD + len(bars) * (BAR + GAP) for _, bars in panels) + 16
    title = "Tokens a second: Pillion and other implementations on the same weights"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="24" font-size="14" font-weight="bold">{escape(title)}</text>',
        *_legend(),
    ]
    y = float(TOP)
    for name, bars in panels:
        parts += _panel(name, bars, y)
        y += HEAD + len(bars) * (BAR + GAP)
    return "\n".join([*parts, "</svg>"]) + "\n"


Bar = tuple[str, float, Sequence[float]]


def _panels(results: Results) -> Iterator[tuple[str, list[Bar]]]:
    """Title and bars, the fastest first."""
    every: tuple[Row, ...] = (*results.rows, *results.builtin_rows)
    for regime in dict.fromkeys(row.regime for row in every):
        bars: dict[str, list[Bar]] = {}
        for row in every:
            if row.regime == regime:
                bars.setdefault(row.system, []).append((row.system, row.decode, row.decode_repeats))
        yield f"decoding: {regime}", _sorted(map(_joined, bars.values()))
    longest = max((row.prompt_tokens for row in results.rows), default=0)
    prompts = [
        (row.system, row.prompt, row.prompt_repeats)
        for row in results.rows
        if row.prompt is not None and row.prompt_tokens == longest
    ]
    if prompts:
        yield f"reading a prompt of {longest} tokens", _sorted(prompts)


def _joined(bars: list[Bar]) -> Bar:
    """Tasks of one regime together."""
    repeats = [speed for _, _, speeds in bars for speed in speeds]
    return bars[0][0], sum(speed for _, speed, _ in bars) / len(bars), repeats


def _sorted(bars: Iterable[Bar]) -> list[Bar]:
    return sorted(bars, key=lambda bar: -bar[1])


def _panel(name: str, bars: Sequence[Bar], top: float) -> Iterator[str]:
    yield f'<text x="16" y="{top + 18}" font-weight="bold">{escape(name)}</text>'
    most = max((speed for _, median, speeds in bars for speed in (median, *speeds)), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / (most or 1.0)
    for index, (system, median, speeds) in enumerate(bars):
        y = top + HEAD - 8 + index * (BAR + GAP)
        middle = y + BAR / 2
        low, high = min(speeds, default=median) * scale, max(speeds, default=median) * scale
        colour = OURS if system.startswith("Pillion") else THEIRS
        yield f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(system)}</text>'
        yield (
            f'<rect x="{LEFT}" y="{y}" width="{median * scale:.1f}" height="{BAR}" fill="{colour}">'
            f"<title>{escape(system)}: {median:.1f} tokens a second</title></rect>"
        )
        yield (
            f'<line x1="{LEFT + low:.1f}" x2="{LEFT + high:.1f}" y1="{middle}" y2="{middle}" '
            f'stroke="{WHISKER}"/>'
        )
        at = LEFT + max(high, median * scale) + 6
        yield f'<text x="{at:.1f}" y="{middle + 4}">{median:.1f}</text>'


def _legend() -> Iterator[str]:
    for x, colour, name in ((16, OURS, "Pillion"), (110, THEIRS, "others")):
        yield f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 18}" y="46">{name}</text>'
