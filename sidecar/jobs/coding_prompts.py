"""Prompts of the regimes a coding sidecar meets, for `pillion verify` and `pillion bench`.

Each names what to vary (``@name@``) near its end, so that variants share a long prefix, as a real
session's requests do. Short on purpose: what is tested is decoding, not reading.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from engine import EngineClient, Grammar, RenderedPrompt, ReplyFormat, RequestError

NAMES = ("amount", "result", "item_value", "entries", "node", "payload", "buffer", "row_sum")

# Characters of the parts of a mixed reply.
MOST_CODE, MOST_CALL = 360, 160


class CodingPrompt(Struct, frozen=True, kw_only=True):
    """A chat message (`user`), raw text to continue (`text`), or a hole in code (`text` before it
    and `suffix` after it).

    mixed: the reply is held to the parts that an agent's often has (`mixed`).
    """

    name: str
    regime: str
    user: str = ""
    text: str = ""
    suffix: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    mixed: bool = False

    def variant(self, number: int) -> CodingPrompt:
        """This prompt with the `number`-th name filled in."""
        name = NAMES[number % len(NAMES)]
        # Numbers beyond the list of names still differ.
        name += f"_{number // len(NAMES)}" if number >= len(NAMES) else ""
        return msgspec.structs.replace(
            self,
            user=self.user.replace("@name@", name),
            text=self.text.replace("@name@", name),
        )

    async def render(self, client: EngineClient) -> RenderedPrompt:
        """Token ids in the loaded model's own format."""
        if self.user:
            messages = [{"role": "user", "content": self.user}]
            if self.mixed:
                return await self._held(client, messages)
            return await client.chat(messages, tools=list(self.tools) or None)
        if self.suffix is not None:
            return await client.fill_in_middle(self.text, self.suffix)
        return RenderedPrompt(tokens=tuple(await client.encode(self.text)))

    async def _held(self, client: EngineClient, messages: list[dict[str, Any]]) -> RenderedPrompt:
        tools = list(self.tools)
        try:
            prompt = await client.chat(messages, tools=tools, reply=ReplyFormat(calls=True))
        except RequestError:
            # A model that knows no tools; what it replies is as good a mixture as it has.
            return await client.chat(messages)
        assert prompt.grammar is not None
        grammar = Grammar(text=mixed(prompt.grammar.text))
        return msgspec.structs.replace(prompt, grammar=grammar)


def mixed(calls: str) -> str:
    """A grammar (llguidance's Lark) of what an agent's reply often looks like: a sentence, a block
    of code, a tool call, and both again. It holds the reply to these parts, not to what is in them.

    calls: the grammar of tool calls in the model's form; of it the markers are taken, where they
    are control tokens.
    """
    opening, *_, closing = re.findall(r"<\[[0-9]+\]>", calls) or ("", "")
    return f"""\
start: part {opening} "\\n" CALL {closing} part
part: SENTENCE "```python\\n" block
SENTENCE: /\\n?[A-Z][^`<\\n]{{20,120}}[.:]/ "\\n\\n"
block[lazy]: BLOCK
BLOCK: /(?s:.{{1,{MOST_CODE}}})/ "\\n```\\n"
CALL: /(?s:.{{1,{MOST_CALL}}})/
"""


def _tool(name: str, description: str, argument: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = (
    _tool("read_file", "Read a file of the project.", "path"),
    _tool("run", "Run a shell command.", "command"),
    _tool("search", "Search the project for a pattern.", "pattern"),
)

INVOICE = '''\
def invoice_total(lines, tax_rate):
    """Sum the lines of an invoice and add tax."""
    total = 0.0
    for line in lines:
        total += line.quantity * line.price
    if total < 0:
        raise ValueError(f"total is negative: {total}")
    return total * (1 + tax_rate)
'''

QUEUE = """\
class JobQueue:
    def __init__(self, limit):
        self.limit = limit
        self.jobs = []

    def push(self, job):
        if len(self.jobs) >= self.limit:
            raise OverflowError("the queue is full")
        self.jobs.append(job)

    def pop(self):
        return self.jobs.pop(0)
"""

SETTINGS = """\
import json


def load_settings(path):
    with open(path, encoding="utf-8") as stream:
        data = json.load(stream)
    data.setdefault("debug", False)
    data.setdefault("port", 8080)
    return data


def save_settings(path, data):
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(data, stream, indent=2)
"""


def _fenced(code: str) -> str:
    return f"```python\n{code}```\n"


def _begun(code: str, old: str, lines: int) -> str:
    """A file, and the first lines of its copy with `old` renamed: the rest is copying."""
    renamed = code.replace(old, "@name@").splitlines(keepends=True)
    return f"# before.py\n{code}\n# after.py: {old} is now @name@\n" + "".join(renamed[:lines])


PROMPTS = (
    CodingPrompt(
        name="median",
        regime="new code",
        user="Write a Python function `@name@` that returns the median of a list.",
    ),
    CodingPrompt(
        name="parse_csv",
        regime="new code",
        user="Write a Python class that reads a CSV file and yields dicts. Call it `@name@`.",
    ),
    CodingPrompt(
        name="retry",
        regime="new code",
        text='import time\n\n\ndef retry(call, attempts=3):\n    """Call until it works."""\n'
        "    @name@ = None\n",
    ),
    CodingPrompt(
        name="rename_total",
        regime="rewrite",
        user=_fenced(INVOICE) + "Rename `total` to `@name@` in this code.",
    ),
    CodingPrompt(
        name="rename_jobs",
        regime="rewrite",
        user=_fenced(QUEUE) + "Rename `jobs` to `@name@` in this code.",
    ),
    CodingPrompt(
        name="rename_data",
        regime="rewrite",
        user=_fenced(SETTINGS) + "Rename `data` to `@name@` in this code.",
    ),
    CodingPrompt(name="begun_total", regime="rewrite", text=_begun(INVOICE, "total", 4)),
    CodingPrompt(name="begun_jobs", regime="rewrite", text=_begun(QUEUE, "jobs", 6)),
    CodingPrompt(name="begun_data", regime="rewrite", text=_begun(SETTINGS, "data", 7)),
    CodingPrompt(
        name="repeat_queue",
        regime="rewrite",
        user=_fenced(QUEUE) + "Repeat this code unchanged, then call it `@name@`.",
    ),
    CodingPrompt(
        name="explain",
        regime="chat",
        user="What is the difference between a list and a tuple called `@name@`?",
    ),
    CodingPrompt(
        name="advice",
        regime="chat",
        user="My Python program is slow. How do I find out why `@name@` takes long?",
    ),
    CodingPrompt(name="greeting", regime="chat", user="Hello! Who are you, and what is `@name@`?"),
    CodingPrompt(name="open_file", regime="tool call", user="Open src/@name@.py", tools=TOOLS),
    CodingPrompt(
        name="run_tests",
        regime="tool call",
        user="Run the tests in tests/test_@name@.py",
        tools=TOOLS,
    ),
    CodingPrompt(name="find_uses", regime="tool call", user="Find uses of @name@", tools=TOOLS),
    CodingPrompt(
        name="fill_loop",
        regime="fill in the middle",
        text="def count_words(text):\n    @name@ = {}\n    for word in text.split():\n        ",
        suffix="\n    return counts\n",
    ),
    CodingPrompt(
        name="fill_guard",
        regime="fill in the middle",
        text="class Account:\n    def withdraw(self, @name@):\n        if ",
        suffix=":\n            raise ValueError('not enough money')\n        self.balance -= 1\n",
    ),
    CodingPrompt(
        name="table",
        regime="repetitive",
        text="HTTP_PORTS = {\n"
        + "".join(f'    "service_{n}": {{"port": 80, "host": "@name@"}},\n' for n in range(5)),
    ),
    CodingPrompt(
        name="asserts",
        regime="repetitive",
        text="def test_@name@():\n"
        + "".join("    assert parse('1') == 1\n    assert parse('2') == 2\n" for _ in range(4)),
    ),
)

COMMIT = _tool("commit", "Commit what was changed.", "message")
_SHOW = "Say what you change, show the changed code"
_ENDS = (f"{_SHOW}, and then commit it.", f"{_SHOW}, and then read src/@name@.py.")
MIXED = tuple(
    CodingPrompt(
        name=f"agent_{old}",
        regime="agent",
        user=f"{_fenced(code)}Rename `{old}` to `@name@` in this code. {end}",
        tools=(*TOOLS, COMMIT),
        mixed=True,
    )
    for old, code, end in zip(("total", "jobs"), (INVOICE, QUEUE), _ENDS, strict=True)
)
