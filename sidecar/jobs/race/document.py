"""The results as a Markdown document, the rows that we lose included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from sidecar.jobs.race.results import Against, Results, Row
from sidecar.jobs.race.roster import ENVIRONMENTS

COMMAND = "pillion bench peers --json out.json --report docs/BENCHMARKS.md"

ASKED = {
    "target_over_mlx_lm": "target-only decoding, over mlx_lm",
    "prefill_over_mlx_lm": "reading prompts, over mlx_lm",
    "target_over_llamacpp": "target-only decoding, over llama.cpp without drafts",
    "prefill_over_llamacpp": "reading prompts, over llama.cpp",
    "rewrite_portfolio_over_llamacpp_best": "a rewrite, over llama.cpp with its best drafts",
    "rewrite_portfolio_over_target_only": "a rewrite, over our own target-only decoding",
    "builtin_code_dflash_over_target_only": "built-in pair on held-out code, DFlash over none",
}


class Machine(Struct, frozen=True, kw_only=True):
    """Of the report: what `sidecar.cli.report` found."""

    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    date: str


def document(results: Results, where: Machine, picture: str | None) -> str:
    """Markdown. picture: the chart's file name, as a link from the document."""
    parts = [
        _head(results, where),
        f"![tokens a second]({picture})\n" if picture else "",
        _figures(results),
        _decoding("Decoding SmolLM2-135M, 4-bit", results.rows),
        _prompts(results.rows),
        _decoding("Decoding the built-in pair", results.builtin_rows, results.held_out_code),
        _first_tokens(results),
        _doors(results),
        _exactness((*results.rows, *results.builtin_rows)),
        _lost(results.lost, bool(results.rows)),
        _absent(results.absent),
        _kernels(results),
        _memory(results.memory),
        _peers(results),
    ]
    return "\n".join(part for part in parts if part)


def _head(results: Results, where: Machine) -> str:
    machine = where.machine
    settings = results.settings
    gib = machine.get("memory_bytes", 0) / 2**30
    versions = ", ".join(f"{name} {version}" for name, version in where.versions.items())
    unfinished = "" if results.complete else "**The run did not get to its end.**\n"
    return f"""\
# Benchmarks

Written by `{COMMAND}`; do not edit. The same numbers, and every repeat, are in the JSON file.

{unfinished}
- machine: {machine.get("processor", "?")}, {machine.get("cores", "?")} cores, {gib:.0f} GiB, \
{machine.get("system", "?")}
- versions: {versions}
- date: {where.date}; {settings.get("seconds", 0)} seconds of measuring

But for the built-in pair, all run SmolLM2-135M-Instruct (4-bit, groups of 32): llama.cpp the Q4_1
GGUF, those on MLX the same packed weights with 32-bit scales, which on a CPU is their fastest form.
Each computes on one thread and decodes greedily, at most {settings.get("max_tokens", "?")} tokens,
twice as many of a rewrite. Repeats are interleaved, at most {settings.get("repeat", "?")}; a system
that takes long repeats as often as the time allows. Numbers are medians, with the lowest and the
highest repeat; ratios are geometric means over repeats that ran side by side, with 95 % intervals.
Servers are measured by what their client sees, but llama.cpp by its own clock, which leaves HTTP
out.
"""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _figures(results: Results) -> str:
    def rows() -> Iterator[Sequence[str]]:
        for name, what in ASKED.items():
            one = results.comparisons.get(name)
            if one is None:
                yield what, f"`{name}`", "not measured", "", ""
                continue
            r = one.ratio
            yield what, f"`{name}`", f"{r.mean:.2f}", f"{r.low:.2f}-{r.high:.2f}", str(one.pairs)
        for rows_ in (4, 8):
            cost = results.verify.over_one(rows_) if results.verify else None
            number = "not measured" if cost is None else f"{cost:.2f}"
            count = results.verify.rounds.get(rows_, 0) if results.verify else 0
            what = f"a round of {rows_} rows, over one of 1"
            yield what, f"`verify_t{rows_}_over_t1`", number, "", str(count)
        worst = results.figures.get("door_overhead_share")
        number = "not measured" if worst is None else f"{worst:.1%}"
        yield "speed lost at the worse door", "`door_overhead_share`", number, "", ""

    note = ""
    if results.doubtful:
        note = (
            f"\nNot all of our kernels were used in {', '.join(results.doubtful)}: where stock MLX "
            "won the race at load, which one busy moment can decide, rows are slower than they "
            "could be.\n"
        )
    head = ("Pillion's speed", "figure", "ratio", "95 %", "pairs")
    return "## Ratios\n\n" + _table(head, rows()) + note


def _spread(median: float, repeats: Sequence[float]) -> str:
    if len(repeats) < 2:
        return f"{median:.1f}"
    return f"{median:.1f} ({min(repeats):.1f}-{max(repeats):.1f})"


def _decoding(title: str, rows: Sequence[Row], source: str = "") -> str:
    if not rows:
        return ""
    tasks = list(dict.fromkeys(row.task for row in rows))
    regimes = list(dict.fromkeys(row.regime for row in rows))
    systems = list(dict.fromkeys(row.system for row in rows))
    by_key = {(row.system, row.task): row for row in rows}
    if len(tasks) == len(regimes):
        head = ("system", *regimes)
        cells = [
            [
                system,
                *(
                    _spread(row.decode, row.decode_repeats) if row else ""
                    for row in (by_key.get((system, task)) for task in tasks)
                ),
            ]
            for system in systems
        ]
    else:
        head = ("system", "median of all prompts", "lowest", "highest")
        cells = []
        for system in systems:
            speeds = sorted(row.decode for row in rows if row.system == system)
            middle = speeds[len(speeds) // 2]
            cells.append([system, *(f"{v:.1f}" for v in (middle, speeds[0], speeds[-1]))])
    text = f"## {title}\n\nTokens a second behind the first one.\n"
    if source:
        text += f"Held-out code: begun functions of {source}.\n"
    return f"{text}\n{_table(head, cells)}"


def _prompts(rows: Sequence[Row]) -> str:
    longest = max((row.prompt_tokens for row in rows), default=0)
    cells = [
        (row.system, str(row.prompt_tokens), _spread(row.prompt, row.prompt_repeats))
        for row in rows
        if row.prompt is not None and row.prompt_tokens >= 0.9 * longest
    ]
    if not cells:
        return ""
    return "## Reading a prompt\n\n" + _table(("system", "tokens", "tokens a second"), cells)


def _first_tokens(results: Results) -> str:
    if not results.first_token:
        return ""
    cells = [
        (
            one.name,
            f"{one.prompt_tokens[0]} / {one.prompt_tokens[1]}",
            *(f"{s:.2f}" for s in (one.cold, one.second_turn, one.restart, one.started)),
        )
        for one in results.first_token
    ]
    head = ("server", "prompt tokens", "cold", "turn 2", "turn 2 after a restart", "restart itself")
    return (
        "## Seconds to the first token\n\nOf one conversation: a prompt that was never seen, an "
        "agent's next turn, and that\nturn again after the server was started again.\n\n"
        + _table(head, cells)
    )


def _doors(results: Results) -> str:
    if not results.doors:
        return ""
    cells = [
        (
            one.door,
            f"{one.in_process:.1f}",
            f"{one.through_door:.1f}",
            f"{one.share:.1%} ({one.low:.1%} to {one.high:.1%})",
        )
        for one in results.doors
    ]
    return (
        "## What the doors cost\n\nThe same replies of the same engine, in tokens a second; all "
        "that the door does counts as decoding.\n\n"
        + _table(("door", "in the process", "through the door", "lost"), cells)
    )


def _exactness(rows: Sequence[Row]) -> str:
    cells = []
    for system in dict.fromkeys(row.system for row in rows if row.exact is not None):
        mine = [row for row in rows if row.system == system and row.exact is not None]
        wrong = [row.task for row in mine if not row.exact]
        drafted = sum(row.drafted or 0 for row in mine)
        accepted = sum(row.accepted or 0 for row in mine)
        said = f"{accepted} of {drafted}" if drafted else "none, or not told"
        equal = "yes" if not wrong else f"NO: {', '.join(wrong)}"
        cells.append((system, equal, said))
    if not cells:
        return ""
    return "## Is speculative output what the same implementation decodes serially?\n\n" + _table(
        ("system", "equal", "drafts accepted"), cells
    )


def _lost(lost: Sequence[Against], measured: bool) -> str:
    if not lost and not measured:
        return ""
    if not lost:
        return (
            "## Where others are faster\n\nIn decoding and in reading prompts nowhere in this run. "
            "What starting takes, and memory, is in the tables above and below.\n"
        )
    cells = [
        (
            one.theirs,
            one.what,
            f"{one.ratio.mean:.2f} ({one.ratio.low:.2f}-{one.ratio.high:.2f})",
        )
        for one in lost
    ]
    return (
        "## Where others are faster\n\nPillion, drafting while that pays, over each:\n\n"
        + _table(("faster", "at", "ratio"), cells)
    )


def _absent(absent: Mapping[str, str]) -> str:
    if not absent:
        return ""
    return "## Not measured, or not to the end\n\n" + _table(
        ("system", "why"), [(name, " ".join(why.split())) for name, why in absent.items()]
    )


def _kernels(results: Results) -> str:
    cells = [(name, said) for name, said in results.kernels.items()]
    return "## What computed our models\n\n" + _table(("model", "kernels"), cells) if cells else ""


def _memory(memory: Mapping[str, int]) -> str:
    cells = [(name, f"{peak / 2**20:.0f}") for name, peak in memory.items()]
    return (
        "## Peak memory of the process, MiB\n\n" + _table(("system", "MiB"), cells) if cells else ""
    )


def _peers(results: Results) -> str:
    cells = []
    for name, versions in results.peers.items():
        pinned = ENVIRONMENTS[name]
        wanted = [
            line.partition("==")[0].partition("[")[0]
            for line in (*pinned.alone, *pinned.requirements)
            if "==" in line
        ]
        found = {key.lower().replace("_", "-"): value for key, value in versions.items()}
        shown = dict.fromkeys(f"{key} {found[key]}" for key in wanted if key in found)
        cells.append((name, ", ".join(shown)))
    if not cells:
        return ""
    return "## Versions of the other implementations\n\n" + _table(("peer", "versions"), cells)
