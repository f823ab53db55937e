"""Which requests schemathesis is not to make, because no document can say why they are refused.

Each condition is about values of two fields, or about what this daemon holds:

- a tool that has to be called is one of `tools`;
- `prompt` times `n` is not more than eight replies, and `best_of` is `n`;
- a token id is one of the loaded model's (``VOCABULARY`` in the environment);
- `previous_response_id` is of a response that was made here.

Run by schemathesis in its own environment: nothing of Pillion can be imported.
"""

from __future__ import annotations

import os
from typing import Any

import schemathesis


@schemathesis.hook
def filter_case(_context: Any, case: Any) -> bool:
    """Whether the request is made. Bodies that violate the document always are."""
    body = case.body if isinstance(case.body, dict) else {}
    if body.get("previous_response_id"):
        return False
    return _declared(body) and _few_replies(body) and _known(body)


def _named(tool: Any) -> Any:
    inner = tool.get("function", tool) if isinstance(tool, dict) else None
    return inner.get("name") if isinstance(inner, dict) else None


def _declared(body: dict[str, Any]) -> bool:
    choice, tools = body.get("tool_choice"), body.get("tools")
    if not isinstance(choice, dict) or _named(choice) is None:
        return True
    return _named(choice) in [_named(tool) for tool in (tools if isinstance(tools, list) else [])]


def _few_replies(body: dict[str, Any]) -> bool:
    prompt, n, best_of = body.get("prompt"), body.get("n"), body.get("best_of")
    several = isinstance(prompt, list) and not all(isinstance(one, int | float) for one in prompt)
    n = n if isinstance(n, int | float) else 1
    return (len(prompt) if several else 1) * n <= 8 and best_of in (None, n)


def _known(body: dict[str, Any]) -> bool:
    size = int(os.environ["VOCABULARY"])
    biases = body.get("logit_bias")
    named = [int(key) for key in biases if key.isdecimal()] if isinstance(biases, dict) else []
    return all(
        token < size for token in [*named, *_ids(body.get("prompt")), *_ids(body.get("tokens"))]
    )


def _ids(value: Any) -> list[float]:
    if isinstance(value, list):
        return [token for one in value for token in _ids(one)]
    # To JSON Schema 7.0 is an integer, too.
    return [value] if isinstance(value, int | float) else []
