import pytest
from rpc_client import RpcFailure

from engine import RequestError
from engine.testing import FIM_MIDDLE, FIM_SUFFIX

URI = "file:///w/a.py"


def prompt_of(request):
    return bytes(t for t in request.prompt if t < 256).decode()


@pytest.mark.parametrize(
    "where",
    [
        {"prefix": "é = ", "suffix": "\ny"},
        {"text": "é = \ny", "position": {"line": 0, "character": 4}},
        {"uri": URI, "position": {"line": 0, "character": 4}},
    ],
)
async def test_the_three_ways_to_say_where(serve, where):
    door = await serve("1 + 2")
    client = await door.client()
    client.open(URI, "é = \ny")
    result = await client.request("pillion/complete", where)
    assert result["text"] == "1 + 2"
    assert prompt_of(door.backend.seen[0]) == "é = \ny"
    assert {FIM_SUFFIX, FIM_MIDDLE} < set(door.backend.seen[0].prompt)


async def test_the_account(serve):
    facts = {"accepted": 3, "rejected": 1, "cached_tokens": 2, "exact": True}
    door = await serve("abc", facts=facts)
    client = await door.client()
    result = await client.request("pillion/complete", {"prefix": "x = "})
    assert {name: result[name] for name in facts} == facts
    assert result["finish_reason"] == "stop"
    assert result["model"] == "fake"
    assert result["completion_tokens"] == 4
    assert result["prompt_tokens"] == 7
    assert len(result["token_hash"]) == 64
    assert {"seed", "rounds", "width", "tokens_per_round", "decode_ms"} <= set(result)
    assert not {"id", "tokens", "type", "margins"} & set(result)


async def test_options_reach_the_engine(serve):
    door = await serve("a\nb\nc\n")
    client = await door.client()
    where = {"prefix": "x = "}
    result = await client.request("pillion/complete", where | {"maxTokens": 1, "draft": False})
    assert (result["text"], result["finish_reason"]) == ("a", "length")
    assert (door.backend.seen[0].max_tokens, door.backend.seen[0].draft) == (1, False)
    result = await client.request("pillion/complete", where | {"multiline": "always"})
    assert result["text"] == "a\nb\nc"


async def test_a_change_does_not_withdraw_it(serve):
    """A script asked about this text; unlike ghost text the answer is not shown at a cursor."""
    door = await serve("abc", round_seconds=0.005)
    client = await door.client()
    client.open(URI, "x = ")
    answer = client.request(
        "pillion/complete", {"uri": URI, "position": {"line": 0, "character": 4}}
    )
    client.change(URI, 2, "y = ")
    assert (await answer)["text"] == "abc"


async def test_the_engines_refusal_names_its_field(serve):
    def refuse(_request):
        raise RequestError("max_tokens: too many", field="max_tokens")

    client = await (await serve(refuse)).client()
    with pytest.raises(RpcFailure) as raised:
        await client.request("pillion/complete", {"prefix": "x"})
    assert raised.value.code == -32602
    assert raised.value.data == {"code": "invalid_request", "field": "max_tokens"}


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///w/pkg/a%20b.py", "pkg/a b.py"),
        ("file:///elsewhere/home/me/c.py", "c.py"),
        ("untitled:Untitled-1", None),
        ("file:///w2/d.py", "d.py"),
    ],
)
async def test_a_prompt_names_the_path_in_the_workspace_and_never_the_users_home(serve, uri, path):
    door = await serve()
    paths = []

    class Codec:
        def fill_in_middle(self, prefix, suffix, *, path=None, limit=None):
            paths.append(path)
            return inner.fill_in_middle(prefix, suffix, path=path, limit=limit)

    inner, door.backend.codec = door.backend.codec, Codec()
    client = await door.client(handshake=False)
    await client.initialize(workspaceFolders=[{"uri": "file:///w", "name": "w"}])
    client.open(uri, "x = ")
    await client.request("pillion/complete", {"uri": uri, "position": {"line": 0, "character": 4}})
    assert paths == [path]
