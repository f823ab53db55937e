"""pillion/edit, pillion/refactor, code actions and commands."""

import asyncio

import pytest
from rpc_client import RpcFailure
from waiting import until

from sidecar.workspace.documents import Change, Document
from sidecar.workspace.positions import Position, Range

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


def applied(text, edits, encoding):
    """What an editor makes of edits whose positions are all of the old text."""
    document = Document.of(text)
    for edit in reversed(edits):
        start, end = (Position(**edit["range"][name]) for name in ("start", "end"))
        document = document.changed(Change(edit["newText"], Range(start, end)), encoding)
    return document.text


def edited_files(edits):
    return [
        change["textDocument"]["uri"].rpartition("/")[2]
        for edit in edits
        for change in edit["documentChanges"]
    ]


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
    assert (result["uri"], result["version"], result["message"]) == (URI, 4, "")
    assert result["lines"] == [1, 2]
    assert {"tokens_per_round", "exact", "form", "hunks", "completion_tokens"} <= set(result)


async def test_an_edit_of_a_text(serve):
    client = await (await serve(answer)).client(handshake=False)
    asked = {"text": CODE, "path": "a.py", "instruction": "x"}
    result = await client.request("pillion/edit", asked)
    (hunk,) = result["hunks"]
    assert (hunk["oldText"], hunk["newText"]) == (CODE, CODE.replace("self", "this"))
    assert [edit["newText"] for edit in hunk["edits"]] == ["this", "this"]
    assert not {"edit", "uri", "version"} & set(result)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
async def test_each_hunk_can_be_taken_alone(serve, encoding):
    """Whole lines or their smallest changes, in the client's own positions: the same text."""
    old = "a = self\r\nkeep\r\n'🙂é'; b = self\r\nkeep\r\nlast = self"
    client = await (await serve(answer)).client(encoding)
    client.open(URI, old)
    result = await client.request("pillion/edit", {"uri": URI, "instruction": "x"})
    hunks = result["hunks"]
    assert [hunk["oldText"] for hunk in hunks] == [
        "a = self\r\n",
        "'🙂é'; b = self\r\n",
        "last = self",
    ]
    for hunk in hunks:
        whole = [{"range": hunk["range"], "newText": hunk["newText"]}]
        texts = [applied(old, edits, encoding) for edits in (whole, hunk["edits"])]
        assert texts == 2 * [old.replace(hunk["oldText"], hunk["newText"])]


async def test_an_edit_that_changes_nothing_says_so(serve):
    client = await (await serve(answer)).client()
    client.open(URI, "x = 1\n")
    result = await client.request("pillion/edit", {"uri": URI, "instruction": "x"})
    assert result["hunks"] == []
    assert result["message"] == "the model left the code as it is"
    assert result["edit"]["documentChanges"][0]["edits"] == []


async def test_an_edit_of_another_version_than_is_open(serve):
    door = await serve(answer)
    client = await door.client()
    client.open(URI, CODE, version=4)
    with pytest.raises(RpcFailure) as raised:
        await client.request("pillion/edit", {"uri": URI, "version": 3, "instruction": "x"})
    assert (raised.value.code, raised.value.data["code"]) == (-32801, "content_modified")
    assert door.backend.seen == []


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


class ProgressClient:
    """Collects ``$/progress`` by token, and lets tokens be created."""

    def __init__(self, client, refuses=False):
        self.client = client
        self.refuses = refuses
        self.created = []
        self._receive = client._receive
        client._receive = self.receive

    def receive(self, message):
        if message.get("method") == "window/workDoneProgress/create":
            self.created.append(message["params"]["token"])
            answer = {"error": {"code": 1, "message": "no"}} if self.refuses else {"result": None}
            self.client.send({"jsonrpc": "2.0", "id": message["id"], **answer})
        else:
            self._receive(message)

    def of(self, token):
        return [
            params["value"]
            for method, params in self.client.notifications
            if method == "$/progress" and params["token"] == token
        ]


async def test_an_edit_has_progress(serve):
    client = await (await serve(answer)).client()
    seen = ProgressClient(client)
    client.open(URI, CODE)
    asked = {"uri": URI, "instruction": "Call it this.", "workDoneToken": 7}
    await client.request("pillion/edit", asked)
    begin, *reports, end = seen.of(7)
    assert (begin["kind"], begin["title"]) == ("begin", "Pillion: Call it this.")
    assert begin["cancellable"]
    shares = [report["percentage"] for report in reports]
    assert shares == sorted(set(shares))
    assert shares[-1] == 100
    assert end["kind"] == "end"
    assert seen.created == []


async def test_progress_of_its_own_for_a_client_that_shows_it(serve):
    door = await serve(answer, round_seconds=0.002)
    client = await door.client(handshake=False)
    seen = ProgressClient(client)
    await client.initialize(capabilities={"window": {"workDoneProgress": True}})
    client.open(URI, CODE)
    await client.request("pillion/edit", {"uri": URI, "instruction": "x"})
    (token,) = seen.created
    assert [value["kind"] for value in seen.of(token)][:1] == ["begin"]
    assert seen.of(token)[-1]["kind"] == "end"
    seen.refuses = True
    await client.request("pillion/edit", {"uri": URI, "instruction": "x"})
    assert seen.of(seen.created[1]) == []


@pytest.mark.parametrize("method", ["pillion/edit", "pillion/explain"])
@pytest.mark.parametrize("by", ["request", "progress"])
async def test_whatever_is_asked_can_be_cancelled(serve, method, by):
    door = await serve("```\n" + "a" * 3000, round_seconds=0.002)
    client = await door.client()
    client.open(URI, CODE)
    asked = client.request(method, {"uri": URI, "instruction": "x", "workDoneToken": "t"})
    await until(lambda: door.backend.steps)
    if by == "request":
        client.cancel(asked)
    else:
        client.notify("window/workDoneProgress/cancel", {"token": "t"})
        client.notify("window/workDoneProgress/cancel", {"token": "another"})
    with pytest.raises(RpcFailure) as raised:
        await asked
    assert raised.value.code == -32800
    await until(lambda: door.backend.endings)
    assert next(iter(door.backend.endings.values())).finish_reason == "cancelled"


async def test_an_explanation_comes_in_pieces_and_whole(serve):
    door = await serve("It *adds*.")
    client = await door.client()
    client.open(URI, CODE)
    asked = {"uri": URI, "range": LINE_2, "partialResultToken": "p"}
    result = await client.request("pillion/explain", asked)
    assert result["markdown"] == "It *adds*."
    pieces = [value["markdown"] for value in ProgressClient(client).of("p")]
    assert len(pieces) > 1
    assert "".join(pieces) == result["markdown"]
    assert {"finish_reason", "model", "completion_tokens"} <= set(result)
    text = bytes(t for t in door.backend.seen[0].prompt if t < 256).decode()
    assert "Explain this code:\n```python\ny = self\n```" in text


async def test_an_explanation_of_a_text_with_a_question_that_is_cut_off(serve):
    door = await serve("b" * 100)
    client = await door.client(handshake=False)
    asked = {"text": CODE, "path": "a.py", "question": "Why?", "maxTokens": 9}
    result = await client.request("pillion/explain", asked)
    assert (result["markdown"], result["finish_reason"]) == ("b" * 9, "length")
    assert instructions(door) == ["Why?"]
    for params, field in (({"question": " "}, "question"), ({"maxTokens": 0}, "maxTokens")):
        with pytest.raises(RpcFailure) as raised:
            await client.request("pillion/explain", {"text": CODE, **params})
        assert raised.value.data["field"] == field


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
    result = await client.request("workspace/executeCommand", command)
    outcomes = {file["path"]: (file["state"], file["reason"]) for file in result["files"]}
    assert outcomes == {"a.py": ("changed", ""), "b.py": ("refused", "was changed meanwhile")}
    assert "edit" not in result
    assert edited_files(editor.edits) == ["a.py"]


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
    asked = {"instruction": "Call `self` this."}
    for more in ({}, {"apply": True}):
        result = await client.request("pillion/refactor", {**asked, **more})
        one, other = result["files"]
        assert (one["state"], one["path"]) == ("refused", "a.py")
        assert "has unsaved changes in the editor" in one["reason"]
        assert other["state"] == "changed"
        if not more:
            assert edited_files([result["edit"]]) == ["b.py"]
    assert "edit" not in result
    assert [outcome["path"] for outcome in result["outcomes"]] == ["b.py"]
    assert (project / "a.py").read_text() == CODE


async def test_a_refactors_edit_is_for_what_is_open(serve, project):
    client = await folder_client(await serve(answer), project)
    uri = (project / "a.py").as_uri().replace("a.py", "%61.py")
    client.open(uri, CODE, version=8)
    result = await client.request("pillion/refactor", {"instruction": "Call `self` this."})
    one, other = result["edit"]["documentChanges"]
    assert one["textDocument"] == {"uri": uri, "version": 8}
    assert one["edits"][0]["range"]["start"] == {"line": 0, "character": 4}
    assert other["textDocument"]["version"] is None
    for more in ({"planOnly": True}, {"apply": True}):
        asked = {"instruction": "Call `self` this.", **more}
        assert "edit" not in await client.request("pillion/refactor", asked)


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
