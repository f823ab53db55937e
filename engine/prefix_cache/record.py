"""One file of the prefix cache: the rows of a stretch of tokens, and maybe the state at its end.

The files are safetensors (huggingface.co/docs/safetensors): eight bytes with the header's length,
the header in JSON, the arrays one behind the other. Its metadata hold the format, the fingerprint,
the position, and a SHA-256 over the whole file with that checksum's digits as zeros. A record names
the tokens before it by a hash, so it is of use wherever exactly these stand, and to nobody else.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from engine.prefix_cache.radix_tree import Tokens

# Part of the name of what is stored: another one is never read.
FORMAT = "pillion-prefix-1"
NO_CHECKSUM = "0" * 64
MOST_HEADER_BYTES = 16 << 20
# safetensors' names, and bytes an element.
SIZES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "I8": 1, "U32": 4, "I32": 4, "BOOL": 1, "U16": 2}


class DamagedRecord(Exception):
    """The file is not what was written; the message says how."""


class Array(NamedTuple):
    """dtype: safetensors' name. data: little-endian, row by row."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


@dataclass(frozen=True)
class Head:
    """What tells whether a record is of use. before: hash of the tokens in front of it; after: of
    these and its own (`PrefixHash`).

    tokens: (end - start,) uint32, those of the record itself. snapshot: whether it has the state
    at `end`.
    """

    fingerprint: str
    before: str
    after: str
    tokens: Tokens
    start: int
    snapshot: bool

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def name(self) -> str:
        """Of its file: the same for the same content."""
        digest = hashlib.blake2b(digest_size=16)
        where = f"{self.fingerprint} {self.before} {self.after} {self.start} {self.snapshot} "
        digest.update(where.encode())
        digest.update(self.tokens.astype("<u4").tobytes())
        return f"{self.fingerprint[:16]}-{digest.hexdigest()}.safetensors"


@dataclass(frozen=True)
class Record:
    """arrays: by name, opaque here. facts: what else the arrays' owner wants to know."""

    head: Head
    arrays: Mapping[str, Array]
    facts: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        return int(self.head.tokens.nbytes) + sum(len(a.data) for a in self.arrays.values())


class PrefixHash:
    """Hashes of longer and longer beginnings of one prompt."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens.astype("<u4")
        self._digest = hashlib.blake2b(digest_size=16)
        self._done = 0

    def at(self, length: int) -> str:
        """Of the first `length` tokens, no less than at the last call."""
        self._digest.update(self._tokens[self._done : length].tobytes())
        self._done = length
        return self._digest.hexdigest()


def encode(record: Record) -> list[bytes | memoryview]:
    """The file's bytes, in pieces."""
    head = record.head
    tokens = Array("U32", (len(head.tokens),), head.tokens.astype("<u4").tobytes())
    arrays = {"tokens": tokens, **record.arrays}
    header: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "fingerprint": head.fingerprint,
            "before": head.before,
            "after": head.after,
            "start": str(head.start),
            "snapshot": str(int(head.snapshot)),
            "facts": json.dumps(dict(record.facts)),
            "checksum": NO_CHECKSUM,
        }
    }
    offset = 0
    for name, array in arrays.items():
        end = offset + len(array.data)
        header[name] = {
            "dtype": array.dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = [array.data for array in arrays.values()]
    digest = hashlib.sha256(len(text).to_bytes(8, "little") + text)
    for piece in data:
        digest.update(piece)
    text = _with_checksum(text, NO_CHECKSUM, digest.hexdigest())
    return [len(text).to_bytes(8, "little") + text, *data]


def _with_checksum(text: bytes, old: str, new: str) -> bytes:
    return text.replace(f'"checksum":"{old}"'.encode(), f'"checksum":"{new}"'.encode(), 1)


def read_head(stream: BinaryIO) -> Head:
    """The head alone, unchecked but for its form: a damaged one is found out when it is read."""
    header, _ = _read_header(stream)
    metadata, tokens = header["__metadata__"], header.get("tokens", {})
    try:
        begin, end = tokens["data_offsets"]
        raw = stream.read(end) if begin == 0 else b""
        if len(raw) != end or end % 4:
            raise DamagedRecord("its tokens are cut off")
        return Head(
            metadata["fingerprint"],
            metadata["before"],
            metadata["after"],
            np.frombuffer(raw, "<u4").astype(np.uint32),
            int(metadata["start"]),
            metadata["snapshot"] == "1",
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedRecord(f"header: {error!r}") from error


def _read_header(stream: BinaryIO) -> tuple[dict[str, Any], bytes]:
    size = stream.read(8)
    length = int.from_bytes(size, "little")
    if len(size) < 8 or not 0 < length <= MOST_HEADER_BYTES:
        raise DamagedRecord("no header")
    text = stream.read(length)
    try:
        header = json.loads(text)
    except ValueError as error:
        raise DamagedRecord("its header is no JSON") from error
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if len(text) < length or not isinstance(metadata, dict):
        raise DamagedRecord("header")
    if metadata.get("format") != FORMAT:
        raise DamagedRecord("another format")
    return header, text


def decode(raw: bytes) -> Record:
    """The record in a whole file. Raises DamagedRecord unless every bit is as it was written."""
    stream = io.BytesIO(raw)
    header, text = _read_header(stream)
    checksum = header["__metadata__"].get("checksum")
    plain = _with_checksum(text, str(checksum), NO_CHECKSUM)
    digest = hashlib.sha256(raw[:8] + plain)
    body = memoryview(raw)[8 + len(text) :]
    digest.update(body)
    if digest.hexdigest() != checksum:
        raise DamagedRecord("checksum")
    stream.seek(0)
    head = read_head(stream)
    arrays = {}
    for name, entry in header.items():
        if name in ("__metadata__", "tokens"):
            continue
        begin, end = entry["data_offsets"]
        array = Array(entry["dtype"], tuple(entry["shape"]), body[begin:end])
        if len(array.data) != SIZES[array.dtype] * math.prod(array.shape):
            raise DamagedRecord(f"{name}: {len(array.data)} bytes")
        arrays[name] = array
    return Record(head, arrays, json.loads(header["__metadata__"]["facts"]))
