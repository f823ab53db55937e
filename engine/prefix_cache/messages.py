"""Messages to and from the prefix cache: frozen and plain, as in `engine.messages`."""

from __future__ import annotations

from msgspec import Struct


class CacheOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The doors' `[cache]` configuration.

    memory: bytes; 0 turns the whole cache off. dir: folder of the tier on disk; None has none.
    disk: bytes; None takes a tenth of what is free, at most 8 GiB; 0 has no tier on disk.
    """

    memory: int = 1 << 30
    dir: str | None = None
    disk: int | None = None


class Segment(Struct, frozen=True, kw_only=True):
    """A stretch of a prompt that is (part of) a file: from the segment before, or the beginning,
    up to prompt length `end`.

    path: what the workspace knows it by, another one for each file. content: hash of what the file
    held; opaque here, but the same for the same content.
    """

    end: int
    path: str
    content: bytes


class FileContent(Struct, frozen=True, kw_only=True):
    """What a file holds now: the hash that its segments have; empty if it is gone."""

    path: str
    content: bytes


class CacheUse(Struct, frozen=True, kw_only=True):
    """Prompt tokens of one reply that were not computed again.

    memory, disk: by where they were. kind: what made them known: ``keystroke``, ``turn``,
    ``file`` (the prompt differs in a file's segment) or ``restart`` (an earlier process computed
    them); empty without a hit. saved_ms: what computing them would have taken, as prompts took
    lately, less what fetching them took.
    """

    memory: int = 0
    disk: int = 0
    kind: str = ""
    saved_ms: float = 0.0


class CacheHits(Struct, frozen=True, kw_only=True):
    """Prompt tokens found since the start. tier: ``memory`` or ``disk``; kind: see `CacheUse`."""

    tier: str
    kind: str
    tokens: int


class CacheEvictions(Struct, frozen=True, kw_only=True):
    """Entries dropped since the start. reason: ``budget``, ``space`` (the disk is full),
    ``damaged``, ``foreign`` (another format), ``cleared``."""

    tier: str
    reason: str
    count: int


class CacheStatus(Struct, frozen=True, kw_only=True):
    """The prefix cache. Bytes are real ones; a budget of 0 is a tier that is off.

    nodes, snapshots: in memory. disk_state: ``off``, ``opening``, ``writing``, ``reading`` (another
    daemon writes) or ``read only``; disk_detail: why. saved_seconds: see `CacheUse`. shared_tokens:
    prompt tokens that a request got from one which was computing them at the time.
    """

    memory_bytes: int = 0
    memory_budget: int = 0
    nodes: int = 0
    snapshots: int = 0
    disk_bytes: int = 0
    disk_budget: int = 0
    disk_files: int = 0
    disk_folder: str = ""
    disk_state: str = "off"
    disk_detail: str = ""
    hits: tuple[CacheHits, ...] = ()
    evictions: tuple[CacheEvictions, ...] = ()
    saved_seconds: float = 0.0
    shared_tokens: int = 0


class CacheNode(Struct, frozen=True, kw_only=True):
    """A stretch of tokens that the cache knows, for people to look at.

    start, end: prompt lengths. hits: how often a request went on behind or inside it. text: how it
    begins. path: of the file it belongs to.
    """

    depth: int
    start: int
    end: int
    bytes: int
    snapshot: bool
    on_disk: bool
    hits: int
    locked: bool = False
    demoted: bool = False
    path: str = ""
    text: str = ""


class CacheReport(Struct, frozen=True, kw_only=True):
    """What became of a request to the cache itself.

    nodes: of ``tree`` and ``outline``, parents first. checked, damaged: files, of ``verify``;
    problem: what is wrong with the tree, empty if nothing. removed: entries, of ``clear``.
    """

    status: CacheStatus
    nodes: tuple[CacheNode, ...] = ()
    checked: int = 0
    damaged: int = 0
    problem: str = ""
    removed: int = 0


CACHE_ACTIONS = ("show", "tree", "outline", "clear", "verify")
"""What the cache itself can be asked for; ``outline`` is ``tree`` without what was written."""
