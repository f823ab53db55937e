"""What an editor offers for some lines, and what comes of it."""

import pytest
from edited_code import CODE, LINE_2, URI, answer, instructions
from rpc_client import RpcFailure


async def test_code_actions_are_made_when_they_are_picked(serve):
    door = await serve(answer)
    client = await door.client()
    client.open(URI, "# pillion: call it this\nx = self\n", version=1)
    place = {"start": {"line": 0, "character": 0}, "end": {"line": 2, "character": 0}}
    params = {
        "textDocument": {"uri": URI},
        "range": place,
        "context": {"diagnostics": [{"message": "self is\nunknown", "range": place}]},
    }
    actions = await client.request("textDocument/codeAction", params)
    assert [action["title"] for action in actions] == [
        "Pillion: Fix: self is unknown",
        "Pillion: call it this",
        "Pillion: Write a docstring",
        "Pillion: Remove the comments",
    ]
    assert door.backend.seen == []
    made = await client.request("codeAction/resolve", actions[1])
    (change,) = made["edit"]["documentChanges"]
    assert change["textDocument"]["version"] == 1
    assert instructions(door) == ["call it this Remove the comment that asks for this."]
    client.change(URI, 2, "x = 1\n")
    with pytest.raises(RpcFailure) as raised:
        await client.request("codeAction/resolve", actions[1])
    assert raised.value.code == -32801


FUNCTIONS = "def f():\n    return 1\n\n\ndef g(self):\n    if self:\n        return self\n"


async def test_a_fix_is_made_of_the_smallest_function_around_it(serve):
    door = await serve(answer)
    client = await door.client()
    client.open(URI, FUNCTIONS)
    place = {"start": {"line": 6, "character": 15}, "end": {"line": 6, "character": 19}}
    diagnostic = {
        "range": place,
        "message": "Undefined name",
        "severity": 1,
        "code": "F821",
        "source": "ruff",
        "data": {"own": [1]},
    }
    params = {
        "textDocument": {"uri": URI},
        "range": place,
        "context": {"diagnostics": [diagnostic], "only": ["quickfix"]},
    }
    (action,) = await client.request("textDocument/codeAction", params)
    assert (action["kind"], action["diagnostics"]) == ("quickfix", [diagnostic])
    made = await client.request("codeAction/resolve", action)
    assert made["diagnostics"] == [diagnostic]
    text = bytes(t for t in door.backend.seen[0].prompt if t < 256).decode()
    said = "Fix the problem in the line `return self`: Undefined name"
    code = FUNCTIONS[FUNCTIONS.index("def g") :]
    assert f"{said}\n```python\n{code}```" in text
    (change,) = made["edit"]["documentChanges"]
    assert len(change["edits"]) == 3


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("I would rather not.", "Pillion: the answer has no code block"),
        (lambda request: answer(request).replace("this", "self"), "left the code as it is"),
    ],
)
async def test_a_picked_action_that_comes_to_nothing_says_why(serve, reply, said):
    client = await (await serve(reply)).client()
    client.open(URI, CODE)
    params = {"textDocument": {"uri": URI}, "range": LINE_2, "context": {"diagnostics": []}}
    action, _ = await client.request("textDocument/codeAction", params)
    made = await client.request("codeAction/resolve", action)
    assert "edit" not in made
    assert made["title"] == action["title"]
    (shown,) = [one for method, one in client.notifications if method == "window/showMessage"]
    assert said in shown["message"]


async def test_actions_that_the_client_goes_on_with(serve):
    """Offered only to one that says it can."""
    door = await serve(answer)
    client = await door.client(handshake=False)
    await client.initialize(
        initializationOptions={"commands": ["pillion.editSelection", "pillion.explain"]}
    )
    client.open(URI, CODE, version=3)
    params = {"textDocument": {"uri": URI}, "range": LINE_2, "context": {"diagnostics": []}}
    actions = await client.request("textDocument/codeAction", params)
    edit, explain = [action for action in actions if "command" in action]
    assert edit["command"]["command"] == "pillion.editSelection"
    (place,) = edit["command"]["arguments"]
    assert place == {"uri": URI, "version": 3, "range": LINE_2}
    result = await client.request("pillion/edit", {**place, "instruction": "x"})
    assert len(result["hunks"]) == 1
    assert explain["command"]["command"] == "pillion.explain"
    command = {"command": "pillion.explain", "arguments": explain["command"]["arguments"]}
    assert (await client.request("workspace/executeCommand", command))["markdown"]
    params["context"]["diagnostics"] = [{"message": "bad", "range": LINE_2}]
    actions = await client.request("textDocument/codeAction", params)
    (asked,) = actions[-1]["command"]["arguments"]
    assert asked["question"] == "Explain why this code has the problem: bad"


async def test_options_that_another_program_wrote(serve):
    """Lua has one empty table for a list and an object."""
    client = await (await serve(answer)).client(handshake=False)
    await client.initialize(initializationOptions=[])


async def test_no_code_action_without_a_reason(serve):
    client = await (await serve(answer)).client()
    client.open(URI, CODE)
    place = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}
    params = {"textDocument": {"uri": URI}, "range": place, "context": {"diagnostics": []}}
    assert await client.request("textDocument/codeAction", params) == []
    params["range"] = LINE_2
    params["context"]["only"] = ["source"]
    assert await client.request("textDocument/codeAction", params) == []
    params["context"]["only"] = ["refactor"]
    assert len(await client.request("textDocument/codeAction", params)) == 2
