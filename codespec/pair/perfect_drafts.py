"""Measure the retokenization loss of a pair: how much of a perfect drafter's text survives in target tokens.

The perfect drafter knows the file. At many positions it drafts the true text in whole drafter tokens, until they cover
as many bytes as n average target tokens. The draft is then compared with the target's own tokens of the file. A loss
means that a draft ends inside a target token. (The engine requests a quarter more text and cuts by tokens, so it loses
at most that much.)
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from codespec.errors import ConfigError, TokenizerError
from codespec.files import NotUtf8, decode_text, open_regular
from codespec.text.align import byte_ends, complete_utf8_length, retokenize_batch, tail_window
from codespec.text.tokenizer import TextTokenizer

LENGTHS = (4, 8, 16)
POSITIONS = 1500  # drafts per length, for a standard error of the share below 0.5 %
MAX_FILES, MAX_BYTES, MAX_OF_ONE = 40, 400_000, 32_000
MIN_BYTES = 4_000  # minimum for a meaningful measurement
_WINDOW = 32  # bytes before a position that a tail window may need
_MAX_FOLDERS, _MAX_FOUND = 2_000, 4_000  # at which the walk of a huge tree stops
_LANGUAGES = "py pyi js mjs cjs jsx ts tsx go rs c h cc cpp hpp java kt swift cs rb php lua sh"
_SUFFIXES = tuple(f".{name}" for name in _LANGUAGES.split())
_SKIPPED = ("node_modules", "venv", "env", "__pycache__", "site-packages", "build", "dist")


@dataclass(frozen=True, slots=True)
class Sample:
    """Texts by file name, and their source."""

    source: str
    texts: tuple[tuple[str, str], ...]

    @property
    def size(self) -> int:
        """Size of the text in bytes."""
        return sum(len(text.encode("utf-8")) for _, text in self.texts)


@dataclass(frozen=True, slots=True)
class PerfectDrafts:
    """Perfect drafts of about `tokens` target tokens: sums over `rounds` positions, in target tokens."""

    tokens: int
    rounds: int
    drafted: int
    accepted: int

    @property
    def survival(self) -> float | None:
        """The share of drafted tokens that match the target's own tokens."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text in target tokens with their byte `ends`. `drafter_tokens` is its length in drafter tokens."""

    data: bytes
    ids: list[int]
    ends: list[int]
    drafter_tokens: int


def named_sample(files: Sequence[Path]) -> Sample:
    """Return the files named by the user, up to MAX_BYTES in total. Raises ConfigError for an unreadable one."""
    texts, left = [], MAX_BYTES
    for file in files:
        try:
            text = _read(file, left)
        except OSError as error:
            raise ConfigError(f"{file} can't be read ({error.strerror or error})", "check the path") from error
        except NotUtf8 as error:
            raise ConfigError(f"{file} is not UTF-8 text ({error})", "name other files") from error
        texts.append((str(file), text))
        left = max(0, left - len(text.encode("utf-8")))
    return Sample("named files", tuple(texts))


def find_sample(root: Path) -> Sample:
    """Return source files of a folder, or of the standard library if they are too small."""
    own = folder_sample(root, "files here")
    return own if own.size >= MIN_BYTES else folder_sample(Path(sysconfig.get_path("stdlib")), "standard library")


def folder_sample(root: Path, source: str) -> Sample:
    """Return at most MAX_FILES source files in a folder, evenly spaced in the sorted list."""
    files, texts = source_files(root), []
    count = min(len(files), MAX_FILES)
    for file in (files[place * len(files) // count] for place in range(count)):
        with suppress(OSError, NotUtf8):  # the sample can do without it
            texts.append((str(file.relative_to(root)), _read(file, min(MAX_OF_ONE, MAX_BYTES // count))))
    return Sample(source, tuple(texts))


def source_files(root: Path) -> list[Path]:
    """Return source files in a fixed order, excluding hidden, installed and generated ones."""
    found: list[Path] = []
    for count, (folder, below, names) in enumerate(os.walk(root)):
        if count >= _MAX_FOLDERS or len(found) >= _MAX_FOUND:
            break
        if "pyvenv.cfg" in names and Path(folder) != root:
            below.clear()
            continue
        below[:] = sorted(name for name in below if name not in _SKIPPED and not name.startswith("."))
        found += [Path(folder, n) for n in sorted(names) if n.endswith(_SUFFIXES) and not n.startswith(".")]
    return found


def _read(file: Path, most: int) -> str:
    """Read at most `most` bytes of a UTF-8 text, cut at the end of a line."""
    with open_regular(file) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        data = data[:most]
        data = data[: data.rfind(b"\n") + 1 or complete_utf8_length(data)]
    text = decode_text(data)
    if "\0" in text:
        raise NotUtf8(f"byte {data.index(0)}")
    return text


def tokenize_texts(target: TextTokenizer, drafter: TextTokenizer, texts: Sequence[str]) -> list[TokenizedText]:
    """Tokenize the texts that both tokenizers can encode: a vocabulary may lack byte tokens."""
    tokenized = []
    for text in texts:
        with suppress(TokenizerError):
            ids, data = target.encode(text), text.encode("utf-8")
            ends = byte_ends(target, ids, length=len(data))
            tokenized.append(TokenizedText(data, ids, ends, len(drafter.encode(text))))
    return tokenized


def draft_perfectly(
    target: TextTokenizer, drafter: TextTokenizer, texts: Sequence[TokenizedText], tokens: int, most: int = POSITIONS
) -> PerfectDrafts:
    """Draft `tokens` target tokens at up to `most` evenly spaced positions and count the survivors.

    With a shared vocabulary, ids are passed through directly, so all survive.
    """
    every = [(text, index) for text in texts for index in range(1, len(text.ids) - 3 * tokens)]
    places = [(text, index, text.ends[index - 1]) for text, index in every[:: max(1, -(-len(every) // most))]]
    at = [(text, index, start) for text, index, start in places if text.data[start] & 0xC0 != 0x80]  # whole characters
    if target.fingerprint == drafter.fingerprint:
        return PerfectDrafts(tokens, len(at), tokens * len(at), tokens * len(at))
    bytes_per_token = sum(len(text.data) for text in texts) / max(1, sum(len(text.ids) for text in texts))
    size = max(1, round(tokens * bytes_per_token))
    windows = [tail_window(text.data[max(0, start - _WINDOW) : start]) for text, _, start in at]
    ahead = [text.data[start : start + 2 * size + 64] for text, _, start in at]
    drafts = []
    for ids, data in zip(retokenize_batch(drafter, list(zip(windows, ahead, strict=True))), ahead, strict=True):
        ends = accumulate(len(drafter.token_bytes[number]) for number in ids)
        drafts.append(data[: next((end for end in ends if end >= size), complete_utf8_length(data))])
    drafted = accepted = 0
    candidates = retokenize_batch(target, list(zip(windows, drafts, strict=True)))
    for (text, index, _), ids in zip(at, candidates, strict=True):
        pairs = list(zip(ids, text.ids[index : index + len(ids)], strict=False))
        drafted += len(ids)
        accepted += next((n for n, (one, other) in enumerate(pairs) if one != other), len(pairs))
    return PerfectDrafts(tokens, len(at), drafted, accepted)
