"""The words in which Pillion asks a model to change code: one place, so that training matches."""

from __future__ import annotations

import re

# A request to change code is an instruction in the user's words and the code in a fence; the
# reply is the whole of the changed code in a fence, and nothing else.
CHANGE = "{instruction}\n```{language}\n{code}\n```"
REPLY = "```{language}\n{code}\n```"
# For code that is too long to be written again: only what changes. No file is named.
BLOCKS = """{instruction}
{fence}{language}
{code}
{fence}
Answer only with blocks of this form, each with a few whole lines that occur once in the code:
<<<<<<< SEARCH
lines of the code
=======
lines in their place
>>>>>>> REPLACE"""
# What an edit may look at besides: a message before the one that asks.
OTHER_FILES = "Other files of the project, for reference:\n\n"
RENAME = "Rename `{old}` to `{new}` in this code:"
FENCED = re.compile(r"```[^\n`]*\n(.*?)\n?```", re.DOTALL)


def change(instruction: str, code: str, language: str = "python", fence: str = "```") -> str:
    """The user's message that asks for `code` (whole lines) to be changed. fence: three backticks,
    or more where the code has as many."""
    form = CHANGE.replace("```", fence)
    return form.format(instruction=instruction, code=code.rstrip("\n"), language=language)


def change_by_blocks(instruction: str, code: str, language: str, fence: str = "```") -> str:
    """The same for a long `code`, whose changes alone are to be written."""
    return BLOCKS.format(
        instruction=instruction, code=code.rstrip("\n"), language=language, fence=fence
    )


def shown_file(path: str, text: str, comment: str = "#") -> str:
    r"""A file that is shown for reference, below a comment that names it. text: lines that end with
    ``\n``."""
    return f"{comment} {path}\n{text}\n"


def reply(code: str, language: str = "python") -> str:
    """What a model is taught to answer to `change`."""
    return REPLY.format(code=code.rstrip("\n"), language=language)


def changed_code(text: str) -> str | None:
    """The code of the first fence in a reply, without its last newline; None if there is none."""
    found = FENCED.search(text)
    return found.group(1) if found else None
