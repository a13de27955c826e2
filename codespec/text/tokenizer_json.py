"""Read a model's tokenizer.json, and load the private copy of the tokenizer with which codespec encodes text.

Codespec's private copy of a tokenizer neither loses nor adds bytes: the copy has no NFC normalizer, dummy prefix,
truncation, padding or dropout.

Control tokens are recognized by their declaration or by their form, such as `<|name|>`. The declaration alone is not
enough, because Qwen declares its FIM tokens as ordinary added tokens, just as GPT-NeoX and Gemma declare runs of spaces
and HTML tags.

Regular expressions are first tried on short texts in a separate process, because a match that backtracks forever holds
the interpreter's lock, ignores signals and would hang the daemon.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, models

from codespec.errors import TokenizerError
from codespec.files import parse_json

Document = Mapping[str, Any]
TokenizerKind = Literal["byte-level", "sentencepiece", "unigram"]
DummyPrefix = Literal["never", "always", "unless_space"]

_NESTED = ("normalizers", "pretokenizers", "decoders", "processors")
_LOSSY = frozenset(
    {"NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "BertNormalizer", "Nmt", "Precompiled"}
)
_BPE_SETTINGS = ("unk_token", "fuse_unk", "byte_fallback", "ignore_merges")
_HOLES, _SPARE_IDS = 4, 1 << 16  # the largest id is less than _HOLES * tokens + _SPARE_IDS
_MARKER = re.compile(
    r"""
      <[|\uff5c][^\s<>]*[|\uff5c]>                                  # <|fim_prefix|>, DeepSeek's wide bars
    | </?(?:fim|file|repo|gh|issue|jupyter|commit|empty)[-_]\w+>     # <fim_prefix>  <fim-suffix>  <file_sep>
    | <(?:reponame|filename|eos|bos|pad|unk|mask|s|/s|eot)>
    | <\[[\w-]+\]>                                                   # <[fim-prefix]>
    | ▁?<(?:PRE|SUF|MID|EOT)>
    | \[/?(?:PREFIX|SUFFIX|MIDDLE|INST|TOOL_CALLS|PAD|UNK|CLS|SEP|MASK)\]
    | </?(?:think|tool_\w+|start_of_turn|end_of_turn)>
    | <unused\d+>
    """,
    re.VERBOSE,
)
_FIRST = ("<", "[", "▁")  # first characters of markers, a quick test for the 150,000 tokens of a vocabulary
_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
SPLIT_TIMEOUT_S = 10.0  # to start a process and split the short texts, which takes real expressions hundredths
SHORT, LONG = 40, 4096  # lengths of repetitions: exponential time shows in short ones, cubic time in long ones
MAX_CHARACTERS = 32  # characters of the expressions that are tried too
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_LETTERS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Expressions that are not tried: those of the starter pair, and those of Qwen 2 and Llama 3, on which most models are
# based, in the spellings of both Hugging Face and GGUF readers.
KNOWN = frozenset(
    {
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+[ \t]*|[ \t]+(?!\S)|[ \t]+|\s+",
        *(words + number + _MARKS for words in (_WORDS, _LETTERS) for number in (r"|\p{N}", r"|\p{N}{1,3}")),
    }
)
END = "\u2028!"  # continues no repetition, so that the expression has to backtrack
_TRIED = "aA0 \n\t._-(\"'=/é中\u0301\U0001f600"


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """Properties of a tokenizer that decide which bytes a token id represents."""

    kind: TokenizerKind
    marker: str  # the character for a space in token strings, or "" if spaces are not replaced
    byte_fallback: bool
    dummy_prefix: DummyPrefix  # when the tokenizer puts a space before a text


def read_facts(document: Document) -> TokenizerFacts:
    """Raise TokenizerError if the kind of tokenizer is not supported or a normalizer changes text."""
    model = document.get("model") or {}
    kind = _kind(document, model)
    marker = "" if kind == "byte-level" else _marker(document)
    _refuse_lossy_normalizer(document, marker)
    return TokenizerFacts(
        kind=kind,
        marker=marker,
        byte_fallback=bool(model.get("byte_fallback")) or "ByteFallback" in _types(document, "decoder"),
        dummy_prefix=_dummy_prefix(document),
    )


def load_backend(document: Document) -> Tokenizer:
    """Load the private copy of a tokenizer. Raises TokenizerError if the library rejects the document."""
    try:
        backend = _make_backend(_private_copy(document))
    except BaseException as error:  # bad documents raise bare Exception; panics are not even an Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        reason = " ".join(str(error).split())[:200]
        raise TokenizerError(f"tokenizer.json cannot be loaded ({reason})", "download the model again") from error
    backend.encode_special_tokens = True
    return backend


def _make_backend(document: Document) -> Tokenizer:
    """Create the `tokenizers` library's object. A BPE vocabulary loads twice as fast from objects as from JSON."""
    model = document.get("model") or {}
    merges = model.get("merges")
    if model.get("type") != "BPE" or not merges or str in set(map(type, merges)):
        return Tokenizer.from_str(json.dumps(document, ensure_ascii=False))
    frame = {**document, "model": {**model, "vocab": {}, "merges": [], "unk_token": None}, "added_tokens": []}
    backend = Tokenizer.from_str(json.dumps(frame, ensure_ascii=False))
    settings = {name: model[name] for name in _BPE_SETTINGS if model.get(name) is not None}
    backend.model = models.BPE(vocab=model["vocab"], merges=list(map(tuple, merges)), **settings)
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    added = [(token["content"], {name: token[name] for name in flags}) for token in document["added_tokens"]]
    backend.add_tokens([AddedToken(content, **values) for content, values in added])
    return backend


def read_vocabulary(backend: Tokenizer, document: Document) -> dict[str, int]:
    """Return the id of each token, including added tokens. Raises TokenizerError if an id is far too large."""
    vocab = (document.get("model") or {}).get("vocab")
    if isinstance(vocab, Mapping):  # much faster than asking the library
        names = [token["content"] for token in document.get("added_tokens") or ()]
        added = {name: backend.token_to_id(name) for name in names}
        vocab = {**vocab, **{name: number for name, number in added.items() if number is not None}}
    else:
        vocab = dict(backend.get_vocab(with_added_tokens=True))
    last = max(vocab.values(), default=0)
    if last >= _HOLES * len(vocab) + _SPARE_IDS:
        raise TokenizerError(f"tokenizer.json has {len(vocab)} tokens but the id {last}", "download the model again")
    return vocab


def find_bos_ids(backend: Tokenizer, document: Document, vocab: Mapping[str, int], config: Document) -> tuple[int, ...]:
    """Return the ids to put before a text, as declared in tokenizer_config.json or else added by the post-processor."""
    if "add_bos_token" in config or "add_eos_token" in config:
        bos_id = vocab.get(token_content(config.get("bos_token")))
        return (bos_id,) if config.get("add_bos_token") and bos_id is not None else ()
    if document.get("post_processor") is None:
        return ()
    plain: list[int] = backend.encode("x", add_special_tokens=False).ids
    framed: list[int] = backend.encode("x", add_special_tokens=True).ids
    starts = (start for start in range(len(framed)) if framed[start : start + len(plain)] == plain)
    return tuple(framed[: next(starts, 0)])


def _private_copy(document: Document) -> dict[str, Any]:
    changed = dict(document)
    changed.update(truncation=None, padding=None)
    changed["normalizer"] = _changed(document.get("normalizer"), _without_invention)
    changed["pre_tokenizer"] = _changed(document.get("pre_tokenizer"), _without_prefix_space)
    changed["added_tokens"] = [_as_text_or_special(token) for token in document.get("added_tokens") or ()]
    if (document.get("model") or {}).get("dropout") is not None:
        changed["model"] = {**document["model"], "dropout": None}
    return changed


def _as_text_or_special(token: Document) -> dict[str, Any]:
    changed = {**token, "special": is_control(token["content"], declared=bool(token.get("special")))}
    if not changed["special"]:
        changed.update(lstrip=False, rstrip=False)
    return changed


def _components(part: Document | None) -> Iterator[Document]:
    """Yield the leaves of a normalizer, pre-tokenizer, decoder or post-processor, with sequences flattened."""
    if part is None:
        return
    for key in _NESTED:
        if key in part:
            for inner in part[key]:
                yield from _components(inner)
            return
    yield part


def _types(document: Document, section: str) -> list[str]:
    return [str(part["type"]) for part in _components(document.get(section))]


def _kind(document: Document, model: Document) -> TokenizerKind:
    name = str(model.get("type") or ("BPE" if "merges" in model else "unknown"))
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix") or name == "WordPiece":
        raise TokenizerError(f"the {name} tokenizer loses spaces", "use a model with a byte-level tokenizer")
    sections = ("normalizer", "pre_tokenizer", "decoder")
    if any("ByteLevel" in _types(document, section) for section in sections) and name in ("BPE", "WordLevel"):
        return "byte-level"
    if name == "BPE":
        return "sentencepiece"
    if name == "Unigram":
        return "unigram"
    raise TokenizerError(
        f"{name} tokenizers are not supported", "use a model with a byte-level, SentencePiece or Unigram tokenizer"
    )


def _marker(document: Document) -> str:
    for section in ("pre_tokenizer", "decoder"):
        for part in _components(document.get(section)):
            if part["type"] == "Metaspace":
                return str(part.get("replacement", "▁"))
    for part in _components(document.get("normalizer")):
        if part["type"] == "Replace" and part["pattern"] == {"String": " "}:
            return str(part["content"])
    return ""


def _refuse_lossy_normalizer(document: Document, marker: str) -> None:
    for part in _components(document.get("normalizer")):
        if not _keeps_text(part, marker):
            raise TokenizerError(f"the normalizer {part['type']} changes text", "use a model with another tokenizer")


def _keeps_text(part: Document, marker: str) -> bool:
    """Return whether a normalizer preserves text in the private copy of a tokenizer, which omits NFC."""
    if part["type"] == "Replace":
        return bool(part["pattern"] == {"String": " "} and part["content"] == marker)
    if part["type"] == "Prepend":
        return part["prepend"] in (marker, " ")
    return part["type"] not in _LOSSY


def _dummy_prefix(document: Document) -> DummyPrefix:
    if "Prepend" in _types(document, "normalizer"):
        return "always"
    for part in _components(document.get("pre_tokenizer")):
        adds = part.get("add_prefix_space", True)  # documents older than `prepend_scheme` have it in Metaspace too
        scheme = part.get("prepend_scheme") or ("always" if adds else "never")
        if (part["type"] == "Metaspace" and scheme != "never") or (part["type"] == "ByteLevel" and adds):
            return "unless_space"
    return "never"


def _changed(part: Document | None, change: Callable[[Document], Document | None]) -> Document | None:
    """Apply `change` to each leaf of a normalizer or pre-tokenizer, and remove leaves for which the result is None."""
    if part is None:
        return None
    key = next((key for key in _NESTED if key in part), "")
    if not key:
        return change(part)
    kept = [inner for inner in (_changed(step, change) for step in part[key]) if inner is not None]
    return {**part, key: kept} if kept else None


def _without_invention(part: Document) -> Document | None:
    return None if part["type"] in ("NFC", "Prepend") else part


def _without_prefix_space(part: Document) -> Document:
    if part["type"] == "Metaspace":
        return {**{key: part[key] for key in part if key != "add_prefix_space"}, "prepend_scheme": "never"}
    return {**part, "add_prefix_space": False} if part["type"] == "ByteLevel" else part


def is_marker(content: str) -> bool:
    """Return whether a string looks like a control token of a common model, such as `<|fim_prefix|>`."""
    text = content.strip()
    return text[:1] in _FIRST and _MARKER.fullmatch(text) is not None


def is_control(content: str, *, declared: bool) -> bool:
    """Return whether an added token is a control token, not text; `declared` is the token's field `special`."""
    return bool(content.strip()) and (declared or is_marker(content))


def control_ids(document: Document, vocabulary: Mapping[str, int], config: Document) -> frozenset[int]:
    """Return the ids of all control tokens and of the unknown token; none of these ids represents text."""
    added = {token["content"]: bool(token.get("special")) for token in document.get("added_tokens") or ()}
    model = document.get("model") or {}
    firsts = {first for first in {name[:1] for name in vocabulary} if first in _FIRST or first.isspace()}
    names = {name for name in vocabulary if name[:1] in firsts and is_marker(name) and name not in added}
    names -= _learned(model, names)
    names |= {name for name, declared in added.items() if is_control(name, declared=declared)}
    names |= {token_content(config.get(name)) for name in _NAMED} & added.keys()
    if isinstance(model.get("unk_token"), str):
        names.add(model["unk_token"])
    if isinstance(model.get("unk_id"), int):
        names.add(model["vocab"][model["unk_id"]][0])
    return frozenset(vocabulary[name] for name in names if name in vocabulary)


def token_content(value: Any) -> str:
    """Return the text of a token given as a string or as an object with `content`; "" if absent."""
    if isinstance(value, Mapping):
        return str(value.get("content", ""))
    return value if isinstance(value, str) else ""


def declared_eos_ids(generation: Document, model: Document, eos_id: int | None) -> frozenset[int]:
    """Return the end-of-text ids from the generation config, else from the model's config, else `eos_id`."""
    inner = model.get("text_config")
    for source in (generation, model, inner if isinstance(inner, Mapping) else {}):
        value = source.get("eos_token_id")
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            if not all(isinstance(number, int) and number >= 0 for number in ids):
                raise TokenizerError("eos_token_id is neither an id nor a list of ids", "download the model again")
            return frozenset(ids)
    return frozenset() if eos_id is None else frozenset({eos_id})


def _learned(model: Document, names: set[str]) -> set[str]:
    """Return the names that BPE merges produce, which are tokens learned from text and not control tokens."""
    if not names or model.get("ignore_merges"):
        return names
    pairs = model.get("merges") or ()
    if str in set(map(type, pairs)):  # in older documents
        pairs = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in pairs]
    return names.intersection(map("".join, pairs))


def try_out(pre_tokenizer: Any) -> None:
    """Raise TokenizerError if a pre-tokenizer crashes on short test texts or takes more than SPLIT_TIMEOUT_S."""
    if KNOWN.issuperset(_expressions(pre_tokenizer)):
        return
    command = [sys.executable, "-P", "-m", "codespec.text.tokenizer_json"]
    try:
        done = subprocess.run(
            command, input=json.dumps(pre_tokenizer).encode(), capture_output=True, timeout=SPLIT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TokenizerError("the tokenizer's regular expression is too slow", "choose another model") from error
    if done.returncode:
        raise TokenizerError("the tokenizer's regular expression fails on short text", "choose another model")


def texts(pre_tokenizer: Any) -> Iterator[str]:
    """Yield test texts that repeat one or two characters, some of them taken from the pre-tokenizer's expressions."""
    named = "".join(dict.fromkeys(character for expression in _expressions(pre_tokenizer) for character in expression))
    characters = [*dict.fromkeys(_TRIED + named[:MAX_CHARACTERS])]
    end = END + named[:MAX_CHARACTERS]  # a match is not attempted if the text lacks a required character
    for place, character in enumerate(characters):
        for other in ("", characters[place - 1], "a"):
            yield (character + other) * SHORT + end
        yield character * LONG + end


def _expressions(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        pattern = part.get("pattern")
        if isinstance(pattern, Mapping) and isinstance(pattern.get("Regex"), str):
            yield pattern["Regex"]
        for inner in part.values():
            yield from _expressions(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _expressions(inner)


def main() -> None:
    """Split the short test texts with a pre-tokenizer that is read from stdin."""
    if hasattr(signal, "alarm"):
        signal.alarm(2 * int(SPLIT_TIMEOUT_S))  # in case the parent process is gone
    pre_tokenizer = parse_json(sys.stdin.buffer.read())
    model = {"type": "BPE", "vocab": {}, "merges": []}
    tokenizer: Any = Tokenizer.from_str(json.dumps({"version": "1.0", "model": model, "pre_tokenizer": pre_tokenizer}))
    for text in texts(pre_tokenizer):
        tokenizer.pre_tokenizer.pre_tokenize_str(text)


if __name__ == "__main__":
    main()
