"""Read the properties that a tokenizer.json declares and make the private copy that codespec encodes with.

The private copy drops everything that would lose or invent bytes. It has no NFC normalizer and no dummy prefix (a
text starts with an ordinary space instead); truncation, padding and dropout are off. Marker-like added tokens count
as special, and source text stays text.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from codespec.errors import TokenizerError
from codespec.text.control_tokens import is_control

Document = Mapping[str, Any]
Kind = Literal["byte-level", "sentencepiece", "unigram"]
DummyPrefix = Literal["never", "always", "unless_space"]

_NESTED = ("normalizers", "pretokenizers", "decoders", "processors")
_LOSSY = frozenset(
    {"NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "BertNormalizer", "Nmt", "Precompiled"}
)


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """Declared properties that decide how ids and bytes correspond.

    `marker` stands for a space inside token strings ("" if none does). `dummy_prefix` says when a space is put before
    the text. `normalizer` is a readable name for the pair report.
    """

    kind: Kind
    marker: str
    byte_fallback: bool
    dummy_prefix: DummyPrefix
    normalizer: str
    trims_offsets: bool


def read_facts(document: Document) -> TokenizerFacts:
    """Read the facts; raise TokenizerError if the kind or a normalizer cannot round-trip text to the byte."""
    model = document.get("model") or {}
    kind = _kind(document, model)
    marker = "" if kind == "byte-level" else _marker(document)
    _refuse_lossy_normalizer(document, marker)
    return TokenizerFacts(
        kind=kind,
        marker=marker,
        byte_fallback=bool(model.get("byte_fallback")) or "ByteFallback" in _types(document, "decoder"),
        dummy_prefix=_dummy_prefix(document),
        normalizer="+".join(_types(document, "normalizer")),
        trims_offsets=any(
            part.get("trim_offsets", True)
            for part in _components(document.get("post_processor"))
            if part["type"] in ("ByteLevel", "RobertaProcessing")
        ),
    )


def private_copy(document: Document) -> dict[str, Any]:
    """Return the private copy: it encodes ordinary text only, byte for byte, without a dummy prefix."""
    changed = dict(document)
    changed.update(truncation=None, padding=None)
    changed["normalizer"] = _without(document.get("normalizer"), {"NFC", "Prepend"})
    changed["pre_tokenizer"] = _without_prefix_space(document.get("pre_tokenizer"))
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


def _kind(document: Document, model: Document) -> Kind:
    name = str(model.get("type") or ("BPE" if "merges" in model else "unknown"))
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix") or name == "WordPiece":
        raise TokenizerError(
            f"the {name} tokenizer marks words instead of keeping spaces, so text does not survive it",
            "use a model with a byte-level or SentencePiece tokenizer",
        )
    sections = ("normalizer", "pre_tokenizer", "decoder")
    if any("ByteLevel" in _types(document, section) for section in sections) and name in ("BPE", "WordLevel"):
        return "byte-level"
    if name == "BPE":
        return "sentencepiece"
    if name == "Unigram":
        return "unigram"
    raise TokenizerError(
        f"{name} tokenizers are not supported", "use a model with a byte-level, SentencePiece or Unigram one"
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
            raise TokenizerError(
                f"the tokenizer's normalizer {part['type']} changes text, so code would not survive byte for byte",
                "use a model whose tokenizer keeps text as it is",
            )


def _keeps_text(part: Document, marker: str) -> bool:
    """Return whether a normalizer keeps text: NFC, which the private copy drops, or SentencePiece's space marking."""
    if part["type"] == "Replace":
        return bool(part["pattern"] == {"String": " "} and part["content"] == marker)
    if part["type"] == "Prepend":
        return part["prepend"] in (marker, " ")
    return part["type"] not in _LOSSY


def _dummy_prefix(document: Document) -> DummyPrefix:
    if "Prepend" in _types(document, "normalizer"):
        return "always"
    for part in _components(document.get("pre_tokenizer")):
        if part["type"] == "Metaspace" and _metaspace_scheme(part) != "never":
            return "unless_space"
        if part["type"] == "ByteLevel" and part.get("add_prefix_space", True):
            return "unless_space"
    return "never"


def _metaspace_scheme(part: Document) -> str:
    """Return the prepend scheme, also for documents older than the field `prepend_scheme`."""
    return str(part.get("prepend_scheme") or ("always" if part.get("add_prefix_space", True) else "never"))


def _without(part: Document | None, dropped: set[str]) -> Document | None:
    """Return the normalizer without the named steps, or None if none is left."""
    if part is None or part.get("type") in dropped:
        return None
    if "normalizers" not in part:
        return part
    kept = [inner for inner in (_without(step, dropped) for step in part["normalizers"]) if inner is not None]
    return {**part, "normalizers": kept} if kept else None


def _without_prefix_space(part: Document | None) -> Document | None:
    if part is None:
        return None
    changed = copy.deepcopy(dict(part))
    for leaf in _components(changed):
        if isinstance(leaf, dict) and leaf["type"] == "Metaspace":
            leaf.pop("add_prefix_space", None)
            leaf["prepend_scheme"] = "never"
        elif isinstance(leaf, dict) and leaf["type"] == "ByteLevel":
            leaf["add_prefix_space"] = False
    return changed
