"""Other files in the prompts of one client: settled between keys, computed ahead, never withheld
ones."""

import asyncio
import shutil

import pytest
from rpc_client import RpcFailure
from waiting import until

from engine import Priority
from engine.testing import FIM_PREFIX
from sidecar.config import Config, WorkspaceConfig
from sidecar.workspace import view

MAIN = "from zoo import Lion\n\n\ndef feed(lion: Lion):\n    lion.\n"
FILES = {
    "main.py": MAIN,
    "zoo.py": "class Lion:\n    def roar(self): return 'r'\n",
    "near.py": "def near(): return 1\n",
    ".gitignore": "ignored.py\n",
    "ignored.py": "def ignored(): pass\n",
    ".env": "TOKEN=1\n",
}
CONTEXT = "zoo.py\nclass Lion:\n    def roar(self): ...\nnear.py\ndef near(): ...\n"
ON = Config(workspace=WorkspaceConfig(context="on", warm=False))
WARM = Config(workspace=WorkspaceConfig(context="on"))


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(view, "IDLE_SECONDS", 0.02)
    folder = tmp_path / "project"
    folder.mkdir()
    for path, text in FILES.items():
        (folder / path).write_text(text)
    return folder


async def opened(door, project, path="main.py", text=None):
    """A client that works in the project, with one document open and its context settled."""
    client = await door.client(handshake=False)
    await client.initialize(workspaceFolders=[{"uri": project.as_uri(), "name": "p"}])
    uri = (project / path).as_uri()
    await until(lambda: [one.mode for one in door.services.workspace.status()] == ["watch"])
    client.open(uri, FILES[path] if text is None else text)
    return client, uri


def places(project, *paths):
    return [str(project / path) for path in paths]


def ahead(request):
    """What stands in front of the edited file."""
    tokens = list(request.prompt)
    end = tokens.index(FIM_PREFIX) if FIM_PREFIX in tokens else len(tokens)
    return bytes(tokens[:end]).decode()


async def asked(door, client, uri, line=4, character=9):
    """The request that the engine gets: of scripts, for which nothing is remembered."""
    place = {"line": line, "character": character}
    await client.request("pillion/complete", {"uri": uri, "position": place})
    return [one for one in door.backend.seen if one.priority is Priority.INTERACTIVE][-1]


async def settled(door, client, uri, context):
    """Ask until the context is that."""
    async with asyncio.timeout(20):
        while True:
            request = await asked(door, client, uri)
            if ahead(request) == context:
                return request
            await asyncio.sleep(0.01)


async def test_context_and_segments(serve, project):
    door = await serve("roar()", config=ON)
    client, uri = await opened(door, project)
    request = await settled(door, client, uri, CONTEXT)
    assert [one.path for one in request.segments] == places(project, "zoo.py", "near.py")
    assert [one.end for one in request.segments] == [CONTEXT.index("near"), len(CONTEXT)]


async def test_every_key_has_the_same_beginning(serve, project):
    door = await serve("x", config=ON)
    client, uri = await opened(door, project)
    first = await settled(door, client, uri, CONTEXT)
    for index, character in enumerate("roar(1).mane and more text"):
        client.change(uri, index + 2, character, 4, 9 + index, 4, 9 + index)
        request = await asked(door, client, uri, 4, 10 + index)
        assert request.prompt[: len(CONTEXT)] == first.prompt[: len(CONTEXT)]
        assert request.segments == first.segments


async def test_a_file_that_changes_on_disk(serve, project):
    door = await serve("x", config=ON)
    client, uri = await opened(door, project)
    before = await settled(door, client, uri, CONTEXT)
    (project / "zoo.py").write_text("class Lion:\n    mane: int\n")
    changed = CONTEXT.replace("def roar(self): ...", "mane: int")
    after = await settled(door, client, uri, changed)
    assert before.segments[0].content != after.segments[0].content
    (project / "zoo.py").write_text(FILES["zoo.py"])
    again = await settled(door, client, uri, CONTEXT)
    assert again.prompt == before.prompt
    assert again.segments == before.segments


async def test_an_unsaved_buffer_wins_and_an_edit_elsewhere_goes_last(serve, project):
    door = await serve("x", config=ON)
    client, uri = await opened(door, project)
    zoo = (project / "zoo.py").as_uri()
    await settled(door, client, uri, CONTEXT)
    client.open(zoo, FILES["zoo.py"])
    client.change(zoo, 2, "    mane: int\n", 1, 0, 1, 0)
    shown = "class Lion:\n    mane: int\n    def roar(self): ...\n"
    await settled(door, client, uri, f"near.py\ndef near(): ...\nzoo.py\n{shown}")
    client.change(zoo, 3, "", 1, 0, 2, 0)
    await settled(door, client, uri, CONTEXT)


async def test_an_import_that_is_typed_brings_its_file(serve, project):
    door = await serve("x", config=ON)
    client, uri = await opened(door, project, text="\n\n\n\nlion.\n")
    siblings = "near.py\ndef near(): ...\nzoo.py\nclass Lion:\n    def roar(self): ...\n"
    await settled(door, client, uri, siblings)
    client.change(uri, 2, "from zoo import Lion", 0, 0, 0, 0)
    await settled(door, client, uri, CONTEXT)


async def test_withheld_documents_get_nothing_and_go_nowhere(serve, project):
    door = await serve("x", config=ON)
    client, uri = await opened(door, project)
    await settled(door, client, uri, CONTEXT)
    seen = len(door.backend.seen)
    for name, why in ((".env", "secrets"), ("ignored.py", "ignore file")):
        other = (project / name).as_uri()
        client.open(other, "def ignored(): pass\n")
        client.change(other, 2, "x", 0, 0, 0, 0)
        assert await client.inline(other, 0, 1) is None
        assert await client.inline(other, 0, 1) is None
        told = [params["message"] for method, params in client.notifications if "Message" in method]
        assert [other in message and why in message for message in told].count(True) == 1
        params = {"uri": other, "position": {"line": 0, "character": 1}}
        with pytest.raises(RpcFailure, match=why):
            await client.request("pillion/complete", params)
        for method in ("pillion/edit", "pillion/explain"):
            with pytest.raises(RpcFailure, match=why):
                await client.request(method, {"uri": other, "instruction": "x"})
    assert len(door.backend.seen) == seen
    await settled(door, client, uri, CONTEXT)


async def test_a_link_out_of_the_folder_is_not_followed(serve, project, tmp_path):
    (tmp_path / "outside.py").write_text("def outside(): pass\n")
    (project / "outside.py").symlink_to(tmp_path / "outside.py")
    (project / "up").symlink_to(tmp_path)
    text = "from outside import outside\nfrom up.outside import outside\n\n\nlion.   \n"
    door = await serve("x", config=ON)
    client, uri = await opened(door, project, text=text)
    request = await settled(
        door,
        client,
        uri,
        "near.py\ndef near(): ...\nzoo.py\nclass Lion:\n    def roar(self): ...\n",
    )
    assert "def outside" not in ahead(request)


async def test_scripts_get_the_same_context(serve, project):
    door = await serve("x", config=ON)
    client, uri = await opened(door, project)
    before = await settled(door, client, uri, CONTEXT)
    params = {"uri": uri, "position": {"line": 4, "character": 9}}
    await client.request("pillion/complete", params)
    assert door.backend.seen[-1].prompt == before.prompt


async def test_an_edit_sees_the_same_files(serve, project):
    door = await serve("x", config=ON)
    client, uri = await opened(door, project)
    await settled(door, client, uri, CONTEXT)
    place = {"start": {"line": 3, "character": 0}, "end": {"line": 5, "character": 0}}
    # The fake's answer is no edit.
    with pytest.raises(RpcFailure):
        await client.request("pillion/edit", {"uri": uri, "range": place, "instruction": "shout"})
    request = door.backend.seen[-1]
    shown = [
        bytes(token for token in request.prompt[: one.end] if token < 256).decode()
        for one in request.segments
    ]
    assert [one.path for one in request.segments] == places(project, "zoo.py", "near.py")
    assert shown[0].startswith("system: Other files of the project, for reference:\n\n# zoo.py\n")
    assert shown[0].endswith("def roar(self): ...\n\n")
    assert shown[1].endswith("# near.py\ndef near(): ...\n\n")
    asked = bytes(token for token in request.prompt if token < 256).decode()
    assert asked.startswith(shown[1] + "user: shout")


async def test_without_folders_nothing_is_read(serve, project):
    door = await serve("x", config=ON)
    client = await door.client()
    uri = (project / "main.py").as_uri()
    client.open(uri, MAIN)
    for _ in range(3):
        assert ahead(await asked(door, client, uri)) == ""
    assert door.services.workspace.status() == []


async def test_off_reads_and_watches_nothing(serve, project):
    door = await serve("x", config=Config(workspace=WorkspaceConfig(context="off")))
    client = await door.client(handshake=False)
    await client.initialize(rootUri=project.as_uri())
    uri = (project / "main.py").as_uri()
    client.open(uri, MAIN)
    assert ahead(await asked(door, client, uri)) == ""
    assert door.services.workspace.status() == []


async def test_folders_come_and_go(serve, project):
    door = await serve("x", config=ON)
    client, uri = await opened(door, project)
    await settled(door, client, uri, CONTEXT)
    folder = {"uri": project.as_uri(), "name": "p"}
    client.notify("workspace/didChangeWorkspaceFolders", {"event": {"removed": [folder]}})
    await settled(door, client, uri, "")
    assert door.services.workspace.status() == []
    client.notify("workspace/didChangeWorkspaceFolders", {"event": {"added": [folder]}})
    await settled(door, client, uri, CONTEXT)


async def test_files_of_one_name_in_two_folders_are_two(serve, project, tmp_path):
    """What the cache hears of one says nothing of the other."""
    other = tmp_path / "other"
    shutil.copytree(project, other)
    door = await serve("x", config=ON)
    client = await door.client(handshake=False)
    folders = [{"uri": one.as_uri(), "name": one.name} for one in (project, other)]
    await client.initialize(workspaceFolders=folders)
    await until(lambda: [one.mode for one in door.services.workspace.status()] == ["watch"] * 2)
    shown = []
    for one in (project, other):
        client.open((one / "main.py").as_uri(), MAIN)
        request = await settled(door, client, (one / "main.py").as_uri(), CONTEXT)
        shown.append([segment.path for segment in request.segments])
    assert shown == [places(one, "zoo.py", "near.py") for one in (project, other)]
    (other / "zoo.py").write_text("class Lion:\n    mane: int\n")
    await until(lambda: door.backend.changed_files)
    assert {one.path for one in door.backend.changed_files} == set(places(other, "zoo.py"))


async def test_clients_of_one_folder_share_a_watcher(serve, project):
    door = await serve("x", config=ON)
    first, _ = await opened(door, project)
    second, uri = await opened(door, project)
    await settled(door, second, uri, CONTEXT)
    await first.close()
    await until(lambda: len(door.connections) == 1)
    (project / "near.py").write_text("def nearer(): pass\n")
    await settled(door, second, uri, CONTEXT.replace("near()", "nearer()"))
    await second.close()
    await until(lambda: door.services.workspace.status() == [])


async def test_the_stable_part_is_computed_ahead_when_a_file_is_opened(serve, project):
    door = await serve("x", config=WARM)
    client, uri = await opened(door, project)
    await until(lambda: door.backend.seen)
    request = door.backend.seen[0]
    assert request.warm
    assert request.priority is Priority.IDLE
    assert ahead(request) == CONTEXT
    assert len(request.prompt) == len(CONTEXT) + 1
    assert [one.path for one in request.segments] == places(project, "zoo.py", "near.py")
    await client.inline(uri, 4, 9)
    assert door.backend.seen[-1].prompt[: len(request.prompt)] == request.prompt


async def test_the_whole_prompt_is_computed_ahead_when_typing_pauses(serve, project):
    door = await serve("x", config=WARM)
    client, uri = await opened(door, project)
    await until(lambda: door.backend.seen)
    client.change(uri, 2, "ro", 4, 9, 4, 9)
    await until(lambda: len(door.backend.seen) == 2)
    warmed = door.backend.seen[-1]
    assert warmed.warm
    request = await asked(door, client, uri, 4, 11)
    assert request.prompt == warmed.prompt


async def test_what_is_stale_is_cancelled(serve, project):
    door = await serve("x", config=WARM, prefill_seconds=0.5)
    client, uri = await opened(door, project)
    await until(lambda: door.backend.seen)
    client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
    await until(lambda: door.backend.endings)
    (ending,) = door.backend.endings.values()
    assert ending.finish_reason == "cancelled"


async def test_a_file_opened_while_the_model_loads(serve, project):
    import threading

    loading = threading.Event()
    door = await serve("x", config=WARM, loading=loading, wait=False)
    await opened(door, project)
    await asyncio.sleep(0.05)
    loading.set()
    await until(lambda: door.backend.seen)
    assert ahead(door.backend.seen[0]) == CONTEXT
