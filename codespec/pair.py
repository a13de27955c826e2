"""Whether a target and a drafter work together, by their files and on sample text: the report of `codespec check`.

Missing or broken weights raise an error. A complete model that can't be used (a lossy tokenizer, an architecture
without rollback) has `reasons`.

The report measures how much of a perfect drafter's text survives in target tokens. The perfect drafter knows the file.
At many positions it drafts the true text in whole drafter tokens, until they cover as many bytes as n average target
tokens. The draft is then compared with the target's own tokens of the file. A loss means that a draft ends inside a
target token. (The engine requests a quarter more text and cuts by tokens, so it loses at most that much.)
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from codespec.errors import ConfigError, Fault, Finding, ModelError, TokenizerError, as_json, from_fault, warning, well
from codespec.files import NotUtf8, decode_text, open_regular, read_json
from codespec.store.conversions import source_parameters, source_quantization
from codespec.store.model_folder import (
    Weights,
    architecture,
    check_claims,
    context_length,
    describe_layers,
    read_weights,
    text_config,
    why_unsuitable,
)
from codespec.store.resolve import ModelRef
from codespec.text.align import byte_ends, complete_utf8_length, retokenize_batch, tail_window
from codespec.text.fim_templates import FimMissing, FimTemplate, find_template
from codespec.text.tokenizer import TextTokenizer

NEAR_IN_SIZE = 4.0  # below this size ratio, drafting costs about what it saves
LITTLE_SURVIVES = 0.9  # below this share of a perfect draft, the finding is a warning
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
class ModelFacts:
    """One side of a pair. `reasons` say why it can't be used; without a usable tokenizer, `tokenizer` is None.

    `file_bytes` is the size of a GGUF file, whose bits the native kernels keep; 0 for a folder.
    """

    name: str
    config: Mapping[str, Any]
    weights: Weights
    tokenizer: TextTokenizer | None
    reasons: tuple[Fault, ...]
    file_bytes: int = 0

    @property
    def context(self) -> int | None:
        """Maximum context length in tokens."""
        return context_length(self.config)

    @property
    def template(self) -> FimTemplate | FimMissing | None:
        """The fill-in-the-middle template; None without a usable tokenizer."""
        return None if self.tokenizer is None else find_template(self.tokenizer)


def read_facts(model: ModelRef) -> ModelFacts:
    """Read a model's files. Raises ModelError for a missing configuration, and for missing or broken weights."""
    folder = model.folder()
    config = read_json(folder / "config.json")
    if not config:
        raise ModelError(f"{folder} has no config.json", "give a folder in the Hugging Face layout")
    if count := source_parameters(config):  # a GGUF file's, known without a folder that holds the weights
        weights = Weights(count, source_quantization(config))
    else:
        check_claims(folder)
        weights = read_weights(folder, tied=bool(text_config(config).get("tie_word_embeddings")))
    tokenizer, lossy = None, None
    try:
        tokenizer = TextTokenizer.from_folder(folder)
    except TokenizerError as error:
        lossy = error.fault
    reasons = [why_unsuitable(config), lossy, _overflow(tokenizer, text_config(config).get("vocab_size"))]
    file_bytes = model.path.stat().st_size if model.form == "gguf" and model.path is not None else 0
    return ModelFacts(model.name, config, weights, tokenizer, tuple(filter(None, reasons)), file_bytes)


def _overflow(tokenizer: TextTokenizer | None, rows: object) -> Fault | None:
    """Return why ordinary text can have ids outside an embedding of so many rows; None if it can't."""
    if tokenizer is None or not isinstance(rows, int) or not any(tokenizer.token_bytes[rows:]):
        return None
    last = max(number for number, data in enumerate(tokenizer.token_bytes) if data)
    what = f"the tokenizer has ids up to {last}, and the model has {rows} rows"
    return Fault("tokenizer_foreign", what, "take the model's own tokenizer")


@dataclass(frozen=True, slots=True)
class PairReport:
    """The result of `codespec check`. `problem` is why the pair can't work; None if it can."""

    problem: Fault | None
    sample: Sample
    findings: tuple[Finding, ...]
    perfect_drafts: tuple[PerfectDrafts, ...]

    @property
    def verdict(self) -> str:
        """Whether the pair works, and the subjects to look at."""
        if self.problem:
            return "can't work"
        notes = dict.fromkeys(finding.name for finding in self.findings if finding.state == "warning")
        return f"works, with notes ({', '.join(notes)})" if notes else "works"

    def as_dict(self) -> Mapping[str, Any]:
        """Return plain JSON values. The keys are a stable interface."""
        return {
            **as_json(self.findings),
            "problem": self.problem.sentence if self.problem else None,
            "perfect_drafts": [{**asdict(drafts), "survival": drafts.survival} for drafts in self.perfect_drafts],
            "files": {"source": self.sample.source, "names": [name for name, _ in self.sample.texts]},
        }


def check_pair(target: ModelFacts, drafter: ModelFacts, sample: Sample) -> PairReport:
    """Compare two models by their files and on the sample text."""
    findings, drafts, problem = list[Finding](), tuple[PerfectDrafts, ...](), None
    for role, side in {"target": target, "drafter": drafter}.items():
        findings.append(describe(role, side))
        if side.reasons and problem is None:
            problem = side.reasons[0].within(f"The {role} {side.name} can't be used")
    findings.append(_check_size(target.weights.parameters / drafter.weights.parameters))
    mine, other = target.tokenizer, drafter.tokenizer
    if mine is not None and other is not None:
        texts = tokenize_texts(mine, other, [text for _, text in sample.texts])
        drafts = tuple(draft_perfectly(mine, other, texts, tokens) for tokens in LENGTHS)
        findings.append(check_fill_in(target))
        lacks = drafter.template
        if isinstance(lacks, FimMissing) and not isinstance(target.template, FimMissing):
            message = f"the drafter does not see the text after the cursor ({lacks.reason})"
            findings.append(warning("drafter-fill", message, "choose a drafter with FIM tokens"))
        shared = mine.fingerprint == other.fingerprint
        findings += [_check_tokens(texts, len(sample.texts) - len(texts), shared), _check_drafts(drafts)]
    return PairReport(problem, sample, tuple(findings), drafts)


def describe(role: str, facts: ModelFacts) -> Finding:
    """Return a model's architecture, size, layers and context, or the first reason why it can't be used."""
    if facts.reasons:
        return from_fault(role, facts.reasons[0])
    context = f"context {facts.context:,}" if facts.context else "context not stated"
    stored_as = source_quantization(facts.config) or facts.weights.dtype  # even if converted floats lie beside the file
    size = f"{facts.weights.parameters / 1e6:,.1f} M parameters in {stored_as}"
    kind, layers = architecture(facts.config), describe_layers(facts.config)
    return well(role, f"{kind}, {size}, {context}, {layers}, from {facts.name}")


def check_fill_in(target: ModelFacts) -> Finding:
    """Check whether the target is trained to fill in the middle; if not, the text after the cursor is ignored."""
    template = target.template
    if template is None or isinstance(template, FimMissing):
        message = f"the text after the cursor is not used ({template.reason if template else 'no usable tokenizer'})"
        return warning("fill-in", message, "choose a target with FIM tokens")
    others = "" if template.separator_id is not None else "; without other files, because it has no file separator"
    return well("fill-in", f"the target fills in ({template.family}, {template.order}){others}")


def _check_size(ratio: float) -> Finding:
    message = f"the target has {ratio:.1f} times the drafter's parameters"
    if ratio >= NEAR_IN_SIZE:
        return well("size", message)
    fix = f"choose a drafter that is at least {NEAR_IN_SIZE:.0f} times smaller"
    return warning("size", f"{message}, so drafting costs much of the time that it saves", fix)


def _check_tokens(texts: Sequence[TokenizedText], left_out: int, shared: bool) -> Finding:
    size = sum(len(text.data) for text in texts)
    target, drafter = sum(len(text.ids) for text in texts), sum(text.drafter_tokens for text in texts)
    message = f"{size / max(1, target):.2f} bytes a token in the target, {size / max(1, drafter):.2f} in the drafter"
    message += "; the vocabulary is shared, so ids pass straight through" if shared else ""
    if not left_out:
        return well("tokens", message)
    fix = "a tokenizer has no tokens for some of their text; name others with --files"
    return warning("tokens", f"{message}; {left_out} files left out", fix)


def _check_drafts(drafts: Sequence[PerfectDrafts]) -> Finding:
    shares = [each.survival for each in drafts if each.survival is not None]
    if len(shares) < len(drafts):
        return warning("drafts", "too little text to measure", "name more with --files")
    lengths = ", ".join(str(each.tokens) for each in drafts)
    message = f"{', '.join(f'{100 * share:.1f}' for share in shares)} % of perfect drafts of {lengths} tokens survive"
    if min(shares) >= LITTLE_SURVIVES:
        return well("drafts", message)
    return warning("drafts", f"{message}: the rest ends inside a target token", "choose a drafter with similar tokens")


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
