"""Train, cut, save and load the tokenizers of the models that ship.

The target's is a byte-level BPE in which a line break with its indent is one token. The drafter's resembles
SentencePiece: a dummy prefix, `▁` for spaces, byte fallback for the rest. They differ on purpose, because only bytes
pass between the models.

A drafter with its target's own tokens needs one forward per target token and only a small output head. Its tokenizer is
the target's, cut to the tokens that a corpus uses most; removed tokens are spelled with shorter ones.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from codespec.errors import TrainingError
from codespec_lab.corpus.documents import Document

END = "<|endoftext|>"
FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"
FIM_PAD = "<|fim_pad|>"
FILE_SEPARATOR = "<|file_sep|>"
SPECIALS = (END, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, FIM_PAD, FILE_SEPARATOR)

# A word includes one leading symbol or space; digits form groups of three; a line break includes the blank lines before
# it and the indent after it.
TARGET_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+[ \t]*|[ \t]+(?!\S)|[ \t]+|\s+"
# Only for learning merges: line breaks are separate, runs of spaces are words, a word includes one space.
DRAFTER_PATTERN = r"\n|\r|\t+|▁+(?=▁)|▁?\p{L}+|\p{N}{1,3}|▁?[^\s\p{L}\p{N}▁]+|▁+|\s"
BATCH = 256  # texts encoded at once
Merge = tuple[str, str]


def sample_texts(documents: Iterable[Document], budget: int) -> list[str]:
    """Return about `budget` characters of whole documents, chosen by a seeded shuffle."""
    pool = list(documents)
    random.Random(0).shuffle(pool)
    chosen, total = [], 0
    for document in pool:
        if total >= budget:
            break
        chosen.append(document.text)
        total += len(document.text)
    return chosen


def train_target_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE without a prefix space and without offset trimming."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(TARGET_PATTERN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    plain = processors.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False)
    tokenizer.post_processor = plain
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_drafter_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a BPE with byte fallback and a dummy prefix, in the layout of Llama 2."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(DRAFTER_PATTERN), behavior="isolated")
    fixed = [*SPECIALS, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(fixed), limit_alphabet=160, max_token_length=24, show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    return _sentencepiece_like(fixed, learned)


def _sentencepiece_like(fixed: list[str], learned: dict[str, Any]) -> Tokenizer:
    ordered = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    vocab = {token: index for index, token in enumerate([*fixed, *ordered])}
    merges = [tuple(merge) for merge in learned["merges"]]
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


def without_dummy_prefix(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy that encodes text as within a line, without a `▁` before it."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    if isinstance(copy.normalizer, normalizers.Sequence):
        copy.normalizer = normalizers.Replace(" ", "▁")
    return copy


def tokenizer_config(max_length: int) -> dict[str, object]:
    """Return the `tokenizer_config.json` of both tokenizers."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": FIM_PAD,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "codespec_fim_orders": ["psm", "spm"],
    }


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.dumps(tokenizer_config(max_length), indent=1)
    (folder / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read a tokenizer back. Raises TrainingError if it is missing."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TrainingError(f"There is no tokenizer in {folder}; run `codespec train tokenizers` first.")
    return Tokenizer.from_file(str(path))


def keep_most_used(tokenizer: Tokenizer, texts: Sequence[str], size: int) -> Tokenizer:
    """Return a tokenizer of `size` tokens: SPECIALS, all bytes, and the tokens most frequent in `texts`.

    Each kept token brings the shorter tokens that its merges need. Raise TrainingError if `tokenizer` is not BPE or the
    texts use too few tokens.
    """
    saved = json.loads(tokenizer.to_str())
    if saved["model"]["type"] != "BPE":
        raise TrainingError("Only a byte-level BPE tokenizer can be cut to its most used tokens: give another model.")
    merges: list[Merge] = [tuple(merge) for merge in saved["model"]["merges"]]
    parts = {left + right: (left, right) for left, right in merges}
    ids: dict[str, int] = saved["model"]["vocab"]
    added = {str(token["content"]) for token in saved["added_tokens"]}
    kept = dict.fromkeys(token for token in ids if token not in parts and token not in added)
    for token in _by_use(tokenizer, texts):
        needed = [part for part in _closure(token, parts) if part not in kept] if token and token in parts else []
        if len(kept) + len(needed) <= size - len(SPECIALS):
            kept |= dict.fromkeys(needed)
    if len(kept) + len(SPECIALS) < size:
        raise TrainingError(f"The corpus uses {len(kept)} of the tokens: fewer than the required {size}.")
    ordered = [*SPECIALS, *sorted(kept, key=ids.__getitem__)]
    saved["model"]["vocab"] = {token: number for number, token in enumerate(ordered)}
    saved["model"]["merges"] = [list(merge) for merge in merges if "".join(merge) in kept]
    saved["added_tokens"], saved["normalizer"] = [], None
    cut = Tokenizer.from_str(json.dumps(saved))
    cut.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return cut


def _by_use(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str | None]:
    """Return all tokens of the texts, the most frequent first; ties are ordered by id."""
    used: Counter[int] = Counter()
    for start in range(0, len(texts), BATCH):
        for encoding in tokenizer.encode_batch(texts[start : start + BATCH], add_special_tokens=False):
            used.update(encoding.ids)
    ranked = sorted(used, key=lambda token: (-used[token], token))
    return [tokenizer.id_to_token(token) for token in ranked]


def _closure(token: str, parts: Mapping[str, Merge]) -> Iterator[str]:
    """Yield the token and all tokens that its merges need."""
    yield token
    for part in parts.get(token, ()):
        yield from _closure(part, parts)
