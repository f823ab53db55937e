"""The words in which Pillion asks a model to change code: one place, so that training matches."""

from __future__ import annotations

import re

# A request to change code is an instruction in the user's words and the code in a fence; the
# reply is the whole of the changed code in a fence, and nothing else.
CHANGE = "{instruction}\n```{language}\n{code}\n```"
REPLY = "```{language}\n{code}\n```"
RENAME = "Rename `{old}` to `{new}` in this code:"
FENCED = re.compile(r"```[^\n`]*\n(.*?)\n?```", re.DOTALL)


def change(instruction: str, code: str, language: str = "python") -> str:
    """The user's message that asks for `code` (whole lines) to be changed."""
    return CHANGE.format(instruction=instruction, code=code.rstrip("\n"), language=language)


def reply(code: str, language: str = "python") -> str:
    """What a model is taught to answer to `change`."""
    return REPLY.format(code=code.rstrip("\n"), language=language)


def changed_code(text: str) -> str | None:
    """The code of the first fence in a reply, without its last newline; None if there is none."""
    found = FENCED.search(text)
    return found.group(1) if found else None
