"""Over a thousand malformed or truncated inputs: no crash, no hang, an answer wherever one can be
given, and a server that still serves. Seeded: a failure names its case and comes again."""

import asyncio
import copy
import json
import math
import random

import pytest

from sidecar.lsp.framing import frame

URI = "file:///w/a.py"
PLACE = {"line": 0, "character": 3}
DOCUMENT = {"uri": URI, "languageId": "python", "version": 1, "text": "x = é😀\n"}
CHANGE = {"range": {"start": PLACE, "end": PLACE}, "text": "y"}
METHODS = {
    "initialize": {
        "processId": 1,
        "rootUri": "file:///w",
        "capabilities": {"general": {"positionEncodings": ["utf-8", "utf-16"]}},
        "workspaceFolders": [{"uri": "file:///w", "name": "w"}],
    },
    "initialized": {},
    "shutdown": {},
    "exit": {},
    "$/cancelRequest": {"id": 7},
    "textDocument/didOpen": {"textDocument": DOCUMENT},
    "textDocument/didChange": {
        "textDocument": {"uri": URI, "version": 2},
        "contentChanges": [CHANGE, {"text": "z"}],
    },
    "textDocument/didClose": {"textDocument": {"uri": URI}},
    "textDocument/inlineCompletion": {
        "textDocument": {"uri": URI},
        "position": PLACE,
        "context": {
            "triggerKind": 1,
            "selectedCompletionInfo": {"range": {"start": PLACE, "end": PLACE}, "text": "xy"},
        },
    },
    "pillion/complete": {
        "uri": URI,
        "position": PLACE,
        "maxTokens": 4,
        "draft": True,
        "path": "a.py",
        "multiline": "auto",
    },
    "pillion/status": {},
    "pillion/shutdown": {},
    "textDocument/hover": {"textDocument": {"uri": URI}, "position": PLACE},
}
JUNK = [
    None, True, 0, -1, 1.5, 2**31, 2**63, 2**64, 10**400, "", "x", "1", "\ud800", "é😀" * 9, [], {},
    [[]], {"a": {}}, [1, "x", None], {"line": 0}, "file:///etc/passwd", "\x00", "utf-8",
]  # fmt: skip


def message(rng, method=None):
    """A good request or notification of some method, sometimes as the other kind."""
    method = method or rng.choice(list(METHODS))
    body = {"jsonrpc": "2.0", "method": method, "params": copy.deepcopy(METHODS[method])}
    if rng.random() < 0.8:
        body["id"] = rng.choice([7, "seven", 0, -3, 2**53])
    return body


def places(node, path=()):
    """Every place in a JSON value, outermost first."""
    yield path
    if isinstance(node, dict | list):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield from places(node[key], (*path, key))


def with_place(value, path, new):
    """`value` with `new` at `path`; `...` removes it."""
    value = copy.deepcopy(value)
    if not path:
        return value if new is ... else new
    *outer, last = path
    node = value
    for key in outer:
        node = node[key]
    if new is ...:
        del node[last]
    else:
        node[last] = new
    return value


def encoded(value):
    return json.dumps(value, ensure_ascii=True).encode()


def mutated_bodies(rng):
    """Bodies that are framed well and wrong inside."""
    for method in METHODS:
        good = message(rng, method)
        for path in places(good):
            yield encoded(with_place(good, path, ...))
            yield from (encoded(with_place(good, path, junk)) for junk in rng.sample(JUNK, 6))
    for _ in range(150):
        body = bytearray(encoded(message(rng)))
        for _ in range(rng.randint(1, 3)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        yield bytes(body)
    for _ in range(60):
        body = encoded(message(rng))
        yield body[: rng.randrange(len(body))]
    for depth in (10, 100, 1000, 100_000):
        for opened, closed in (("[", "]"), ('{"a":', "}")):
            nest = opened * depth + "1" * (opened != "[") + closed * depth
            yield nest.encode()
            yield b'{"jsonrpc":"2.0","id":7,"method":"pillion/status","params":%b}' % nest.encode()
    yield from (encoded([message(rng) for _ in range(size)]) for size in range(5))
    for text in (b"\xff", b"\xc3", b"\xed\xa0\x80", b'"\\ud800"', b"\x00"):
        yield b'{"jsonrpc":"2.0","id":7,"method":"pillion/status","params":{"a":%b}}' % text
        yield b'{"jsonrpc":"2.0","id":7,"method":"%b"}' % text
    for number in (b"1e999", b"-0", b"1" * 5000, b"1.0", b"7e0", b"NaN", b"-Infinity", b"01"):
        yield b'{"jsonrpc":"2.0","id":%b,"method":"pillion/status"}' % number
        yield b'{"jsonrpc":"2.0","id":7,"method":"pillion/complete","params":{"maxTokens":%b}}' % (
            number
        )


def broken_frames(rng):
    """Byte streams that are not framed as they should be; (data, whether it ends there)."""
    whole = frame(encoded(message(rng, "pillion/status") | {"id": 7}))
    for at in range(len(whole)):
        yield whole[:at], True
    for length in (
        b"",
        b"-1",
        b"+9",
        b"x",
        b"1e3",
        b"9" * 30,
        b"9" * 12,
        b"0x10",
        b"3 4",
        b"\xd9\xa3",
    ):
        yield b"Content-Length: " + length + b"\r\n\r\n{}", False
    for header in (
        b"",
        b"X: y\r\n",
        b"Content-Length 5\r\n",
        b": \r\n",
        b"\xff\xfe\r\n",
        b"A" * 20_000,
    ):
        yield header + b"\r\n\r\n" + b"{}", False
    for body in (b"{}", b"[1]", b"{"):
        yield frame(body), False
        yield b"Content-Length: %d\r\n\r\n%b" % (len(body) + 3, body), True
        yield b"Content-Length: %d\r\n\r\n%b" % (len(body) - 1, body), True
    for _ in range(60):
        yield rng.randbytes(rng.randint(1, 300)), True
    for _ in range(40):
        data = bytearray(whole)
        data[rng.randrange(len(data))] = rng.randrange(256)
        yield bytes(data), True


def expected_of(body):
    """What must come back for a well framed body: ("id", id), ("null", None), ("none", None), or
    ("either", id) where JSON parsers may differ on what is still JSON."""

    def refuse(name):
        raise ValueError(name)

    def overflow(text):
        return float(text) if math.isfinite(float(text)) else refuse(text)

    try:
        value = json.loads(body, parse_constant=refuse, parse_float=overflow)
    except (ValueError, RecursionError):
        return "null", None
    if not isinstance(value, dict):
        return "null", None
    request_id = value.get("id")
    if isinstance(request_id, str):
        request_id = request_id.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    good_id = isinstance(request_id, str | int) and not isinstance(request_id, bool)
    if value.get("jsonrpc") != "2.0" or not isinstance(value.get("method"), str):
        if "method" not in value and ("result" in value or "error" in value):
            return "none", None
        return ("either", request_id) if good_id else ("null", None)
    if "id" not in value:
        return "none", None
    return ("either", request_id) if good_id else ("null", None)


class Probe:
    """One connection of its own for one case."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.answers = []

    async def next(self):
        """The next message; None at the end. Every answer must be well formed."""
        try:
            header = await self.reader.readuntil(b"\r\n\r\n")
            body = await self.reader.readexactly(int(header.removeprefix(b"Content-Length: ")))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        answer = json.loads(body)
        assert answer["jsonrpc"] == "2.0"
        assert ("result" in answer) != ("error" in answer) or "method" in answer
        assert "Traceback" not in body.decode()
        self.answers.append(answer)
        return answer

    def has(self, kind, request_id):
        ids = [answer["id"] for answer in self.answers if "id" in answer]
        if kind == "null":
            return None in ids
        return any(i in (None, request_id) and i != "probe" for i in ids)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.writer.transport.abort()


PROBE = frame(b'{"jsonrpc":"2.0","id":"probe","method":"pillion/status"}')
OPENING = b"".join(
    frame(json.dumps({"jsonrpc": "2.0", **start}).encode())
    for start in (
        {"id": "opening", "method": "initialize", "params": {"capabilities": {}}},
        {"method": "initialized", "params": {}},
        {"method": "textDocument/didOpen", "params": {"textDocument": DOCUMENT}},
    )
)


async def check_body(probe, body, *, handshake):
    if handshake:
        probe.writer.write(OPENING)
        assert (await probe.next())["id"] == "opening"
        probe.answers.clear()
    probe.writer.write(frame(body) + PROBE)
    kind, request_id = expected_of(body)
    ended = alive = False
    while not (ended or (alive and (kind == "none" or probe.has(kind, request_id)))):
        answer = await probe.next()
        ended = answer is None
        alive = alive or (not ended and answer.get("id") == "probe")
    if ended:
        assert b"exit" in body, "the server hung up"
    own = [a for a in probe.answers if a.get("id", "probe") != "probe"]
    if kind == "none":
        assert own == []
    else:
        assert len(own) == 1, own


async def check_frames(probe, data, *, ends):
    """What is cut off, or cannot be told from noise, is answered or closed; never waited on."""
    probe.writer.write(data if ends else data + PROBE)
    if ends:
        probe.writer.write_eof()
    while (answer := await probe.next()) is not None:
        if answer.get("id") == "probe":
            break
    assert probe.answers or data.strip() == b""


@pytest.fixture
def bounded():
    """Run a check with a time only a hang can reach, and name the case that failed."""

    async def run(door, case, check, **options):
        probe = Probe(*await asyncio.open_unix_connection(door.path))
        try:
            async with asyncio.timeout(20), probe:
                await check(probe, case, **options)
        except BaseException as error:
            error.add_note(f"case: {case[:300]!r}")
            raise

    return run


async def still_serves(door):
    client = await door.client()
    client.open(URI, "x = ")
    answer = await client.inline(URI, 0, 4)
    assert answer["items"][0]["insertText"] == "1"


async def test_malformed_messages(serve, bounded):
    door = await serve("1")
    rng = random.Random(18)
    bodies = list(mutated_bodies(rng))
    assert len(bodies) >= 1000
    for number, body in enumerate(bodies):
        await bounded(door, body, check_body, handshake=number % 4 != 0)
    await still_serves(door)


async def test_malformed_frames(serve, bounded):
    door = await serve("1")
    rng = random.Random(19)
    for data, ends in broken_frames(rng):
        await bounded(door, data, check_frames, ends=ends)
    await still_serves(door)


async def test_messages_split_at_every_byte(serve):
    door = await serve("1")
    client = await door.client(handshake=False)
    answers = [client.expect(number) for number in range(3)]
    whole = b"".join(
        frame(b'{"jsonrpc":"2.0","id":%d,"method":"pillion/status","params":{}}' % number)
        for number in range(3)
    )
    for at in range(len(whole)):
        client.send_bytes(whole[at : at + 1])
        await asyncio.sleep(0)
    for answer in answers:
        assert (await answer)["state"] == "ready"
