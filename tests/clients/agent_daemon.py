"""The whole daemon - doors, scheduler, prefix cache, speculative loop, the built-in model's
tokenizer, template and tool-call form - around a model that says what a script tells it to.

The built-in model is too small to plan a change to a file it has not been trained for; what it is
told to say here goes the same way as what it would think of: token by token through the loop, as
drafts and verified rows, and out through the parser of its tool calls.

Run as a program it serves until a signal, in the folders that the environment names.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
from mlx_lm.models.cache import KVCache

from engine import EngineClient, EngineOptions
from engine.engine import Engine, Load
from engine.loading.load import Loaded, load
from sidecar.config import cache_options, load_config
from sidecar.daemon import Daemon

CONTEXT = 1 << 16
MOST_VERIFIED = 32
FILE = "hello.py"
SAID = "Fixed: hello.py says hello now."
_ANSWERED = "<tool_response>"


class ScriptedModel(nn.Module):
    """Chooses what `reply` makes of the text so far. Its cache is mlx-lm's, with the token ids as
    keys, so that prefixes, snapshots and rollback are what they are for any model."""

    def __init__(self, codec: Any, vocabulary: int, reply: Callable[[str], str]) -> None:
        super().__init__()
        self.layers = [nn.Identity()]
        self._codec, self._vocabulary, self._reply = codec, vocabulary, reply
        self._start = codec.encode("<|im_start|>assistant\n", control=True)
        self._end = codec.encode("<|im_end|>", control=True)
        self._replies: dict[tuple[int, ...], list[int]] = {}

    def make_cache(self) -> list[KVCache]:
        return [KVCache()]

    def __call__(self, inputs: mx.array, cache: list[KVCache]) -> mx.array:
        ids = inputs.astype(mx.float32)[:, None, :, None]
        keys, _ = cache[0].update_and_fetch(ids, ids)
        history = [int(token) for token in keys[0, 0, : cache[0].offset, 0].tolist()]
        rows = inputs.shape[1]
        # Of a prompt's rows only the last is asked for.
        first = 0 if rows <= MOST_VERIFIED else rows - 1
        chosen = [0] * first
        chosen += [
            self._next(history[: len(history) - rows + row + 1]) for row in range(first, rows)
        ]
        logits = mx.array(chosen)[:, None] == mx.arange(self._vocabulary)[None, :]
        return logits.astype(mx.float32)[None]

    def _next(self, history: list[int]) -> int:
        """The token behind `history`; 0 where it is not the assistant's turn."""
        begun = _last(history, self._start)
        if begun < 0 or self._end[0] in history[begun:]:
            return 0
        prompt, said = tuple(history[:begun]), history[begun:]
        if prompt not in self._replies:
            text = "<think>\n\n</think>\n\n" + self._reply(self._codec.decode(prompt))
            self._replies[prompt] = [*self._codec.encode(text, control=True), *self._end]
        reply = self._replies[prompt]
        same = len(said) < len(reply) and said == reply[: len(said)]
        return reply[len(said)] if same else self._end[0]


def _last(history: Sequence[int], piece: Sequence[int]) -> int:
    """Behind the last place where `piece` stands, -1 where it does not."""
    for end in range(len(history), len(piece) - 1, -1):
        if list(history[end - len(piece) : end]) == list(piece):
            return end
    return -1


def reply(prompt: str, project: str) -> str:
    """Read the project's file, change it, say so: with the tools that the prompt names. Whoever has
    no tools gets the whole file (aider), or a title."""
    if "Tools: " not in prompt:
        return _whole_file() if "*file listing*" in prompt else "Fix a typo"
    turns = prompt.rpartition("Fix the typo")[2].count(_ANSWERED)
    steps = _steps(prompt.partition("Tools: ")[2].partition("<|im_end|>")[0], f"{project}/{FILE}")
    return steps[turns] if turns < len(steps) else SAID


def _steps(tools: str, path: str) -> list[str]:
    """The calls for the tools that an agent has."""
    offered = set(re.findall(r"(?:^|, )(\w+)\(", tools))
    old, new = 'return "helo"', 'return "hello"'
    if {"Read", "Edit"} <= offered:  # Claude Code
        edit = {"file_path": path, "old_string": old, "new_string": new}
        return [_call("Read", {"file_path": path}), _call("Edit", edit)]
    if {"read_file", "edit"} <= offered:  # Qwen Code
        edit = {"file_path": path, "old_string": old, "new_string": new}
        return [_call("read_file", {"file_path": path}), _call("edit", edit)]
    if "exec_command" in offered:  # Codex
        change = f"sed -i 's/helo/hello/' {path} && cat {path}"
        return [
            _call("exec_command", {"cmd": f"cat {path}"}),
            _call("exec_command", {"cmd": change}),
        ]
    if {"read", "edit"} <= offered and "oldString" in tools:  # OpenCode
        edit = {"filePath": path, "oldString": old, "newString": new}
        return [_call("read", {"filePath": path}), _call("edit", edit)]
    edits = [{"oldText": old, "newText": new}]  # pi
    return [_call("read", {"path": path}), _call("edit", {"path": path, "edits": edits})]


def _call(name: str, arguments: dict[str, Any]) -> str:
    """As the built-in model's template writes a call."""
    parameters = ""
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value)
        parameters += f"<parameter={key}>\n{text}\n</parameter>\n"
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def _whole_file() -> str:
    return f'{FILE}\n```\ndef hello():\n    return "hello"\n```\n'


def scripted(project: str) -> Load:
    """How the engine loads the built-in model's codec with a scripted model."""

    def loaded(options: EngineOptions, progress: Callable[[str, float | None], None]) -> Loaded:
        builtin = load(options, progress)
        info = msgspec.structs.replace(builtin.info, context=CONTEXT)
        model = ScriptedModel(builtin.codec, info.vocab_size, lambda prompt: reply(prompt, project))
        return replace(builtin, model=model, info=info, config={"model_type": "scripted"})

    return loaded


def main(project: str) -> int:
    settings = load_config()
    options = EngineOptions(model="builtin", draft="copy")
    engine = Engine(options, cache=cache_options(settings, os.environ), load=scripted(project))
    daemon = Daemon(settings, EngineClient(engine))
    return asyncio.run(daemon.run(lambda _services, _address: print("ready", flush=True)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
