"""Convert a GGUF file's vocabulary to a tokenizer.json and tokenizer_config.json that split text as `llama.cpp` does.

Each family of vocabularies is tested against token ids from `llama.cpp`. Other vocabularies are rejected, because a
GGUF file does not show whether a split is correct. Two deliberate differences from `llama.cpp` preserve the bytes of a
text: text that looks like a control token is encoded as text, and a literal U+2581 is not treated as a space. Where
user-defined tokens overlap, the leftmost longest token is matched, as in SentencePiece; `llama.cpp` first matches the
longest token in the whole text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from codespec.backends.gguf.header import Header, broken
from codespec.errors import ModelError
from codespec.text.tokenizer_json import is_marker

Json = dict[str, Any]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MARKER = "\u2581"  # SentencePiece's space
MAX_CHARACTERS = 1024  # per token, because every split of a token is tried
# Common names of control tokens that end a text, of which files declare only one or two by id.
ENDS = frozenset(
    {
        *("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_text|>", "<end_of_turn>"),
        *("</s>", "<eos>", "<EOT>", "<|EOT|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    }
)
DECLARED_ENDS = ("eos", "eot", "eom")

_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_BLANKS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(digits: str, marks: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*", letters: str = r"\p{L}+") -> str:
    """Return the split pattern of Llama 3, Qwen 2 or a similar model, given the patterns of digits and punctuation."""
    return _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?" + letters + "|" + digits + "|" + marks + _BLANKS


def _cased(digits: str, endings: str = "") -> str:
    """Return the split pattern of Tekken or GPT-4o, which also splits a word before a capital letter."""
    start, upper, lower = r"[^\r\n\p{L}\p{N}]?", r"((?=[\p{L}])([^a-z]))", r"((?=[\p{L}])([^A-Z]))"
    words = f"{start}{upper}*{lower}+{endings}|{start}{upper}+{lower}*{endings}"
    return words + "|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _BLANKS


@dataclass(frozen=True, slots=True)
class Family:
    """Byte-level vocabularies, known in GGUF as `names`, that split text with the regexes `splits`, in order.

    whole_words  whether a word that equals a token is encoded without merges
    begins       whether a text begins with the BOS token by default
    """

    splits: tuple[str, ...]
    names: tuple[str, ...]
    whole_words: bool = False
    begins: bool = False


FAMILIES = (
    Family(
        (_GPT2,),
        ("gpt-2", "phi-2", "mpt", "olmo", "mellum", "exaone4", "granite-docling", "a.x-4.0", "gigachat", "trillion"),
    ),
    Family(
        (r"\p{N}", _GPT2),
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    Family((_words(r"\p{N}"),), ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "kormo", "f2llmv2")),
    Family((_words(r"\p{N}{1,3}"),), ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"), True, True),
    Family((_words(r"\p{N}{1,3}"),), ("dbrx", "smaug-bpe")),
    Family((_words(r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+"),), ("seed-coder",)),
    Family((_cased(r"\p{N}"),), ("tekken",), True, True),
    Family((_cased(r"\p{N}{1,3}", _CONTRACTIONS + "?"),), ("gpt-4o", "llama4", "kanana2")),
    Family((r"\p{N}{1,3}", _words(r"\p{N}+")), ("minicpm5",), True),
    Family((_words(r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", r"[\p{L}\p{M}]+"),), ("qwen35",)),
    Family(
        # The script range also contains white space, which is excluded.
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一가-\ud7ff&&[^\\s]]+", r"\p{N}"),
        ("deepseek-coder",),
    ),
    Family((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"), ("default",)),
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Contents of tokenizer.json (`document`) and tokenizer_config.json (`settings`), and token ids for config.json."""

    document: Json
    settings: Json
    eos_ids: tuple[int, ...]
    bos_id: int | None
    pad_id: int | None


def read_vocabulary(header: Header) -> Vocabulary:
    """Read a file's tokenizer. Raise ModelError if the tokenizer is missing or can't be reproduced exactly."""
    tokens, kinds = _tokens(header)
    model = header.get("tokenizer.ggml.model", str, "")
    if model == "gpt2":
        document, begins = _byte_level(header, tokens, kinds)
    elif model == "llama":
        document, begins = _sentencepiece(header, tokens, kinds), True
    else:
        raise ModelError(
            f"{header.file} has the tokenizer {model or 'unknown'!r}, which can't be converted",
            "use the model's folder in the Hugging Face layout",
        )
    ids = {name: _token_id(header, name, len(tokens)) for name in ("bos", "unknown", "padding", *DECLARED_ENDS)}
    begins = header.get("tokenizer.ggml.add_bos_token", bool, begins)
    if begins:
        if (bos := ids["bos"]) is None:
            raise ModelError(f"{header.file} requires a BOS token but has none", "export the model with a BOS token")
        document["post_processor"] = _begin_with(tokens[bos], bos)
    named = (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding"))
    settings: Json = {key: tokens[number] for key, name in named if (number := ids[name]) is not None}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": begins, "add_eos_token": False}
    settings["clean_up_tokenization_spaces"] = False
    template = header.get("tokenizer.chat_template", str, "")
    if template:
        settings["chat_template"] = template
    ends = {ids[name] for name in DECLARED_ENDS}
    ends |= {number for number, token in enumerate(tokens) if token in ENDS and kinds[number] == CONTROL}
    eos = tuple(sorted(number for number in ends if number is not None))
    return Vocabulary(document, settings, eos, ids["bos"], ids["padding"])


def _tokens(header: Header) -> tuple[list[str], list[int]]:
    tokens, kinds = header.get("tokenizer.ggml.tokens", list, []), header.get("tokenizer.ggml.token_type", list, [])
    if not tokens:
        raise ModelError(f"{header.file} has no vocabulary", "use a file that contains the whole model")
    kinds = kinds or [NORMAL] * len(tokens)
    if len(kinds) != len(tokens) or set(map(type, tokens)) != {str}:
        raise broken(header.file, "its tokens and their types do not match")
    if len(set(tokens)) != len(tokens):
        raise broken(header.file, "two of its tokens are equal")
    if max(map(len, tokens)) > MAX_CHARACTERS:
        raise broken(header.file, "one of its tokens is too long")
    return tokens, kinds


def _token_id(header: Header, name: str, size: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    number = header.get(key, int, None)
    if number is not None and number >= size:
        raise broken(header.file, f"{key} is beyond its vocabulary")
    return number


def _byte_level(header: Header, tokens: Sequence[str], kinds: Sequence[int]) -> tuple[Json, bool]:
    family = _family(header)
    listed = header.get("tokenizer.ggml.merges", list, [])
    if not set(map(type, listed)) <= {str}:
        raise broken(header.file, "its merges are not strings")
    merges = [tuple(merge.split(" ")) for merge in listed]
    made = list(map("".join, merges))
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    if UNUSED in kinds:
        for token in {token for token, kind in zip(tokens, kinds, strict=True) if kind == UNUSED}.difference(made):
            del vocab[token]
    parts = set(chain.from_iterable(merges))
    if not set(map(len, merges)) <= {2} or not vocab.keys() >= parts or not all(map(vocab.__contains__, made)):
        raise broken(header.file, "its merges do not fit its vocabulary")
    splits = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
        for split in family.splits
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    document = _document(_bpe(vocab, merges, ignore_merges=family.whole_words), _added(tokens, kinds, vocab))
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*splits, level]}
    document["decoder"] = {**level, "use_regex": True}
    return document, family.begins


def _family(header: Header) -> Family:
    name = header.get("tokenizer.ggml.pre", str, "")
    for family in FAMILIES:
        if name in family.names:
            return family
    if not name:
        raise ModelError(
            f"{header.file} does not specify how its tokenizer splits text (tokenizer.ggml.pre)",
            "use a file that was converted after May 2024",
        )
    raise ModelError(
        f"{header.file} has the pre-tokenizer {name!r}, which can't be reproduced exactly",
        "use the model's folder in the Hugging Face layout",
    )


def _sentencepiece(header: Header, tokens: Sequence[str], kinds: Sequence[int]) -> Json:
    prefix = header.get("tokenizer.ggml.add_space_prefix", bool, True)
    scores = header.get("tokenizer.ggml.scores", list, [])
    if len(scores) != len(tokens):
        raise broken(header.file, "its vocabulary has no scores")
    kept = {token: n for n, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != UNUSED}
    matched = {token: number for token, number in kept.items() if MARKER not in token or kinds[number] != USER_DEFINED}
    added = _added(tokens, kinds, matched)
    if prefix and any(not token["special"] and not is_marker(token["content"]) for token in added):
        raise ModelError(
            f"{header.file} has a tokenizer that inserts spaces after added tokens, which is not supported",
            "use the model's folder in the Hugging Face layout",
        )
    merges = _scored_merges(header, kept, kinds, scores)
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == UNKNOWN), None)
    document = _document(_bpe(kept, merges, byte_fallback=True, fuse_unk=True, unk_token=unknown), added)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": MARKER}
    first = [{"type": "Prepend", "prepend": MARKER}] if prefix else []
    document["normalizer"] = {"type": "Sequence", "normalizers": [*first, spaces]}
    back: list[Json] = [{"type": "Replace", "pattern": {"String": MARKER}, "content": " "}, {"type": "ByteFallback"}]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    document["decoder"] = {"type": "Sequence", "decoders": [*back, {"type": "Fuse"}, *strip]}
    return document


def _scored_merges(
    header: Header, vocab: Mapping[str, int], kinds: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Return all merges of two tokens into a third, highest score first, so that BPE reproduces merging by score.

    Merges into user-defined tokens are omitted, because these tokens are matched before any merge. User-defined tokens
    with a space marker are not matched beforehand, so merges into such tokens are included.
    """
    by_score: dict[float, list[str]] = {}
    for token, number in vocab.items():
        merged = kinds[number] == NORMAL or (kinds[number] == USER_DEFINED and MARKER in token)
        if merged and any(_splits(token, vocab)):
            by_score.setdefault(scores[number], []).append(token)
    merges: list[tuple[str, str]] = []
    for _, tokens in sorted(by_score.items(), reverse=True):
        merges += _splits(tokens[0], vocab) if len(tokens) == 1 else _equal_merges(header, tokens, vocab)
    return merges


def _equal_merges(header: Header, tokens: Sequence[str], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the merges into tokens of equal score, which `llama.cpp` applies from left to right.

    A list of merges can express the order from left to right in two cases: for tokens that repeat one character, if
    every length from two on exists, and for merges that can't overlap, because no token is first in one merge and
    second in another.
    """
    runs: dict[str, list[str]] = {}
    others: list[tuple[str, str]] = []
    for token in tokens:
        if len(set(token)) == 1:
            runs.setdefault(token[0], []).append(token)
        else:
            others += _splits(token, vocab)
    complete = all(sorted(map(len, same)) == list(range(2, len(same) + 2)) for same in runs.values())
    parts = {part for same in runs.values() for part in (same[0][0], *same)}
    firsts, seconds = {first for first, _ in others}, {second for _, second in others}
    if not complete or (firsts | parts) & seconds or parts & firsts:
        raise ModelError(
            f"{header.file} gives several tokens the same score, so its tokenizer can't be reproduced exactly",
            "use the model's folder in the Hugging Face layout",
        )
    longest_first = sorted((token for same in runs.values() for token in same), key=len, reverse=True)
    return [(token[1:], token[0]) for token in longest_first] + others


def _splits(token: str, vocab: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for at in range(1, len(token)):
        if token[:at] in vocab and token[at:] in vocab:
            yield token[:at], token[at:]


def _added(tokens: Sequence[str], kinds: Sequence[int], vocab: Mapping[str, int]) -> list[Json]:
    """Return the added tokens of tokenizer.json: control tokens are special, and user-defined tokens are not."""
    wanted = {CONTROL: True, UNKNOWN: True, USER_DEFINED: False}
    plain: Json = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": number, "content": token, **plain, "special": wanted[kind]}
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in wanted and vocab.get(token) == number and token
    ]


def _bpe(vocab: Mapping[str, int], merges: Sequence[tuple[str, ...]], **settings: Any) -> Json:
    plain: Json = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    plain |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {"type": "BPE", **plain, **settings, "vocab": dict(vocab), "merges": list(merges)}


def _document(model: Json, added: list[Json]) -> Json:
    plain: Json = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None}
    return {**plain, "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model}


def _begin_with(token: str, number: int) -> Json:
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    single = [first, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }
