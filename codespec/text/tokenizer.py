"""Convert between bytes and token ids of one model, without any clean-up.

`TextTokenizer` holds the bytes of every id, the set of control tokens and the encoder of ordinary text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

from codespec.errors import TokenizerError
from codespec.files import Unreadable, read_json, read_regular
from codespec.text.speller import Speller, any_of, token_bytes_table, trouble_pattern
from codespec.text.tokenizer_json import (
    Document,
    control_ids,
    declared_eos_ids,
    private_copy,
    read_facts,
    token_content,
    try_out,
)

MAX_TEMPLATE = 1 << 20  # bytes
HOLES, SPARE_IDS = 4, 1 << 16  # the largest id is less than HOLES * tokens + SPARE_IDS
MIN_REMEMBERED, MAX_REMEMBERED = 500, 64  # characters of a cached text; number of cached texts
_BPE_SETTINGS = ("unk_token", "fuse_unk", "byte_fallback", "ignore_merges")
_PROBES = (
    "def f(x):\n\treturn x != 1\n",
    "a = 1\r\n\r\nb = 2\r\n",
    "if x:\n        y  =   [ 1 , 2 ]    # two  \n\n\n",
    "  leading and trailing  ",
    "Caf\u00e9 Cafe\u0301 \uff26\uff35\uff2c\uff2c \ufb01 \u00b2 \u212b",  # NFC, NFD, NFKC-foldable characters
    "Upper LOWER Stra\u00dfe \u0130",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \u65e5\u672c\u8a9e don 't ' s . , !",
    "\u00a0\u2009x\u3000\ufeff",
)


class TextTokenizer:
    """Byte-exact tokenizer of one model.

    token_bytes        bytes of each id, b"" for control tokens and unused ids
    vocab, vocab_size  token string → id; the largest id + 1
    special_ids        all control tokens, including marker-like added tokens
    bos_ids            ids put before a text
    model_eos_ids      ids that end Hugging Face `generate`
    eos_ids            ids that end a completion: `model_eos_ids` and every control token, since none spells text
    config             contents of tokenizer_config.json
    typical_chars      characters of code per token
    dummy_prefix       whether a space may be put before a text
    """

    typical_chars = 3

    def __init__(self, document: Document, *, config: Mapping[str, Any], eos_ids: frozenset[int] | None = None) -> None:
        facts = read_facts(document)
        backend = _load_backend(document)
        self.config = config
        self.vocab = _vocabulary(backend, document)
        _demand_dense(self.vocab)
        self.special_ids = control_ids(document, self.vocab, config)
        self.token_bytes = token_bytes_table(self.vocab, document, facts, self.special_ids)
        self.vocab_size = len(self.token_bytes)
        named_eos = self.vocab.get(token_content(config.get("eos_token")))
        self.model_eos_ids = declared_eos_ids({}, {}, named_eos) if eos_ids is None else eos_ids
        self.bos_ids = _find_bos_ids(backend, document, self.vocab, config)
        self.dummy_prefix = facts.dummy_prefix != "never"
        self._facts = facts
        self._remembered: dict[str, tuple[int, ...]] = {}
        self._speller = Speller(backend, self.token_bytes, trouble_pattern(facts, self._control_names))
        self._refuse_if_lossy()

    @classmethod
    def from_folder(cls, path: Path) -> TextTokenizer:
        """Read a Hugging Face folder.

        Raises TokenizerError if tokenizer.json is missing, corrupt or cannot round-trip text.
        """
        file = path / "tokenizer.json"
        if not file.is_file():
            raise TokenizerError(f"{path} holds no tokenizer.json", "give a complete Hugging Face model folder")
        config = {**read_json(path / "special_tokens_map.json"), **read_json(path / "tokenizer_config.json")}
        config.update(_chat_template(path / "chat_template.jinja"))
        document = read_json(file)
        try_out(document.get("pre_tokenizer"))
        try:
            tokenizer = cls(document, config=config)
        except (AttributeError, LookupError, TypeError, ValueError) as error:  # a field has an unexpected type
            raise TokenizerError(f"{file} is corrupt ({type(error).__name__})", "fetch the model again") from error
        named_eos = tokenizer.vocab.get(token_content(config.get("eos_token")))
        generation, model = read_json(path / "generation_config.json"), read_json(path / "config.json")
        tokenizer.model_eos_ids = declared_eos_ids(generation, model, named_eos)
        return tokenizer

    @classmethod
    def from_backend(
        cls,
        backend: Tokenizer,
        *,
        eos_ids: frozenset[int] = frozenset(),
        config: Mapping[str, Any] | None = None,
    ) -> TextTokenizer:
        """Copy a tokenizer in memory, leaving the original unchanged.

        `eos_ids` becomes `model_eos_ids`; `config` stands in for the contents of its tokenizer_config.json.
        """
        return cls(json.loads(backend.to_str()), config=config or {}, eos_ids=eos_ids)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a completion: those that end the model's own generation, and every control token."""
        return self.special_ids | self.model_eos_ids

    def encode(self, text: str) -> list[int]:
        """Return the ids of ordinary text at the start of a sequence.

        Markers are encoded as text, and no special token is added. Apart from NFC and marker strings, the result equals
        the model's own encoding. Raises TokenizerError if the vocabulary has no token for a character.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode several texts in one call."""
        return self._spell_whole([self._with_dummy_prefix(text) for text in texts])

    def spell(self, pieces: Sequence[bytes]) -> list[list[int]]:
        """Return the ids of pieces from inside a longer text: no dummy prefix, no exception.

        Accepts any bytes: bytes that are not UTF-8 become single-byte tokens. If the vocabulary cannot spell something,
        the ids end before it: their bytes are always a prefix of the piece. No id is a control token.
        """
        return self._speller.spell(pieces)

    def encode_inside(self, text: str, *, begins: bool = False) -> list[int]:
        """Return the ids of ordinary text that follows other text: `encode` without a dummy prefix.

        With `begins`, the text gets the dummy prefix of a text of its own. Caches the latest long texts, because a
        suffix stays the same while the user types before it.
        """
        text = self._with_dummy_prefix(text) if begins else text
        if len(text) < MIN_REMEMBERED:
            return self._spell_whole([text])[0]
        ids = self._remembered.pop(text, None)
        if ids is None:
            ids = tuple(self._spell_whole([text])[0])
        self._remembered[text] = ids  # most recent last
        if len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return list(ids)

    def encode_with_specials(self, text: str, stand_ins: Mapping[str, str] | None = None) -> list[int]:
        """Return the ids of a ready-made prompt: its control tokens are parsed, none is added.

        `stand_ins` maps characters to substitutes that hide them from the parser (see `control_starts`); the original
        characters are restored before encoding.
        """
        back = str.maketrans({new: old for old, new in (stand_ins or {}).items()})
        if not self._control_spellings:
            return self.encode(text.translate(back))
        pieces = any_of(self._control_spellings).split(text)
        first, *others = [piece.translate(back) for piece in pieces[::2]]
        spelled = self._spell_whole([self._with_dummy_prefix(first), *others])
        ids = spelled[0]
        for name, following in zip(pieces[1::2], spelled[1:], strict=True):
            ids += [self._control_spellings[name], *following]
        return ids

    def decode_bytes(self, ids: Iterable[int], *, at_start: bool = False) -> bytes:
        """Return the bytes of ids, without control tokens.

        `at_start` drops the space of the dummy prefix at the start of a whole text. A Metaspace tokenizer encodes "x"
        and " x" alike there; the result is "x".
        """
        data = b"".join([self.token_bytes[number] for number in ids])
        return data[1:] if at_start and self.dummy_prefix and data.startswith(b" ") else data

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the ids' bytes and the control tokens; equal hashes mean the same vocabulary."""
        digest = hashlib.sha256(json.dumps([len(data) for data in self.token_bytes]).encode())
        digest.update(b"".join(self.token_bytes))
        digest.update(json.dumps(sorted((self.vocab[name], name) for name in self._control_names)).encode())
        return digest.hexdigest()

    @cached_property
    def control_starts(self) -> frozenset[str]:
        """First characters of all control tokens: text without any of them contains no control token."""
        return frozenset(name.strip()[0] for name in self._control_spellings)

    @cached_property
    def _control_names(self) -> list[str]:
        return list(compress(self.vocab, map(self.special_ids.__contains__, self.vocab.values())))

    @cached_property
    def _control_spellings(self) -> dict[str, int]:
        """Control tokens as prompts write them, with or without SentencePiece's leading marker."""
        spellings = {name: self.vocab[name] for name in self._control_names}
        bare = {name.removeprefix("\u2581"): number for name, number in spellings.items()}
        return {**bare, **spellings}

    def _with_dummy_prefix(self, text: str) -> str:
        scheme = self._facts.dummy_prefix
        starts_with_space = text.startswith((" ", self._facts.marker or " "))
        if not text or scheme == "never" or (scheme == "unless_space" and starts_with_space):
            return text
        return " " + text

    def _spell_whole(self, texts: Sequence[str]) -> list[list[int]]:
        pieces = [_to_bytes(text) for text in texts]
        spelled = self.spell(pieces)
        for piece, ids in zip(pieces, spelled, strict=True):
            end = sum([len(self.token_bytes[number]) for number in ids])
            if end != len(piece):
                raise TokenizerError(
                    f"the tokenizer cannot spell {_character_at(piece, end)!r}",
                    "leave it out, or use a model that has byte tokens",
                )
        return spelled

    def _refuse_if_lossy(self) -> None:
        probes = [probe.encode("utf-8") for probe in _PROBES]
        for probe, ids in zip(probes, self.spell(probes), strict=True):
            end = len(self.decode_bytes(ids))
            if end != len(probe):
                raise TokenizerError(
                    f"text does not survive this tokenizer, which loses {_character_at(probe, end)!r}",
                    "use a model whose tokenizer covers all bytes",
                )


def _find_bos_ids(
    backend: Tokenizer, document: Document, vocab: Mapping[str, int], config: Mapping[str, Any]
) -> tuple[int, ...]:
    """Return the ids put before a text, from tokenizer_config.json if declared, else from the post-processor."""
    if "add_bos_token" in config or "add_eos_token" in config:
        bos_id = vocab.get(token_content(config.get("bos_token")))
        return (bos_id,) if config.get("add_bos_token") and bos_id is not None else ()
    if document.get("post_processor") is None:
        return ()
    plain: list[int] = backend.encode("x", add_special_tokens=False).ids
    framed: list[int] = backend.encode("x", add_special_tokens=True).ids
    starts = (start for start in range(len(framed)) if framed[start : start + len(plain)] == plain)
    return tuple(framed[: next(starts, 0)])


def _chat_template(file: Path) -> dict[str, str]:
    """Read the chat template file, which overrides the one in tokenizer_config.json."""
    if not file.exists():
        return {}
    try:
        return {"chat_template": read_regular(file, MAX_TEMPLATE).decode("utf-8")}
    except Unreadable as error:
        raise TokenizerError(f"{file} can't be read ({error})", "fetch the model again") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{file} cannot be read as text", "fetch the model again") from error


def _to_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text has half a surrogate pair at character {error.start}", "send whole Unicode characters"
        ) from error


def _character_at(data: bytes, start: int) -> str:
    """Return the first whole character at or after a byte offset."""
    return data[start : start + 7].decode("utf-8", errors="ignore")[:1]


def _load_backend(document: Document) -> Tokenizer:
    try:
        backend = _make_backend(private_copy(document))
    except BaseException as error:  # bad documents raise bare Exception; panics are wider still
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        reason = " ".join(str(error).split())[:200]
        raise TokenizerError(f"tokenizer.json cannot be loaded ({reason})", "fetch the model again") from error
    backend.encode_special_tokens = True
    return backend


def _make_backend(document: Document) -> Tokenizer:
    """Return the library's tokenizer. It takes a large BPE vocabulary in half the time that its JSON would take."""
    model = document.get("model") or {}
    merges = model.get("merges")
    if model.get("type") != "BPE" or not merges or str in set(map(type, merges)):
        return Tokenizer.from_str(json.dumps(document, ensure_ascii=False))
    frame = {**document, "model": {**model, "vocab": {}, "merges": [], "unk_token": None}, "added_tokens": []}
    backend = Tokenizer.from_str(json.dumps(frame, ensure_ascii=False))
    settings = {name: model[name] for name in _BPE_SETTINGS if model.get(name) is not None}
    backend.model = models.BPE(vocab=model["vocab"], merges=list(map(tuple, merges)), **settings)
    backend.add_tokens([_added_token(token) for token in document["added_tokens"]])
    return backend


def _added_token(token: Mapping[str, Any]) -> AddedToken:
    flags = {name: token[name] for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return AddedToken(token["content"], **flags)


def _vocabulary(backend: Tokenizer, document: Document) -> dict[str, int]:
    """Return the id of each token, added or not. Where the document maps them, reading them back would be slower."""
    vocab = (document.get("model") or {}).get("vocab")
    if not isinstance(vocab, Mapping):
        return dict(backend.get_vocab(with_added_tokens=True))
    names = [token["content"] for token in document.get("added_tokens") or ()]
    added = {name: backend.token_to_id(name) for name in names}
    return {**vocab, **{name: number for name, number in added.items() if number is not None}}


def _demand_dense(vocab: Mapping[str, int]) -> None:
    """Raise TokenizerError if an id far exceeds the number of tokens: the byte table has one entry for each id."""
    last = max(vocab.values(), default=0)
    if last >= HOLES * len(vocab) + SPARE_IDS:
        raise TokenizerError(
            f"tokenizer.json has {len(vocab)} tokens, and one has the id {last}", "fetch the model again"
        )
