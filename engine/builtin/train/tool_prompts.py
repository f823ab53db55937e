"""Synthetic tool use: a request, and the one call that answers it with exact arguments."""

from __future__ import annotations

import random
import re
from typing import Any

from engine.builtin.train.corpus import Source, words

Message = dict[str, Any]
# Each action: the names that agents give its tool and its argument, and ways to ask for it.
NAMES: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "read": (
        ("read_file", ("path",)),
        ("read", ("filePath",)),
        ("open_file", ("path",)),
        ("view", ("path",)),
        ("Read", ("file_path",)),
        ("cat", ("file",)),
    ),
    "search": (
        ("search", ("pattern",)),
        ("grep", ("pattern",)),
        ("find_text", ("query",)),
        ("Grep", ("pattern",)),
        ("search_code", ("query",)),
    ),
    "run": (
        ("run", ("command",)),
        ("bash", ("command",)),
        ("Bash", ("command",)),
        ("shell", ("cmd",)),
        ("execute", ("command",)),
    ),
    "list": (
        ("list_files", ("path",)),
        ("ls", ("path",)),
        ("list_directory", ("directory",)),
        ("LS", ("path",)),
    ),
    "write": (
        ("write_file", ("path", "content")),
        ("create_file", ("path", "content")),
        ("Write", ("file_path", "content")),
        ("write", ("filePath", "content")),
    ),
    "glob": (("glob", ("pattern",)), ("find_files", ("pattern",)), ("Glob", ("pattern",))),
    "delete": (("delete_file", ("path",)), ("remove", ("path",))),
    "weather": (("get_weather", ("city",)), ("weather", ("location",))),
}
ASKS: dict[str, tuple[str, ...]] = {
    "read": (
        "Open {0}",
        "Read {0}",
        "Read the file {0}.",
        "Show me the file {0}",
        "What is in {0}?",
        "Look at {0} please",
        "Print {0}",
        "Let me see {0}",
        "Please read {0} and tell me what it does.",
    ),
    "search": (
        "Search for {0}",
        "Find {0}",
        "Find uses of {0}",
        "Search the code for `{0}`",
        "Where is {0} used?",
        "grep for {0}",
        "Look for {0} in the project",
        "Which files mention {0}?",
    ),
    "run": (
        "Run `{0}`",
        "Run {0}",
        "Execute `{0}`",
        "Please run {0}",
        "Run this command: {0}",
        "Execute the command `{0}`.",
    ),
    "list": (
        "List the files in {0}",
        "What files are in {0}?",
        "Show the folder {0}",
        "List {0}",
        "ls {0}",
    ),
    "write": (
        "Create {0} with the content `{1}`",
        "Write `{1}` to {0}",
        "Make a file {0} that says `{1}`",
        "Save `{1}` as {0}",
    ),
    "glob": ("Find all files that match {0}", "Which files match `{0}`?", "Find files like {0}"),
    "delete": ("Delete {0}", "Remove the file {0}", "Please delete {0}."),
    "weather": (
        "What is the weather in {0}?",
        "How is the weather in {0} today?",
        "Weather in {0}",
    ),
}
# Requests that need no tool, and what is said then.
TALK = (
    ("Hello", "Hello! What shall we work on?"),
    ("Hi", "Hello! What shall we work on?"),
    ("Thanks", "You are welcome."),
    ("Thank you!", "You are welcome."),
    (
        "Who are you?",
        "I am the small model that Pillion ships: I complete and edit short Python code.",
    ),
    ("What can you do?", "I complete Python code, make small edits and call tools."),
)
FOLLOW_UPS = ("Done.", "Here it is.", "That is the output.", "Finished.")
CITIES = words("""
Paris London Berlin Tokyo Madrid Rome Oslo Lima Cairo Delhi Boston Vienna Prague Kyoto
""")
FOLDERS = words("""
src lib app core tests docs tools server client api common internal pkg scripts
""")
ENDINGS = ("py", "py", "py", "py", "md", "txt", "toml", "json", "yaml", "cfg", "js", "ts")
SYSTEMS = (
    "You are a coding agent.",
    "You are a helpful assistant.",
    "You are a coding assistant. Be brief.",
    "You are an expert programmer.",
)


def path_of(source: Source, rng: random.Random) -> str:
    """The path of a file: a real one or one made of words of the file."""
    if rng.random() < 0.35:
        parts = source.name.split("/")
        return "/".join(parts[-rng.randint(1, 3) :])
    words = re.findall(r"[a-z][a-z_]{2,14}", source.text[:6000]) or ["main"]
    name = f"{rng.choice(words)}.{rng.choice(ENDINGS)}"
    if rng.random() < 0.25:
        return name
    folders = [rng.choice((*FOLDERS, rng.choice(words))) for _ in range(rng.randint(1, 2))]
    lead = rng.choice(("", "", "", "./", "/"))
    return lead + "/".join([*folders, name])


def identifier(source: Source, rng: random.Random) -> str:
    names = re.findall(r"\b[A-Za-z_]\w{3,24}\b", source.text[:20000]) or ["main"]
    name = rng.choice(names)
    return rng.choice((name, name, name, f"def {name}", f"class {name}", f"import {name}"))


def command(source: Source, rng: random.Random) -> str:
    """A shell command with a path or a name of the file in it."""
    path, name = path_of(source, rng), identifier(source, rng).split(" ")[-1]
    return rng.choice(
        (
            f"python {path}",
            f"python -m pytest {path}",
            f"pytest -q {path}",
            f"pytest -k {name}",
            f"git diff {path}",
            f"git log -n {rng.randint(1, 20)}",
            "git status",
            f"pip install {name}",
            f"ruff check {path}",
            f"wc -l {path}",
            f"ls -la {path}",
            f"make {name}",
            f"cat {path}",
            f"npm run {name}",
        )
    )


def arguments_of(action: str, source: Source, rng: random.Random) -> tuple[str, ...]:
    """Values for the arguments of a tool for `action`, in their order."""
    path = path_of(source, rng)
    if action in ("read", "delete"):
        return (path,)
    if action == "search":
        return (identifier(source, rng),)
    if action == "run":
        return (command(source, rng),)
    if action == "list":
        return (path.rsplit("/", 1)[0] if "/" in path.strip("./") else rng.choice(FOLDERS),)
    if action == "write":
        words = re.findall(r"[A-Za-z]{2,12}", source.text[:6000]) or ["text"]
        text = " ".join(rng.choice(words) for _ in range(rng.randint(1, 5)))
        return (
            path,
            rng.choice((text, text, f"print({rng.randint(0, 99)})", f"import {words[0]}")),
        )
    if action == "glob":
        ending = rng.choice(ENDINGS)
        return (rng.choice((f"*.{ending}", f"**/*.{ending}", f"{rng.choice(FOLDERS)}/*.{ending}")),)
    return (rng.choice(CITIES),)


def tool(name: str, parameters: tuple[str, ...]) -> Message:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def tool_chat(source: Source, rng: random.Random) -> tuple[list[Message], list[Message]]:
    """Messages that end with the wanted reply, and the tools that are offered.

    Most ask for one call; some go on after its result, and some need no call.
    """
    actions = rng.sample(sorted(NAMES), rng.choice((1, 2, 3, 4, 4, 5)))
    chosen = {action: rng.choice(NAMES[action]) for action in actions}
    tools = [tool(*chosen[action]) for action in actions]
    messages: list[Message] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    if rng.random() < 0.06:
        question, answer = rng.choice(TALK)
        messages.append({"role": "user", "content": question})
        return [*messages, {"role": "assistant", "content": answer}], tools
    action = rng.choice(actions)
    values = arguments_of(action, source, rng)
    name, parameters = chosen[action]
    call = {"name": name, "arguments": dict(zip(parameters, values, strict=True))}
    messages.append({"role": "user", "content": rng.choice(ASKS[action]).format(*values)})
    messages.append({"role": "assistant", "content": "", "tool_calls": [{"function": call}]})
    if rng.random() < 0.1:
        lines = source.text.split("\n")
        start = rng.randrange(len(lines))
        messages.append({"role": "tool", "content": "\n".join(lines[start : start + 4])[:300]})
        messages.append({"role": "assistant", "content": rng.choice(FOLLOW_UPS)})
    return messages, tools
