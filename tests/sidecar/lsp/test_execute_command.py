"""Commands whose result the editor applies."""

import asyncio

import pytest
from edited_code import CODE, URI, Editor, answer
from rpc_client import RpcFailure
from waiting import until


async def test_a_command_has_the_editor_apply_the_edit(serve):
    client = await (await serve(answer)).client()
    editor = Editor(client)
    client.open(URI, CODE)
    arguments = [{"uri": URI, "instruction": "x"}]
    command = {"command": "pillion.edit", "arguments": arguments}
    assert await client.request("workspace/executeCommand", command) == {"message": ""}
    (change,) = editor.edits[0]["documentChanges"]
    assert len(change["edits"]) == 2
    client.open(URI, "x = 1\n", version=2)
    done = await client.request("workspace/executeCommand", command)
    assert (done["message"], len(editor.edits)) == ("the model left the code as it is", 1)
    client.open(URI, CODE, version=3)
    editor.applied = False
    with pytest.raises(RpcFailure, match="did not apply the edit: no"):
        await client.request("workspace/executeCommand", command)


async def test_a_cancel_that_crosses_the_edit_comes_too_late(serve):
    """The editor has the edit already: to say that it was cancelled would be wrong."""
    client = await (await serve(answer)).client()
    editor = Editor(client)
    client.open(URI, CODE)
    command = {"command": "pillion.edit", "arguments": [{"uri": URI, "instruction": "x"}]}
    asked = client.request("workspace/executeCommand", command)
    editor.before = lambda: client.cancel(asked)
    assert await asked == {"message": ""}
    assert len(editor.edits) == 1


@pytest.mark.parametrize(
    "params",
    [
        {"command": "rm -rf"},
        {"command": "pillion.edit"},
        {"command": "pillion.edit", "arguments": [1]},
    ],
)
async def test_commands_that_are_none(serve, params):
    client = await (await serve(answer)).client()
    with pytest.raises(RpcFailure) as raised:
        await client.request("workspace/executeCommand", params)
    assert raised.value.code == -32602


async def test_an_editor_that_goes_away_in_the_middle(serve):
    door = await serve(answer)
    client = await door.client()
    client.open(URI, CODE)
    command = {"command": "pillion.edit", "arguments": [{"uri": URI, "instruction": "x"}]}
    asked = client.request("workspace/executeCommand", command)
    await until(lambda: door.backend.endings)
    await asyncio.sleep(0)
    await client.close()
    await until(lambda: not door.connections)
    assert not asked.done() or asked.exception()
