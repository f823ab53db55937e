"""What a tokenizer.json says: its tokenizer, its control tokens and the bytes of each id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec
from tokenizers import Tokenizer

from engine.text.seals import Seals

# Structure that the doors parse later (reasoning, tool calls): control tokens, but with text.
VISIBLE = re.compile(
    r"</?(?:think|tools?|tool_calls?|tool_responses?|arg_key|arg_value)>"
    r"|</?(?:minimax|seed|longcat):?_?(?:think|tool_call)>"
    r"|</?longcat_(?:think|tool_call|arg_key|arg_value)>"
    r'|<\|"\|>'
    r"|<(?:start|end)_function_(?:call|response)>|<\|?tool_call\|?>|<escape>"
    r"|<\|(?:channel|message|constrain|call|start|end|python_tag|think:start|think:end)\|>"
    r"|<\|(?:open|close|sep)\|>|<\|channel>|<channel\|>|<\|tool_calls?_\w+\|>"
    r"|\[/?(?:THINK|TOOL_CALLS|ARGS|CALL_ID)\]"
)
# Turn, fill-in-the-middle, file and end markers that some tokenizers do not mark special.
SILENT = re.compile(
    r"<[|｜]?(?:fim[_▁-]\w+|repo_?name|reponame|file_sep|filename|im_start|im_end|endoftext"
    r"|end_of_text|eot_id|mask|pad)[|｜]?>"
)
# Some vocabularies list runs of white space and HTML tags as added tokens. They are ordinary words.
ORDINARY = re.compile(
    r"[\s▁]+|</?(?:table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|sub|sup|strong|em"
    r"|b|i|u|s|code|p|a|ul|ol|li|img|br|hr|div|span)>|\w+"
)
END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>")


class Vocabulary:
    """source: the text of a tokenizer.json.

    tokenizer: as shipped, so it parses control tokens. sealed: the same, but its control tokens
    answer to their seals only. controls: spelling of each control token to its id.
    """

    def __init__(self, source: str) -> None:
        self._data: dict[str, Any] = msgspec.json.decode(source)
        self.tokenizer = Tokenizer.from_str(source)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        added = self._data.get("added_tokens") or []
        self.added: dict[str, int] = {token["content"]: token["id"] for token in added}
        self.controls = {
            token["content"]: token["id"]
            for token in added
            if token["special"] or not ORDINARY.fullmatch(token["content"])
        }
        self.control_ids = frozenset(self.controls.values())
        self.silent_ids = frozenset(
            token["id"]
            for token in added
            if token["content"] in self.controls
            and not VISIBLE.fullmatch(token["content"])
            and (token["special"] or SILENT.fullmatch(token["content"]))
        )
        self.seals = Seals(self.controls)
        self.sealed, self._renumbered = self._seal_tokenizer()
        self.size: int = self.tokenizer.get_vocab_size(with_added_tokens=True)

    def _seal_tokenizer(self) -> tuple[Tokenizer, dict[int, int]]:
        """The sealed tokenizer, and its ids that differ from the shipped ones (usually none)."""
        names = {text: self.seals.of(token) for text, token in self.controls.items()}
        data = dict(self._data, truncation=None, padding=None, post_processor=None)
        data["added_tokens"] = [
            token | {"content": names.get(token["content"], token["content"])}
            for token in data.get("added_tokens") or []
        ]
        # A model that lists a control token as a word (Unigram does) could find it in plain text.
        model = dict(data["model"])
        vocab = model.get("vocab")
        if isinstance(vocab, Mapping):
            model["vocab"] = {names.get(text, text): token for text, token in vocab.items()}
        elif isinstance(vocab, list):
            model["vocab"] = [[names.get(text, text), score] for text, score in vocab]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        data["model"] = model
        sealed = Tokenizer.from_str(msgspec.json.encode(data).decode())
        renumbered = {}
        for text, token in self.controls.items():
            ours = sealed.token_to_id(names[text])
            assert ours is not None, f"{text} was added"
            if ours != token:
                renumbered[ours] = token
        return sealed, renumbered

    def encode_sealed(self, text: str) -> list[int]:
        """Ids of `text`, in which only seals are control tokens. Neither BOS nor EOS is added."""
        return self.encode_spans(text)[0]

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """`encode_sealed`, with the character span of each id."""
        encoding = self.sealed.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self._renumbered:
            ids = [self._renumbered.get(token, token) for token in ids]
        return ids, encoding.offsets

    @cached_property
    def begin(self) -> tuple[int, ...]:
        """Ids that the tokenizer itself puts before a text (BOS), if it does so."""
        ids = self.tokenizer.encode("").ids
        return tuple(ids[:1]) if ids and ids[0] in self.control_ids else ()

    @cached_property
    def byte_table(self) -> list[bytes] | None:
        """The bytes of each id, or None when the decoder is not of a kind that has such a table.

        Silent control tokens have none; visible ones have those of their spelling.
        """
        to_bytes = _token_to_bytes(self._data.get("decoder") or {})
        if to_bytes is None:
            return None
        table = [b""] * self.size
        for text, token in self.tokenizer.get_vocab(with_added_tokens=True).items():
            if token < self.size and token not in self.silent_ids:
                table[token] = text.encode() if token in self.control_ids else to_bytes(text)
        return table

    @cached_property
    def strips_first_space(self) -> bool:
        """Whether decoding drops one leading space (SentencePiece)."""
        return any(
            part["type"] in ("Strip", "Metaspace") for part in _parts(self._data.get("decoder"))
        )

    def find(self, *spellings: str) -> tuple[int, ...]:
        """Ids of those `spellings` that are added tokens."""
        return tuple(self.added[text] for text in spellings if text in self.added)


def _parts(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if not decoder:
        return []
    if decoder["type"] == "Sequence":
        return list(decoder["decoders"])
    return [decoder]


def _token_to_bytes(decoder: dict[str, Any]) -> Any:
    kinds = {part["type"] for part in _parts(decoder)}
    if kinds and kinds <= {"ByteLevel", "Fuse"}:
        return _byte_level
    if kinds & {"Metaspace", "ByteFallback"} and kinds <= {
        "Metaspace",
        "Replace",
        "ByteFallback",
        "Fuse",
        "Strip",
    }:
        return _sentence_piece
    return None


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes (openai/gpt-2, encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet |= {chr(256 + rank): byte for rank, byte in enumerate(others)}
    return alphabet


_ALPHABET = _byte_level_alphabet()


def _byte_level(text: str) -> bytes:
    try:
        return bytes([_ALPHABET[character] for character in text])
    except KeyError:
        return text.encode()


def _sentence_piece(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace("▁", " ").encode()
