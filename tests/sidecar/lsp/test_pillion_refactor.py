"""Refactors of a project that an editor asks for."""

import threading

import pytest
from edited_code import CODE, Editor, answer
from rpc_client import RpcFailure
from waiting import until

from sidecar.lsp import pillion_refactor
from sidecar.lsp.pillion_refactor import write


@pytest.fixture
async def project(tmp_path):
    (tmp_path / "a.py").write_text(CODE)
    (tmp_path / "b.py").write_text("z = self\n")
    return tmp_path


def edited_files(edits):
    return [
        change["textDocument"]["uri"].rpartition("/")[2]
        for edit in edits
        for change in edit["documentChanges"]
    ]


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


async def test_a_change_set_that_is_being_written_is_not_cancelled(serve, project, monkeypatch):
    """An answer that says "cancelled" means that nothing was written."""
    writing, cancelled = threading.Event(), threading.Event()

    def slow(*args):
        writing.set()
        assert cancelled.wait(60)
        return write(*args)

    monkeypatch.setattr(pillion_refactor, "write", slow)
    client = await folder_client(await serve(answer), project)
    asked = client.request("pillion/refactor", {"instruction": "Call `self` this.", "apply": True})
    await until(writing.is_set)
    client.cancel(asked)
    await client.request("pillion/status")
    cancelled.set()
    assert (await asked)["id"]
    assert (project / "b.py").read_text() == "z = this\n"


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
