"""Bytes to bodies."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.lsp.framing import FrameReader, FramingError, frame


async def read_all(data, *, pieces=(), **limits):
    """Every body in `data`, and the FramingErrors between them; cut into `pieces`."""
    reader = asyncio.StreamReader()

    async def feed():
        at = 0
        for size in pieces:
            reader.feed_data(data[at : at + size])
            at += size
            await asyncio.sleep(0)
        reader.feed_data(data[at:])
        reader.feed_eof()

    feeding = asyncio.create_task(feed())
    frames, found = FrameReader(reader, **limits), []
    while True:
        try:
            body = await frames.next()
        except FramingError as error:
            found.append(error.message)
            if not error.resync:
                break
        else:
            if body is None:
                break
            found.append(body)
    await feeding
    return found


@given(st.lists(st.binary(max_size=50), max_size=4), st.lists(st.integers(1, 30), max_size=20))
def test_frames_survive_any_split(bodies, pieces):
    data = b"".join(map(frame, bodies))
    assert asyncio.run(read_all(data, pieces=pieces)) == bodies


@pytest.mark.parametrize(
    "header",
    [
        b"content-length: 2\r\n",
        b"CONTENT-LENGTH:2\r\n",
        b"Content-Length : 2 \r\n",
        b"Content-Length: 2\n",
        b"Content-Length: 2\r\nContent-Length: 2\r\n",
        b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length: 2\r\n",
        b'X-Odd: a:b\r\ncontent-Length: 2\r\nContent-type: x; charset="UTF8"\r\n',
        b"\r\n\r\nContent-Length: 2\r\n",
    ],
)
async def test_headers_may_be_written_in_any_of_these_ways(header):
    end = b"\n" if header == b"Content-Length: 2\n" else b"\r\n"
    assert await read_all(header + end + b"{}") == [b"{}"]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"Content-Type: x\r\n\r\n{}", "no Content-Length"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "no Content-Length"),
        (b"Content-Length: -2\r\n\r\n{}", "not one number of bytes: '-2'"),
        (b"Content-Length: +2\r\n\r\n{}", "not one number"),
        (b"Content-Length: 1_0\r\n\r\n{}", "not one number"),
        (b"Content-Length: \r\n\r\n{}", "not one number"),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "not one number"),
        (b"Content-Length: 99999999999999999999\r\n\r\n{}", "not one number"),
        (b"Content-Length: 101\r\n\r\n{}", "101 bytes is over the limit of 100"),
        (b"Content-Length: 20\r\n\r\n{}", "ended inside a body: 2 of 20"),
        (b"Content-Len", "ended inside a header"),
        (b"x" * 70, "over the limit of 64 bytes"),
        (b"A: " + b"x" * 70 + b"\r\nContent-Length: 2\r\n\r\n{}", "over the limit of 64"),
    ],
)
async def test_a_broken_header_is_an_error_and_never_a_wait(data, complaint):
    (found,) = await read_all(data, max_header=64, max_body=100)
    assert complaint in found


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"junk", "not a header line: 'junk'"),
        (b"Content-Type: x; charset=latin-1", "charset must be utf-8"),
    ],
)
async def test_what_can_be_skipped_costs_one_frame_only(line, complaint):
    data = line + b"\r\nContent-Length: 2\r\n\r\n{}" + frame(b"[]")
    complained, body = await read_all(data)
    assert complaint in complained
    assert body == b"[]"


async def test_a_body_may_be_as_long_as_the_limit():
    assert await read_all(frame(b"x" * 100), max_body=100) == [b"x" * 100]
