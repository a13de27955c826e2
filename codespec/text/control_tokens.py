"""Tell which vocabulary entries are control tokens rather than text, from their declaration and spelling.

Reads the configuration files beside a tokenizer. The spelling matters because Qwen declares its FIM tokens as
ordinary added tokens, and GPT-NeoX and Gemma declare runs of spaces and HTML tags the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from codespec.errors import TokenizerError
from codespec.files import TooLarge, Unreadable, read_json_file

Json = Mapping[str, Any]

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
_FIRST = ("<", "[", "▁")  # characters that markers begin with: few tokens do, and a vocabulary has 150,000
_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def is_marker(content: str) -> bool:
    """Return whether a string is spelled like the control tokens of common models."""
    text = content.strip()
    return text[:1] in _FIRST and _MARKER.fullmatch(text) is not None


def is_control(content: str, *, declared: bool) -> bool:
    """Return whether an added token is a control token rather than text; white space is always text."""
    return bool(content.strip()) and (declared or is_marker(content))


def control_ids(document: Json, vocabulary: Mapping[str, int], config: Json) -> frozenset[int]:
    """Return the ids that spell no text: control-like tokens, added or not, and the unknown token."""
    added = {token["content"]: bool(token.get("special")) for token in document.get("added_tokens") or ()}
    model = document.get("model") or {}
    firsts = {first for first in {name[:1] for name in vocabulary} if first in _FIRST or first.isspace()}
    names = {name for name in vocabulary if name[:1] in firsts and is_marker(name) and name not in added}
    names -= _learned(model, names)
    names |= {name for name, declared in added.items() if is_control(name, declared=declared)}
    names |= set(named_tokens(config)) & added.keys()
    names |= set(_unknown_token(model))
    return frozenset(vocabulary[name] for name in names if name in vocabulary)


def named_tokens(config: Json) -> Iterable[str]:
    """Yield the special tokens that a tokenizer_config.json names."""
    for name in _NAMED:
        content = token_content(config.get(name))
        if content:
            yield content


def token_content(value: Any) -> str:
    """Return the text of a token given as a string or as an object with `content`; "" if absent."""
    if isinstance(value, Mapping):
        return str(value.get("content", ""))
    return value if isinstance(value, str) else ""


def declared_eos_ids(generation: Json, model: Json, eos_id: int | None) -> frozenset[int]:
    """Return the ids that end `generate`: the generation config's, else the model's, else the tokenizer's."""
    inner = model.get("text_config")
    for source in (generation, model, inner if isinstance(inner, Mapping) else {}):
        value = source.get("eos_token_id")
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            if not all(isinstance(number, int) and number >= 0 for number in ids):
                raise TokenizerError("eos_token_id is neither an id nor a list of ids", "fetch the model again")
            return frozenset(ids)
    return frozenset() if eos_id is None else frozenset({eos_id})


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file, {} if the file is missing; raise TokenizerError if it is unreadable."""
    if not path.exists():
        return {}
    try:
        value = read_json_file(path)
    except (TooLarge, Unreadable) as error:
        raise TokenizerError(f"{path} can't be read ({error})", "fetch the model again") from error
    except (OSError, ValueError) as error:
        fix = "fetch the model again, or save the file as UTF-8 without a byte-order mark"
        raise TokenizerError(f"{path} cannot be read as JSON", fix) from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} holds no JSON object", "fetch the model again")
    return value


def _learned(model: Json, names: set[str]) -> set[str]:
    """Return the names that a merge produces from text: words of the corpus, not control tokens."""
    if not names or model.get("ignore_merges"):
        return names
    pairs = model.get("merges") or ()
    if str in set(map(type, pairs)):  # as older documents write them
        pairs = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in pairs]
    return names.intersection(map("".join, pairs))


def _unknown_token(model: Json) -> Iterable[str]:
    if isinstance(model.get("unk_token"), str):
        yield model["unk_token"]
    if isinstance(model.get("unk_id"), int):
        yield model["vocab"][model["unk_id"]][0]
