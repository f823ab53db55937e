"""Write the model card, its figures and the checksums beside the shipped files."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

SHIPPED = ("target", "dflash2", "dflash")
SCORES = {
    "tool": "tool calls: the right tool",
    "tool_and_arguments": "tool calls: the right tool with exact arguments",
    "rename_short": "renames in functions of up to 200 characters, exact",
    "rename": "renames in functions of up to 400 characters, exact",
    "edit_short": "other small edits, up to 200 characters, exact",
    "edit": "other small edits, up to 400 characters, exact",
    "fill_line": "fill in the middle: the rest of a line, exact",
    "fill_whole": "fill in the middle: also stops there",
}
REGIMES = (
    "no_loops", "code", "fill", "rename", "edit", "tool", "chat", "all", "own_noise",
    "own_noise_code",
)  # fmt: skip
SAMPLED = {"greedy": "greedy", "t07": "T 0.7, top-p 0.95", "t10": "T 1.0"}
TEMPLATE = Path(__file__).with_name("card.md")


def quality(columns: dict[str, dict[str, Any]]) -> list[str]:
    """A table of what each target gets right."""
    rows = [["held out", *columns], ["---"] * (1 + len(columns))]
    for name, key in (("packages", "held_out_packages"), ("standard library", "held_out_stdlib")):
        texts = [column[key] for column in columns.values()]
        rows.append([f"{name}: nats a token", *(f"{text['nats_a_token']:.2f}" for text in texts)])
        shares = [f"{text['next_token_right']:.1%}" for text in texts]
        rows.append([f"{name}: next token right", *shares])
    for key, name in SCORES.items():
        found = [c["scores"][key] for c in columns.values()]
        rows.append([name, *(f"{score['right']} of {score['of']}" for score in found)])
    return [f"| {' | '.join(row)} |" for row in rows]


def acceptance(columns: dict[str, dict[str, Any]]) -> list[str]:
    """A table of tokens a round by drafter, sampling and regime."""
    found = [
        (f"{column}, {drafter}, {SAMPLED[sampling]}", counts)
        for column, report in columns.items()
        for drafter, by_sampling in report["tokens_a_round"].items()
        for sampling, counts in by_sampling.items()
    ]
    head = [name.replace("_", " ") for name in REGIMES]
    rows = [["tokens a round", *head], ["---"] * (1 + len(head))]
    for name, counts in found:
        cells = [counts.get(regime) for regime in REGIMES]
        rows.append([name, *("" if cell is None else f"{cell:.2f}" for cell in cells)])
    return [f"| {' | '.join(row)} |" for row in rows]


def render(card: dict[str, Any]) -> str:
    """MODEL_CARD.md of the content of model_card.json."""
    columns = card["measured"]
    loops = ", ".join(
        f"{name}: {counts['looping_replies']} of {counts['replies']} replies, {SAMPLED[sampling]}"
        for name, report in columns.items()
        for sampling, counts in report["tokens_a_round"]["copy"].items()
    )
    return TEMPLATE.read_text("utf-8").format(
        quality="\n".join(quality(columns)) + "\n",
        acceptance="\n".join(acceptance(columns)) + "\n",
        loops=loops,
        training="\n\n".join(card["training"]),
    )


def checksums(folder: Path) -> str:
    """Lines for SHA256SUMS of every shipped file in `folder`."""
    files = sorted(path for name in SHIPPED for path in (folder / name).glob("*"))
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n"
        for path in files
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--report", type=Path, help="of the new pair, by evaluate.py")
    options.add_argument("--bootstrap", type=Path, help="of the pair to compare with")
    options.add_argument("--training", type=Path, help="a text about how it was trained")
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    file = given.out / "model_card.json"
    card: dict[str, Any] = {"training": [], "measured": {}}
    if file.exists():
        card = json.loads(file.read_text("utf-8"))
    for name, report in (("built-in", given.report), ("bootstrap", given.bootstrap)):
        if report is not None:
            card["measured"][name] = json.loads(report.read_text("utf-8"))
    if given.training is not None:
        card["training"] = given.training.read_text("utf-8").strip().split("\n\n")
    file.write_text(json.dumps(card, indent=1) + "\n", "utf-8")
    (given.out / "MODEL_CARD.md").write_text(render(card), "utf-8")
    (given.out / "SHA256SUMS").write_text(checksums(given.out), "utf-8")


if __name__ == "__main__":
    main()
