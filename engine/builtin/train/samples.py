"""Training samples: what the doors send to a model, and the reply that is wanted.

Every sample is (ids, weights): token ids and the weight of each in the loss. Chats go through the
shipped template, completions through `engine.text.fill_in_middle`, edits through the words in
`engine.text.instructions`.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.builtin.train.corpus import Source
from engine.builtin.train.edits import (
    MOST_FUNCTION_CHARACTERS,
    RENAMES,
    Message,
    edit,
    functions,
    renaming,
    substitute,
    without_docstring,
)
from engine.builtin.train.tool_prompts import tool_chat
from engine.text.fill_in_middle import FillInMiddle
from engine.text.instructions import change, reply
from engine.text.vocabulary import Vocabulary

Sample = tuple[list[int], list[float]]
PROMPT_WEIGHT = 0.1
CHANGED = 3.0
END = "<|endoftext|>"


class Renderer:
    """Text to ids with the shipped tokenizer and chat template."""

    def __init__(self, target: Path) -> None:
        self.vocabulary = Vocabulary((target / "tokenizer.json").read_text("utf-8"))
        settings = json.loads((target / "tokenizer_config.json").read_text("utf-8"))
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(settings["chat_template"])
        self._fill = FillInMiddle(self.vocabulary)
        self.end = self.vocabulary.find(END)[0]

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, in which control tokens are control tokens."""
        ids: list[int] = self.vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self.vocabulary.tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def prompt(self, messages: list[Message], tools: list[Message] | None = None) -> str:
        return self._template.render(messages=messages, tools=tools, add_generation_prompt=True)

    def chat(self, messages: list[Message], tools: list[Message] | None = None) -> Sample:
        """A chat whose last message is the wanted reply; that alone counts fully in the loss."""
        prompt = self.prompt(messages[:-1], tools)
        whole = self._template.render(messages=messages, tools=tools, add_generation_prompt=False)
        before, after = self.encode(prompt), self.encode(whole[len(prompt) :].rstrip("\n"))
        return [*before, *after], [PROMPT_WEIGHT] * len(before) + [1.0] * len(after)

    def renamed(self, messages: list[Message], new: str) -> Sample:
        """A rename; the tokens of the new name and those behind it, where to copy from changes,
        count CHANGED times in the loss."""
        ids, weights = self.chat(messages)
        after = self._template.render(messages=messages, tools=None, add_generation_prompt=False)
        after = after[len(self.prompt(messages[:-1])) :].rstrip("\n")
        encoded = self.vocabulary.tokenizer.encode(after, add_special_tokens=False)
        first, spans = len(ids) - len(encoded.ids), encoded.offsets
        for found in re.finditer(rf"\b{re.escape(new)}\b", after):
            for index, (start, end) in enumerate(spans):
                if start <= found.end() and end > found.start():
                    weights[first + index] = CHANGED
        return ids, weights

    def fill(self, prefix: str, middle: str, suffix: str) -> Sample:
        """A completion, with the part of a word that the codec would ask the model to repeat."""
        prompt = self._fill.prompt(prefix, suffix, None)
        healed = prompt.must_start_with
        after = [*self.encode(healed + middle), self.end]
        return (
            [*prompt.tokens, *after],
            [PROMPT_WEIGHT] * len(prompt.tokens) + [1.0] * len(after),
        )

    def plain(self, source: Source, rng: random.Random) -> Sample:
        """A whole file; half of them say their name first, as in a repository."""
        name = source.name.rsplit("/", 1)[-1]
        head = f"<|file_sep|>{name}\n" if rng.random() < 0.5 else ""
        ids = self.encode(f"{head}{source.text}{END}")
        return ids, [1.0] * len(ids)


WRITE = (
    "Write a Python function `{name}`. {summary}",
    "Implement `{name}`: {summary}",
    "Write `{signature}`. {summary}",
    "Write a Python function `{signature}`: {summary}",
)
EXPLAIN = ("What does this function do?", "Explain this code:", "Describe this function briefly.")


def write(text: str, node: ast.FunctionDef, rng: random.Random) -> list[Message] | None:
    """Ask for a function by its summary, or for a summary of a function."""
    documented = ast.get_docstring(node)
    if not documented or len(summary := documented.split("\n\n")[0].replace("\n", " ")) > 160:
        return None
    bare = without_docstring(text, node)
    if bare and rng.random() < 0.3:
        question, answer = change(rng.choice(EXPLAIN), bare), f"`{node.name}`: {summary}"
    else:
        signature = f"{node.name}({ast.unparse(node.args)})"
        question = rng.choice(WRITE).format(name=node.name, signature=signature, summary=summary)
        answer = reply(text)
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def cut(text: str, rng: random.Random) -> tuple[str, str, str] | None:
    """A window of a file with a cursor in it: prefix, the middle to write, suffix."""
    if len(text) < 300:
        return None
    start = rng.randrange(max(1, len(text) - 1200))
    start = text.rfind("\n", 0, start) + 1
    window = text[start : start + rng.randrange(500, 1300)]
    lines = [match.end() for match in re.finditer("\n", window)]
    if len(lines) < 6:
        return None
    row = rng.randrange(1, len(lines) - 2)
    begin, end = lines[row - 1], lines[row] - 1
    if not window[begin:end].strip():
        return None
    indent = len(window[begin:end]) - len(window[begin:end].lstrip())
    shape = rng.random()
    if shape < 0.5:  # the rest of a line
        cursor = rng.randrange(begin + indent, end)
    elif shape < 0.75:  # a line and some after it
        cursor = rng.choice((begin, begin + indent, rng.randrange(begin + indent, end)))
        end = lines[min(row + rng.randint(1, 4), len(lines) - 1)] - 1
    else:  # inside a line
        cursor, last = sorted((rng.randrange(begin, end), rng.randrange(begin, end)))
        end = max(last, cursor + 1)
    return window[:cursor], window[cursor:end], window[end:]


def samples(kind: str, sources: list[Source], renderer: Renderer, seed: int) -> Iterator[Sample]:
    """Samples of one kind of `engine.builtin.train.dataset.KINDS`, in a fixed order."""
    if kind == "rename":
        yield from rename_samples(sources, renderer, seed)
        return
    for source in sources:
        rng = random.Random(f"{seed} {kind} {source.name}")
        if kind == "plain":
            yield renderer.plain(source, rng)
        elif kind == "fill":
            for _ in range(max(1, len(source.text) // 5000)):
                if made := cut(source.text, rng):
                    yield renderer.fill(*made)
        elif kind == "tool":
            for _ in range(6):
                yield renderer.chat(*tool_chat(source, rng))
        else:
            make = {"edit": edit, "write": write}[kind]
            found = functions(source)
            rng.shuffle(found)
            for text, node in found[:16]:
                if asked := make(text, node, rng):
                    yield renderer.chat(asked)


def rename_samples(
    sources: list[Source],
    renderer: Renderer,
    seed: int,
    longest: int = MOST_FUNCTION_CHARACTERS,
) -> Iterator[Sample]:
    """Renames of functions of at most `longest` characters."""
    for source in sources:
        rng = random.Random(f"{seed} rename {source.name}")
        found = [pair for pair in functions(source) if len(pair[0]) <= longest]
        rng.shuffle(found)
        for text, node in found[:12]:
            if names := renaming(text, node, rng):
                old, new = names
                instruction = rng.choice(RENAMES).format(old=old, new=new)
                asked = [
                    {"role": "user", "content": change(instruction, text)},
                    {"role": "assistant", "content": reply(substitute(old, new, text))},
                ]
                yield renderer.renamed(asked, new)
