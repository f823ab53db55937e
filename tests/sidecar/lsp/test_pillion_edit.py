"""pillion/edit, pillion/refactor, code actions and commands."""

import asyncio

import pytest
from rpc_client import RpcFailure
from waiting import until

URI = "file:///w/a.py"
CODE = "é = self\ny = self\n"
LINE_2 = {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": 1}}


def answer(request):
    text = bytes(t for t in request.prompt if t < 256).decode()
    code = text.split("```python\n")[1].split("\n```")[0]
    return f"```python\n{code.replace('self', 'this')}\n```"


def instructions(door):
    texts = [bytes(t for t in one.prompt if t < 256).decode() for one in door.backend.seen]
    return [text.removeprefix("user: ").split("\n")[0] for text in texts]


@pytest.fixture
async def project(tmp_path):
    (tmp_path / "a.py").write_text(CODE)
    (tmp_path / "b.py").write_text("z = self\n")
    return tmp_path


class Editor:
    """Answers the daemon's `workspace/applyEdit`."""

    def __init__(self, client, applied=True):
        self.client = client
        self.edits = []
        self.applied = applied
        self._receive = client._receive
        client._receive = self.receive

    def receive(self, message):
        if message.get("method") == "workspace/applyEdit":
            self.edits.append(message["params"]["edit"])
            result = {"applied": self.applied, "failureReason": "no"}
            self.client.send({"jsonrpc": "2.0", "id": message["id"], "result": result})
        else:
            self._receive(message)


async def test_an_edit_of_an_open_document_is_for_its_version(serve):
    door = await serve(answer)
    client = await door.client("utf-16")
    client.open(URI, CODE, version=4)
    result = await client.request("pillion/edit", {"uri": URI, "instruction": "x", "range": LINE_2})
    (change,) = result["edit"]["documentChanges"]
    assert change["textDocument"] == {"uri": URI, "version": 4}
    assert change["edits"] == [
        {
            "range": {"start": {"line": 1, "character": 4}, "end": {"line": 1, "character": 8}},
            "newText": "this",
        }
    ]
    assert result["lines"] == [1, 2]
    assert {"tokens_per_round", "exact", "form", "hunks", "completion_tokens"} <= set(result)


async def test_an_edit_of_a_text(serve):
    client = await (await serve(answer)).client(handshake=False)
    asked = {"text": CODE, "path": "a.py", "instruction": "x"}
    result = await client.request("pillion/edit", asked)
    assert [hunk["text"] for hunk in result["hunks"]] == ["this", "this"]
    assert "edit" not in result


async def test_an_edit_of_a_document_that_moved_on_is_refused(serve):
    door = await serve(answer, round_seconds=0.005)
    client = await door.client()
    client.open(URI, CODE)
    asked = client.request("pillion/edit", {"uri": URI, "instruction": "x"})
    await until(lambda: door.backend.steps)
    client.change(URI, 2, "other = self\n")
    with pytest.raises(RpcFailure, match="was changed meanwhile") as raised:
        await asked
    assert raised.value.data == {"code": "refused"}


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"instruction": "x"}, "uri"),
        ({"instruction": "x", "uri": URI, "text": ""}, "uri"),
        ({"instruction": "x", "uri": "file:///none"}, "uri"),
        ({"text": "a"}, "instruction"),
        ({"text": "a", "instruction": " "}, "instruction"),
        ({"text": "\n", "instruction": "x"}, "range"),
    ],
)
async def test_bad_edits_name_their_field(serve, params, field):
    client = await (await serve(answer)).client()
    with pytest.raises(RpcFailure) as raised:
        await client.request("pillion/edit", params)
    assert raised.value.data["field"] == field


async def test_a_secret_document_reaches_no_prompt(serve):
    door = await serve(answer)
    client = await door.client()
    client.open("file:///w/.env", "KEY=self\n")
    with pytest.raises(RpcFailure, match="holds secrets"):
        await client.request("pillion/edit", {"uri": "file:///w/.env", "instruction": "x"})
    assert door.backend.seen == []


async def test_code_actions_are_made_when_they_are_picked(serve):
    door = await serve(answer)
    client = await door.client()
    client.open(URI, "# pillion: call it this\nx = self\n")
    place = {"start": {"line": 0, "character": 0}, "end": {"line": 2, "character": 0}}
    params = {
        "textDocument": {"uri": URI},
        "range": place,
        "context": {"diagnostics": [{"message": "self is\nunknown", "range": place}]},
    }
    actions = await client.request("textDocument/codeAction", params)
    assert [action["title"] for action in actions] == [
        "Pillion: call it this",
        "Pillion: Fix: self is unknown",
        "Pillion: Write a docstring",
        "Pillion: Remove the comments",
    ]
    assert door.backend.seen == []
    made = await client.request("codeAction/resolve", actions[0])
    (change,) = made["edit"]["documentChanges"]
    assert change["textDocument"]["version"] == 1
    assert instructions(door) == ["call it this Remove the comment that asks for this."]
    client.change(URI, 2, "x = 1\n")
    with pytest.raises(RpcFailure) as raised:
        await client.request("codeAction/resolve", actions[0])
    assert raised.value.code == -32801


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


async def test_a_command_has_the_editor_apply_the_edit(serve):
    client = await (await serve(answer)).client()
    editor = Editor(client)
    client.open(URI, CODE)
    arguments = [{"uri": URI, "instruction": "x"}]
    command = {"command": "pillion.edit", "arguments": arguments}
    assert await client.request("workspace/executeCommand", command) is None
    (change,) = editor.edits[0]["documentChanges"]
    assert len(change["edits"]) == 2
    editor.applied = False
    with pytest.raises(RpcFailure, match="did not apply the edit: no"):
        await client.request("workspace/executeCommand", command)


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


async def folder_client(door, project):
    client = await door.client(handshake=False)
    folders = [{"uri": project.as_uri(), "name": "w"}]
    await client.initialize(workspaceFolders=folders)
    return client


async def test_a_refactor_with_progress_through_the_editor(serve, project):
    door = await serve(answer)
    client = await folder_client(door, project)
    editor = Editor(client)
    arguments = [{"instruction": "Call `self` this."}]
    command = {"command": "pillion.refactor", "arguments": arguments, "workDoneToken": "t"}
    result = await client.request("workspace/executeCommand", command)
    assert [one["state"] for one in result["files"]] == ["changed", "changed"]
    (edit,) = editor.edits
    names = [change["textDocument"]["uri"].rsplit("/")[-1] for change in edit["documentChanges"]]
    assert names == ["a.py", "b.py"]
    progress = [params for method, params in client.notifications if method == "$/progress"]
    assert {params["token"] for params in progress} == {"t"}
    kinds = [params["value"]["kind"] for params in progress]
    assert (kinds[0], kinds[-1]) == ("begin", "end")
    assert max(params["value"].get("percentage", 0) for params in progress) == 100
    # The editor writes, not the daemon.
    assert (project / "b.py").read_text() == "z = self\n"


async def test_a_file_that_changed_while_it_was_asked_about_is_not_edited(serve, project):
    def slow(request):
        (project / "b.py").write_text("# new\nz = self\n")
        return answer(request)

    client = await folder_client(await serve(slow), project)
    editor = Editor(client)
    command = {"command": "pillion.refactor", "arguments": [{"instruction": "Call `self` this."}]}
    with pytest.raises(RpcFailure, match=r"b\.py was changed meanwhile"):
        await client.request("workspace/executeCommand", command)
    assert editor.edits == []


async def test_a_refactor_that_is_applied_here_goes_through_the_journal(serve, project):
    client = await folder_client(await serve(answer), project)
    asked = {"instruction": "Call `self` this.", "apply": True, "partialResultToken": 1}
    result = await client.request("pillion/refactor", asked)
    assert (project / "b.py").read_text() == "z = this\n"
    assert result["outcomes"] == [
        {"path": "a.py", "reason": ""},
        {"path": "b.py", "reason": ""},
    ]
    values = [params["value"] for method, params in client.notifications if method == "$/progress"]
    assert [sorted(value) for value in values] == [
        ["plan", "skipped"],
        *2 * [["done", "file", "total"]],
    ]


async def test_a_refactor_is_cancelled_within_a_round(serve, project):
    door = await serve("```\n" + "a" * 3000, round_seconds=0.002)
    client = await folder_client(door, project)
    asked = client.request("pillion/refactor", {"instruction": "Call `self` this.", "apply": True})
    await until(lambda: door.backend.steps)
    client.cancel(asked)
    with pytest.raises(RpcFailure) as raised:
        await asked
    assert raised.value.code == -32800
    await until(lambda: door.backend.endings)
    assert next(iter(door.backend.endings.values())).finish_reason == "cancelled"
    assert (project / "b.py").read_text() == "z = self\n"


@pytest.mark.parametrize("root", ["relative", "/no/such/folder", "{}/..", "{}/a.py", "/"])
async def test_a_root_outside_the_opened_folders_is_refused(serve, project, root):
    client = await folder_client(await serve(answer), project)
    asked = {"root": root.format(project), "instruction": "Call `self` this.", "apply": True}
    with pytest.raises(RpcFailure) as raised:
        await client.request("pillion/refactor", asked)
    assert raised.value.data["field"] == "root"


async def test_an_unsaved_buffer_stays_the_editors(serve, project):
    client = await folder_client(await serve(answer), project)
    client.open((project / "a.py").as_uri(), "unsaved = self\n")
    command = {"command": "pillion.refactor", "arguments": [{"instruction": "Call `self` this."}]}
    with pytest.raises(RpcFailure, match=r"a\.py has unsaved changes"):
        await client.request("workspace/executeCommand", command)


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
