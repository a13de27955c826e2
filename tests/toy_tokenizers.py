"""Small tokenizers of every supported kind, trained in memory on standard-library source.

Each is declared as in its family's tokenizer.json and trained once per session. All have `<|endoftext|>` and the FIM
markers of codespec's own pair.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import ByteLevel as ByteLevelProcessor
from tokenizers.processors import TemplateProcessing

from codespec.text.tokenizer import TextTokenizer

MARKERS = (
    "<|endoftext|>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|file_sep|>",
)
_TRAINED_ON = ("shlex", "textwrap", "bisect", "heapq", "string", "fnmatch", "queue", "sched", "pprint", "copy")
_HELD_OUT = ("calendar", "configparser", "difflib")
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def sample_texts() -> list[str]:
    """Return the training texts of the toy tokenizers."""
    return [_source_of(name) for name in _TRAINED_ON]


def held_out_texts() -> list[str]:
    """Return source text that is not in the training texts."""
    return [_source_of(name) for name in _HELD_OUT]


@cache
def toy_tokenizer(kind: str) -> TextTokenizer:
    """Return the text tokenizer of one of `KINDS`; its `<|endoftext|>` ends generation."""
    backend = toy_backend(kind)
    return TextTokenizer.from_backend(backend, eos_ids=frozenset({backend.get_vocab()["<|endoftext|>"]}))


@cache
def toy_backend(kind: str) -> Tokenizer:
    """Return the `tokenizers` object of one of `KINDS` or `REFUSED`."""
    return (KINDS | REFUSED)[kind]()


_PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]


def _source_of(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def _byte_level(vocab_size: int, *, split: str = "", trim: bool = False, seed_added: bool = True) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    if split:
        steps = [pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = ByteLevelProcessor(trim_offsets=trim)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(MARKERS) if seed_added else [],
        show_progress=False,
    )
    backend.train_from_iterator(sample_texts(), trainer)
    return backend


def _gpt2() -> Tokenizer:
    return _byte_level(1500, trim=True)


def _llama3() -> Tokenizer:
    backend = _byte_level(2200, split=_LLAMA3_SPLIT)
    backend.add_special_tokens(["<|begin_of_text|>"])
    bos = ("<|begin_of_text|>", backend.token_to_id("<|begin_of_text|>"))
    backend.post_processor = TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[bos])
    return backend


def _qwen() -> Tokenizer:
    """NFC, and markers declared as ordinary added tokens."""
    backend = _byte_level(1800, split=_LLAMA3_SPLIT, seed_added=False)
    backend.normalizer = normalizers.NFC()
    backend.add_tokens([AddedToken(name, special=False, normalized=False) for name in MARKERS])
    return backend


def _neox() -> Tokenizer:
    """Runs of spaces as added tokens that are plain text."""
    backend = _byte_level(1300, trim=True)
    backend.add_tokens([AddedToken(" " * width, special=False, normalized=True) for width in range(24, 1, -1)])
    return backend


def _bytes() -> Tokenizer:
    """One id per byte."""
    return _byte_level(256 + len(MARKERS))


def _with_pieces(document: dict[str, Any], pieces: list[str]) -> dict[str, Any]:
    """Put control and byte pieces before the trained ones, as in SentencePiece."""
    model = document["model"]
    names = pieces + [name for name in model["vocab"] if name not in pieces]
    model["vocab"] = {name: place for place, name in enumerate(names)}
    model.update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return document


def _sentencepiece(*, normalizer: Any, pre_tokenizer: Any, decoder: Any) -> Tokenizer:
    draft = Tokenizer(models.BPE())
    draft.pre_tokenizer = pre_tokenizers.Metaspace()
    draft.train_from_iterator(sample_texts(), trainers.BpeTrainer(vocab_size=1400, show_progress=False))
    backend = Tokenizer.from_str(json.dumps(_with_pieces(json.loads(draft.to_str()), _PIECES)))
    backend.normalizer, backend.decoder = normalizer, decoder
    if pre_tokenizer is None:
        backend = _without_pre_tokenizer(backend)
    else:
        backend.pre_tokenizer = pre_tokenizer
    return _with_controls(backend)


def _with_controls(backend: Tokenizer) -> Tokenizer:
    backend.add_special_tokens([*_PIECES[:3], *MARKERS])
    bos = ("<s>", backend.token_to_id("<s>"))
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[bos])
    return backend


def _without_pre_tokenizer(backend: Tokenizer) -> Tokenizer:
    return Tokenizer.from_str(json.dumps({**json.loads(backend.to_str()), "pre_tokenizer": None}))


def _sp_decoder() -> Any:
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence(steps)


def _llama2() -> Tokenizer:
    """Dummy prefix from the normalizer: a space before every text, even one that starts with a space."""
    steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    return _sentencepiece(
        normalizer=normalizers.Sequence(steps),
        pre_tokenizer=None,
        decoder=_sp_decoder(),
    )


def _metaspace(scheme: str, *, split: bool) -> Tokenizer:
    return _sentencepiece(
        normalizer=None,
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split),
        decoder=_sp_decoder(),
    )


def _unigram() -> Tokenizer:
    """Unigram from the pieces and frequencies of a BPE vocabulary, because the Unigram trainer is not deterministic."""
    source = _metaspace("always", split=True)
    counts = Counter(token for text in source.encode_batch(list(sample_texts())) for token in text.tokens)
    learned = [name for name in sorted(source.get_vocab()) if name not in {*_PIECES, *MARKERS}]
    total = sum(counts.values())
    # The sine breaks ties, which small counts would make frequent.
    scores = [(name, math.log((counts[name] + 0.5) / total) + 1e-4 * math.sin(i)) for i, name in enumerate(learned)]
    backend = Tokenizer(models.Unigram([(name, 0.0) for name in _PIECES] + scores, 0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return _with_controls(backend)


def _no_byte_fallback() -> Tokenizer:
    document = json.loads(_llama2().to_str())
    document["model"]["byte_fallback"] = False
    return Tokenizer.from_str(json.dumps(document))


def _nfkc() -> Tokenizer:
    backend = _gpt2()
    backend.normalizer = normalizers.NFKC()
    return backend


def _wordpiece() -> Tokenizer:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[UNK]"], show_progress=False)
    backend.train_from_iterator(sample_texts(), trainer)
    return backend


def _drops_spaces() -> Tokenizer:
    backend = _gpt2()
    steps = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return backend


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": _gpt2,
    "llama3": _llama3,
    "qwen": _qwen,
    "neox": _neox,
    "bytes": _bytes,
    "llama2": _llama2,
    "metaspace-first": lambda: _metaspace("first", split=False),
    "metaspace-never": lambda: _metaspace("never", split=False),
    "unigram": _unigram,
}
REFUSED: dict[str, Callable[[], Tokenizer]] = {
    "wordpiece": _wordpiece,
    "nfkc": _nfkc,
    "no-byte-fallback": _no_byte_fallback,
    "drops-spaces": _drops_spaces,
}
