"""What the built-in model is trained on: fixed, held out, and in the shape that the doors send."""

from __future__ import annotations

import ast
import random
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from engine.builtin import TARGET
from engine.builtin.train.corpus import Source, collect, licence, stdlib_is_held_out
from engine.builtin.train.dataset import (
    KINDS,
    LENGTH,
    LONGEST_RENAMED,
    Reader,
    Schedule,
    pack,
    rows_of,
)
from engine.builtin.train.edits import EDITS, functions, rename
from engine.builtin.train.samples import (
    CHANGED,
    PROMPT_WEIGHT,
    Renderer,
    cut,
    rename_samples,
    samples,
)
from engine.builtin.train.tool_prompts import tool_chat
from engine.text.codec import TextCodec
from engine.text.instructions import change, changed_code


def module(name: str, functions_in_it: int = 6) -> str:
    """A plausible file; two of different names share no run of lines."""
    return "\n\n".join(
        f'def {name}_{i}(first_{name}, {name}_count={i}):\n    """Say {name} number {i}."""\n'
        f"    total_{name} = first_{name} + {name}_count\n"
        f"    if total_{name} > {i}:\n        print('{name} value', total_{name})\n"
        f"    return total_{name}"
        for i in range(functions_in_it)
    )


def make_wheel(folder: Path, requirement: str, files: dict[str, str]) -> None:
    name, version = requirement.split("==")
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        metadata = f"Name: {name}\nVersion: {version}\nLicense-Expression: MIT\n"
        archive.writestr(f"{name}-{version}.dist-info/METADATA", metadata)


@pytest.fixture
def source() -> Source:
    return Source("pkg/thing.py", module("thing"))


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(TARGET)


def test_held_out_text_is_not_trained_on(tmp_path: Path) -> None:
    kept, copied = module("kept"), module("secret") + "\n# a later edition\n"
    make_wheel(tmp_path, "held==1", {"held/a.py": module("secret")})
    files = {"open/a.py": kept, "open/copy.py": copied, "open/_vendor/held/b.py": module("other")}
    make_wheel(tmp_path, "open==2", files)
    names = [f"lib{i}.py" for i in range(200)]
    library = [Source(name, module(name.removesuffix(".py"))) for name in names]
    corpus = collect(tmp_path, ["open==2"], ["held==1"], library)
    assert [source.text for source in corpus.held_out_packages] == [module("secret")]
    held = {source.name for source in corpus.held_out_stdlib}
    assert held == {name for name in names if stdlib_is_held_out(name)}
    assert 2 <= len(held) <= 20
    trained = {source.name for source in corpus.train}
    assert "open/a.py" in trained
    assert not trained & {"open/copy.py", "open/_vendor/held/b.py", *held}
    again = collect(tmp_path, ["open==2"], ["held==1"], library)
    assert again == corpus


def test_a_wheel_says_its_licence(tmp_path: Path) -> None:
    make_wheel(tmp_path, "open==2", {})
    assert licence(tmp_path / "open-2-py3-none-any.whl") == "MIT"


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_the_same_every_time(kind: str, source: Source, renderer: Renderer) -> None:
    first = list(samples(kind, [source], renderer, 1))
    assert first
    assert first == list(samples(kind, [source], renderer, 1))
    assert all(len(ids) == len(weights) for ids, weights in first)


def test_rows_hold_whole_samples() -> None:
    found = [([i] * length, [1.0] * length) for i, length in enumerate((300, 400, 100, 113, 600))]
    rows, tenths = pack(found, 10, end=9)
    assert rows.shape[1] == LENGTH
    for i, length in enumerate((300, 400, 100, 113)):
        assert np.count_nonzero((rows == i).any(1)) == 1
        assert np.count_nonzero(rows == i) == length
    assert not (rows == 4).any()
    assert not tenths[rows == 9].any()


def test_a_resumed_run_reads_what_an_unbroken_one_reads(tmp_path: Path) -> None:
    for number, kind in enumerate(KINDS):
        rows = np.arange(7, dtype=np.uint16)[:, None].repeat(LENGTH, 1) + 100 * number
        np.savez(tmp_path / f"{kind}.npz", rows=rows, weights=np.full_like(rows, 10, np.uint8))
    unbroken = Reader(tmp_path, Schedule(40))
    batches = [unbroken.batch()[0] for _ in range(40)]
    resumed = Reader(tmp_path, Schedule(40))
    resumed.skip_to(25)
    for batch in batches[25:]:
        assert np.array_equal(resumed.batch()[0], batch)
    assert len({batch.tobytes() for batch in batches}) > 30


def test_a_completion_sample_begins_as_the_codec_asks(source: Source, renderer: Renderer) -> None:
    codec, rng = TextCodec(TARGET), random.Random(3)
    for _ in range(20):
        made = cut(source.text, rng)
        if made is None:
            continue
        prefix, middle, suffix = made
        prompt = codec.fill_in_middle(prefix, suffix)
        ids, weights = renderer.fill(prefix, middle, suffix)
        assert tuple(ids[: len(prompt.tokens)]) == prompt.tokens
        wanted = f"{prompt.must_start_with}{middle}<|endoftext|>"
        assert renderer.decode(ids[len(prompt.tokens) :]) == wanted
        assert set(weights[: len(prompt.tokens)]) == {PROMPT_WEIGHT}


def test_a_chat_sample_begins_as_the_codec_asks(source: Source, renderer: Renderer) -> None:
    codec, rng = TextCodec(TARGET), random.Random(4)
    for _ in range(20):
        messages, tools = tool_chat(source, rng)
        prompt = codec.chat(messages[:-1], tools=tools)
        ids, weights = renderer.chat(messages, tools)
        assert tuple(ids[: len(prompt.tokens)]) == prompt.tokens
        assert renderer.decode(ids[-1:]) == "<|im_end|>"
        assert set(weights[len(prompt.tokens) :]) == {1.0}


def test_a_rename_renames(source: Source) -> None:
    rng = random.Random(5)
    for text, node in functions(source):
        made = rename(text, node, rng)
        assert made is not None
        instruction, before, after = made
        assert before == text != after
        gone = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {node.name}
        gone |= {argument.arg for argument in node.args.args}
        (old,) = {
            name for name in gone if f"`{name}`" in instruction or f" {name} " in f" {instruction} "
        }
        assert not re.search(rf"\b{old}\b", after)
        assert len(ast.dump(ast.parse(after)).split("'")) == len(
            ast.dump(ast.parse(before)).split("'")
        )


def test_a_new_name_weighs_more_than_what_is_copied(source: Source, renderer: Renderer) -> None:
    found = list(rename_samples([source], renderer, 1))
    assert len(found) >= 5
    for ids, weights in found:
        reply_begins = weights.index(1.0)
        assert set(weights[:reply_begins]) == {PROMPT_WEIGHT}
        text, changed = renderer.decode(ids), [w == CHANGED for w in weights]
        asked = text[: text.index("```")]
        heavy = renderer.decode([i for i, more in zip(ids, changed, strict=True) if more])
        names = re.findall(r"\w+", asked)
        assert any(name in heavy for name in names if name in text[len(asked) :])
        assert 0 < sum(changed) < len(ids) - reply_begins


def test_renames_begin_with_the_shortest_functions(renderer: Renderer) -> None:
    long = "\n".join(f"    value_{i} = {i} + shared_count" for i in range(14))
    texts = [
        f"def short_{i}(count_{i}):\n    count_{i} += {i}\n    return count_{i}\n\n\n"
        f"def long_{i}(shared_count):\n{long}\n    return shared_count\n"
        for i in range(40)
    ]
    sources = [Source(f"{i}.py", text) for i, text in enumerate(texts)]
    rows, _ = rows_of("rename", sources, renderer, 1, 4 * len(LONGEST_RENAMED))
    assert len(rows) == 4 * len(LONGEST_RENAMED)
    assert ["value_" in renderer.decode(row.tolist()) for row in rows[:4]] == [False] * 4
    assert any("value_" in renderer.decode(row.tolist()) for row in rows[-4:])


def test_edits_leave_python(source: Source) -> None:
    rng, made = random.Random(6), 0
    for text, node in functions(source):
        for edit, _ in EDITS:
            result = edit(text, node, rng)
            if result:
                ast.parse(result[2])
                made += 1
    assert made >= 30


def test_a_change_survives_its_fences() -> None:
    code = "def f():\n    return 1\n"
    assert changed_code(change("Do it.", code)) == code.rstrip("\n")
    assert changed_code("no code") is None
