"""Small tokenizers of the kinds that model folders hold, trained on a few lines."""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from engine.text.codec import TextCodec

CodecFactory = Callable[..., TextCodec]
LINES = [
    "def add(a, b):\n    return a + b\n",
    "for line in lines:\n        print(line)\n",
    "The quick brown fox jumps over the lazy dog. Déjà vu, naïve café; 你好，世界 😀👩‍👩‍👧.",
] * 4
CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]


def _added() -> list[AddedToken]:
    return [AddedToken(text, special=True, normalized=False) for text in CONTROL]


def byte_level() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=_added(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer.to_str()


def sentence_piece() -> str:
    """As Llama 2: a space is ▁, unknown characters become bytes, decoding strips one space."""
    tokens = ["<unk>", *CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    tokens += [chr(code) for code in range(0x21, 0x7F)]
    merges = [("▁", "a"), ("▁", "d"), ("e", "r"), ("▁", "▁")]
    tokens += ["".join(pair) for pair in merges]
    vocab = {text: token for token, text in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(_added())
    return tokenizer.to_str()


def unigram() -> str:
    """Its control tokens are also pieces of the model, so plain text could find them there."""
    pieces: list[tuple[str, float]] = [("<unk>", 0.0)]
    pieces += [(text, -1.0) for text in CONTROL]
    letters = dict.fromkeys("▁\n\t" + "".join(chr(code) for code in range(0x21, 0x7F)) + "éàï")
    pieces += [(letter, -5.0) for letter in letters]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(_added())
    return tokenizer.to_str()


def word_piece() -> str:
    vocab = {"[UNK]": 0, "[CLS]": 1} | {
        text: 2 + index for index, text in enumerate(["de", "##f", "add", "##ing", "(", ")", "a"])
    }
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("[UNK]", "[CLS]")])
    return tokenizer.to_str()
