"""Convert between text and the token ids of one model, byte for byte.

Most text is encoded by the `tokenizers` library, and the bytes of the resulting tokens are always compared with the
text. Strings that the library would not encode as plain text are split or encoded byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, compress, pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from codespec.errors import TokenizerError
from codespec.files import Unreadable, read_json, read_regular
from codespec.text.tokenizer_json import (
    Document,
    TokenizerFacts,
    control_ids,
    declared_eos_ids,
    find_bos_ids,
    load_backend,
    read_facts,
    read_vocabulary,
    token_content,
    try_out,
)

MAX_TEMPLATE = 1 << 20  # bytes
MIN_REMEMBERED, MAX_REMEMBERED = 500, 64  # characters of a cached text; number of cached texts
_PROBES = (
    "def f(x):\n\treturn x != 1\n",
    "a = 1\r\n\r\nb = 2\r\n",
    "if x:\n        y  =   [ 1 , 2 ]    # two  \n\n\n",
    "  leading and trailing  ",
    "Caf\u00e9 Cafe\u0301 \uff26\uff35\uff2c\uff2c \ufb01 \u00b2 \u212b",  # characters that NFC or NFKC would change
    "Upper LOWER Stra\u00dfe \u0130",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \u65e5\u672c\u8a9e don 't ' s . , !",
    "\u00a0\u2009x\u3000\ufeff",
)
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NOT_UTF8 = "[\udc80-\udcff]+"  # invalid bytes, as `surrogateescape` decodes them
# A few short texts are encoded one by one: waking the library's threads for a batch takes longer (lab/LOG.md).
_FEW, _SHORT = 8, 256  # texts; characters of a text


class TextTokenizer:
    """Byte-exact tokenizer of one model."""

    typical_chars = 3  # characters of code per token

    def __init__(self, document: Document, *, config: Mapping[str, Any], eos_ids: frozenset[int] = frozenset()) -> None:
        facts = read_facts(document)
        self._backend = load_backend(document)
        self.config = config  # content of tokenizer_config.json
        self.vocab = read_vocabulary(self._backend, document)  # token string → id
        self.special_ids = control_ids(document, self.vocab, config)
        self.token_bytes = _token_bytes(self.vocab, document, facts, self.special_ids)
        self.vocab_size = len(self.token_bytes)  # the largest id + 1
        self.model_eos_ids = eos_ids  # ids at which Hugging Face's `generate` stops
        self.bos_ids = find_bos_ids(self._backend, document, self.vocab, config)  # before the first token of a text
        self.dummy_prefix = facts.dummy_prefix != "never"  # whether a space may be put before a text
        self._facts = facts
        self._encode_long = lru_cache(MAX_REMEMBERED)(lambda text: tuple(self._spell_whole([text])[0]))
        single = [number for number, data in enumerate(self.token_bytes) if len(data) == 1]
        self._byte_ids = {self.token_bytes[number][0]: number for number in reversed(single)}  # the lowest id wins
        self._trouble = _trouble_pattern(facts, self._control_names)
        self._refuse_if_lossy()

    @classmethod
    def from_folder(cls, path: Path) -> TextTokenizer:
        """Read the tokenizer of a Hugging Face folder.

        Raises TokenizerError if tokenizer.json is missing or corrupt, or if the tokenizer does not preserve text.
        """
        file = path / "tokenizer.json"
        if not file.is_file():
            raise TokenizerError(f"{path} contains no tokenizer.json", "specify a complete Hugging Face model folder")
        config = {**read_json(path / "special_tokens_map.json"), **read_json(path / "tokenizer_config.json")}
        config.update(_chat_template(path / "chat_template.jinja"))
        document = read_json(file)
        try_out(document.get("pre_tokenizer"))
        try:
            tokenizer = cls(document, config=config)
        except (AttributeError, LookupError, TypeError, ValueError) as error:  # a field has an unexpected type
            raise TokenizerError(f"{file} is corrupt ({type(error).__name__})", "download the model again") from error
        named_eos = tokenizer.vocab.get(token_content(config.get("eos_token")))
        generation, model = read_json(path / "generation_config.json"), read_json(path / "config.json")
        tokenizer.model_eos_ids = declared_eos_ids(generation, model, named_eos)
        return tokenizer

    @classmethod
    def from_backend(
        cls, backend: Tokenizer, *, eos_ids: frozenset[int] = frozenset(), config: Mapping[str, Any] | None = None
    ) -> TextTokenizer:
        """Copy a tokenizer of the `tokenizers` library, with `model_eos_ids` and `config` as given by the caller."""
        return cls(json.loads(backend.to_str()), config=config or {}, eos_ids=eos_ids)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a completion, which are `model_eos_ids` and all control tokens."""
        return self.special_ids | self.model_eos_ids

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a whole text, without special tokens; control tokens in the text are encoded as text.

        The ids equal those of the model's own tokenizer, unless the text contains a control token or the model's
        tokenizer applies NFC. Raises TokenizerError if the vocabulary cannot encode a character of the text.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, encoded as by `encode`."""
        return self._spell_whole([self._with_dummy_prefix(text) for text in texts])

    def spell(self, pieces: Sequence[bytes]) -> list[list[int]]:
        """Return the token ids of each piece of a longer text, without a dummy prefix and without control tokens.

        Invalid UTF-8 is encoded as byte tokens. If the vocabulary has no token for a byte, the ids end before that
        byte.
        """
        batch: list[str] = []
        plans = [self._plan(piece.decode("utf-8", "surrogateescape"), batch) for piece in pieces]
        encoded = self._encode(batch)
        return [self._matching(self._assemble(plan, encoded), piece) for plan, piece in zip(plans, pieces, strict=True)]

    def encode_inside(self, text: str, *, begins: bool = False) -> list[int]:
        """Return the token ids of a text that follows other text; if `begins` is true, a dummy prefix is added."""
        # Long texts are cached, because the text after the cursor rarely changes while the user types.
        text = self._with_dummy_prefix(text) if begins else text
        return list(self._encode_long(text)) if len(text) >= MIN_REMEMBERED else self._spell_whole([text])[0]

    def encode_with_specials(self, text: str, stand_ins: Mapping[str, str] | None = None) -> list[int]:
        """Return the token ids of a ready-made prompt, in which control tokens are written as text.

        `stand_ins` maps characters that are plain text to their substitutes in `text`, so that no part of a message is
        mistaken for a control token (see `control_starts`).
        """
        back = str.maketrans({new: old for old, new in (stand_ins or {}).items()})
        if not self._control_spellings:
            return self.encode(text.translate(back))
        pieces = _any_of(self._control_spellings).split(text)
        first, *others = [piece.translate(back) for piece in pieces[::2]]
        spelled = self._spell_whole([self._with_dummy_prefix(first), *others])
        ids = spelled[0]
        for name, following in zip(pieces[1::2], spelled[1:], strict=True):
            ids += [self._control_spellings[name], *following]
        return ids

    def decode_bytes(self, ids: Iterable[int], *, at_start: bool = False) -> bytes:
        """Return the bytes of token ids, without control tokens; if `at_start`, the space of a dummy prefix is removed.

        If a tokenizer encodes "x" and " x" alike at the start of a text, the result is "x".
        """
        data = b"".join([self.token_bytes[number] for number in ids])
        return data[1:] if at_start and self.dummy_prefix and data.startswith(b" ") else data

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the bytes of all tokens and of the control tokens."""
        digest = hashlib.sha256(json.dumps([len(data) for data in self.token_bytes]).encode())
        digest.update(b"".join(self.token_bytes))
        digest.update(json.dumps(sorted((self.vocab[name], name) for name in self._control_names)).encode())
        return digest.hexdigest()

    @cached_property
    def control_starts(self) -> frozenset[str]:
        """The first characters of all control tokens; text without any of them contains no control token."""
        return frozenset(name.strip()[0] for name in self._control_spellings)

    @cached_property
    def _control_names(self) -> list[str]:
        return list(compress(self.vocab, map(self.special_ids.__contains__, self.vocab.values())))

    @cached_property
    def _control_spellings(self) -> dict[str, int]:
        """Map the names of control tokens to their ids, with and without SentencePiece's leading space marker."""
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
                lost = _character_at(piece, end)
                raise TokenizerError(f"the tokenizer can't encode {lost!r}", "use a model that has byte tokens")
        return spelled

    def _encode(self, batch: list[str]) -> list[list[int]]:
        few = len(batch) <= _FEW and all(len(text) <= _SHORT for text in batch)
        calls = [[text] for text in batch] if few else [batch]
        encode = self._backend.encode_batch_fast
        try:
            return [item.ids for call in calls for item in encode(call, add_special_tokens=False)]
        except BaseException as error:  # if a regex gives up, the library panics, which is not an Exception
            if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
                raise
            raise TokenizerError("the tokenizer fails on the text", "change the text, or use another model") from error

    def _plan(self, text: str, batch: list[str]) -> list[int | bytes]:
        """Append a text's parts for batched encoding; return the parts' indices, and the bytes to encode singly."""
        # Invalid UTF-8 and the space marker are encoded byte by byte. A string that is a control token or a byte piece
        # is split after its first character.
        if not self._trouble.search(text):
            batch.append(text)
            return [len(batch) - 1]
        plan: list[int | bytes] = []
        for place, piece in enumerate(self._trouble.split(text)):
            if place % 2 and (len(piece) == 1 or "\udc80" <= piece[0] <= "\udcff"):
                plan.append(piece.encode("utf-8", "surrogateescape"))
                continue
            for part in (piece[:1], piece[1:]) if place % 2 else (piece,):
                batch.append(part)
                plan.append(len(batch) - 1)
        return plan

    def _assemble(self, plan: Sequence[int | bytes], encoded: Sequence[list[int]]) -> list[int]:
        ids: list[int] = []
        for step in plan:
            if isinstance(step, int):
                ids += encoded[step]
                continue
            for byte in step:
                if byte not in self._byte_ids:
                    return ids
                ids.append(self._byte_ids[byte])
        return ids

    def _matching(self, ids: list[int], expected: bytes) -> list[int]:
        """Return the leading ids whose bytes are a prefix of `expected`, up to the first id without bytes."""
        pieces = [self.token_bytes[number] for number in ids]
        if b"".join(pieces) == expected and all(pieces):
            return ids
        end = 0
        for count, piece in enumerate(pieces):
            if not piece or not expected.startswith(piece, end):
                return ids[:count]
            end += len(piece)
        return ids

    def _refuse_if_lossy(self) -> None:
        probes = [probe.encode("utf-8") for probe in _PROBES]
        for probe, ids in zip(probes, self.spell(probes), strict=True):
            end = len(self.decode_bytes(ids))
            if end != len(probe):
                lost = _character_at(probe, end)
                raise TokenizerError(f"the tokenizer loses {lost!r}", "use a model whose tokenizer encodes all bytes")


def _trouble_pattern(facts: TokenizerFacts, control_names: Collection[str]) -> re.Pattern[str]:
    """Return a capturing pattern of the strings that the library would not encode as plain text."""
    # These strings are invalid UTF-8, the space marker and, for a Unigram tokenizer, control tokens and byte pieces.
    strings = {facts.marker} - {""}
    if facts.kind == "unigram":
        strings |= {name for name in control_names if len(name) > 1}
        strings |= {f"<0x{byte:02X}>" for byte in range(256)} if facts.byte_fallback else set()
    return _any_of(strings, or_else=_NOT_UTF8)


def _any_of(strings: Collection[str], *, or_else: str = "") -> re.Pattern[str]:
    """Return a capturing pattern that matches any of the strings, longest first, or else the pattern `or_else`."""
    choices = [re.escape(string) for string in sorted(strings, key=lambda string: (-len(string), string))]
    return re.compile("(" + "|".join([*choices, or_else] if or_else else choices) + ")")


def byte_level_alphabet() -> dict[int, int]:
    """Return GPT-2's byte alphabet, which maps a code point in a token string to a byte."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(itself)]
    return {**{byte: byte for byte in itself}, **{256 + place: byte for place, byte in enumerate(moved)}}


def _token_bytes(
    vocabulary: Mapping[str, int], document: Document, facts: TokenizerFacts, control: frozenset[int]
) -> list[bytes]:
    """Return the bytes of each token by id, with b"" for control tokens and unused ids."""
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    pieces = set(vocabulary)
    if facts.kind == "byte-level":
        pieces &= {token["content"] for token in document.get("added_tokens") or ()}
        plain = {token: number for token, number in vocabulary.items() if token not in pieces}
        for number, data in zip(plain.values(), _byte_level_bytes(list(plain)), strict=True):
            table[number] = data
    for token in pieces:
        match = _BYTE_PIECE.fullmatch(token) if facts.byte_fallback else None
        text = token.replace(facts.marker, " ") if facts.marker else token
        table[vocabulary[token]] = bytes([int(match[1], 16)]) if match else text.encode("utf-8")
    for number in control:
        table[number] = b""
    return table


def _byte_level_bytes(tokens: Sequence[str]) -> list[bytes]:
    """Return the bytes of tokens in the byte alphabet; all tokens are translated at once for speed."""
    alphabet = byte_level_alphabet()
    try:
        data = "".join(tokens).translate(alphabet).encode("latin-1")  # one byte for each character
    except UnicodeEncodeError:
        if len(tokens) == 1:  # outside the alphabet: decoders treat the whole token as plain text
            return [tokens[0].encode("utf-8")]
        half = len(tokens) // 2
        return _byte_level_bytes(tokens[:half]) + _byte_level_bytes(tokens[half:])
    ends = list(accumulate(map(len, tokens), initial=0))
    return [data[start:end] for start, end in pairwise(ends)]


def _chat_template(file: Path) -> dict[str, str]:
    """Read a folder's chat template, which overrides the one in tokenizer_config.json."""
    if not file.exists():
        return {}
    try:
        return {"chat_template": read_regular(file, MAX_TEMPLATE).decode("utf-8")}
    except Unreadable as error:
        raise TokenizerError(f"{file} can't be read ({error})", "download the model again") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{file} cannot be read as UTF-8 text", "download the model again") from error


def _to_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(f"character {error.start} is a lone surrogate", "send valid Unicode text") from error


def _character_at(data: bytes, start: int) -> str:
    """Return the first whole character at or after a byte offset."""
    return data[start : start + 7].decode("utf-8", errors="ignore")[:1]
