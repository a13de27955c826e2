"""Implement `codespec check`, which reports whether a target and a drafter work together.

The report measures how much of a perfect draft survives retokenization. A perfect draft is sample text that ends with a
whole drafter token and is as long as n average target tokens. The target tokens of the draft are compared with those of
the sample: the last tokens differ if the draft ends inside a target token. The engine loses no more of its drafts,
because it drafts a quarter more text and then limits each draft to a number of tokens.
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

NEAR_IN_SIZE = 4.0  # if the target is less than this many times larger, drafts cost about as much as they save
LITTLE_SURVIVES = 0.9  # if a smaller share of perfect drafts survives, the finding is a warning
LENGTHS = (4, 8, 16)  # of perfect drafts, in average target tokens
POSITIONS = 1500  # drafts of each length, for a standard error of the share below 0.5 %
MAX_FILES, MAX_BYTES, MAX_OF_ONE = 40, 400_000, 32_000  # of the sample: files, bytes, bytes of one file
MIN_BYTES = 4_000  # a smaller sample is replaced by one from the standard library
_WINDOW = 32  # bytes before a position in which its tail window lies
_MAX_FOLDERS, _MAX_FOUND = 2_000, 4_000  # folders and files after which the search for source files stops
_LANGUAGES = "py pyi js mjs cjs jsx ts tsx go rs c h cc cpp hpp java kt swift cs rb php lua sh"
_SUFFIXES = tuple(f".{name}" for name in _LANGUAGES.split())
_SKIPPED = ("node_modules", "venv", "env", "__pycache__", "site-packages", "build", "dist")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model, read from its files."""

    name: str
    config: Mapping[str, Any]
    weights: Weights
    tokenizer: TextTokenizer | None  # None: not lossless
    reasons: tuple[Fault, ...]  # why the model can't be used, if any
    file_bytes: int = 0  # size of a GGUF file; 0 for a folder

    @property
    def context(self) -> int | None:
        """Maximum context length in tokens, or None if the configuration does not state it."""
        return context_length(self.config)

    @property
    def template(self) -> FimTemplate | FimMissing | None:
        """The fill-in-the-middle template, or the reason why there is none, or None if there is no usable tokenizer."""
        return None if self.tokenizer is None else find_template(self.tokenizer)


def read_facts(model: ModelRef) -> ModelFacts:
    """Read a model's files. Raises ModelError for a missing configuration, and for missing or corrupt weights."""
    folder = model.folder()
    config = read_json(folder / "config.json")
    if not config:
        raise ModelError(f"{folder} has no config.json", "give a folder in the Hugging Face layout")
    if count := source_parameters(config):  # of a GGUF file, for which the folder has no weights
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
    """Return a fault if the tokenizer has ids beyond the `rows` of the model's embedding, else None."""
    if tokenizer is None or not isinstance(rows, int) or not any(tokenizer.token_bytes[rows:]):
        return None
    last = max(number for number, data in enumerate(tokenizer.token_bytes) if data)
    what = f"the tokenizer has ids up to {last}, but the model's embedding has {rows} rows"
    return Fault("tokenizer_foreign", what, "use the model's own tokenizer")


@dataclass(frozen=True, slots=True)
class PairReport:
    """The result of `codespec check`."""

    problem: Fault | None  # why the pair can't work; None: it works
    sample: Sample
    findings: tuple[Finding, ...]
    perfect_drafts: tuple[PerfectDrafts, ...]

    @property
    def verdict(self) -> str:
        """A phrase that says whether the pair works, with the names of the findings that are warnings."""
        if self.problem:
            return "can't work"
        notes = dict.fromkeys(finding.name for finding in self.findings if finding.state == "warning")
        return f"works, with notes ({', '.join(notes)})" if notes else "works"

    def as_dict(self) -> Mapping[str, Any]:
        """Return the object that `codespec check --json` prints, with stable keys."""
        return {
            **as_json(self.findings),
            "problem": self.problem.sentence if self.problem else None,
            "perfect_drafts": [{**asdict(drafts), "survival": drafts.survival} for drafts in self.perfect_drafts],
            "files": {"source": self.sample.source, "names": [name for name, _ in self.sample.texts]},
        }


def check_pair(target: ModelFacts, drafter: ModelFacts, sample: Sample) -> PairReport:
    """Compare the files of a target and a drafter, and the tokens into which both models split the sample."""
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
    """Return a finding with a model's architecture, size, context and layers, or why the model can't be used."""
    if facts.reasons:
        return from_fault(role, facts.reasons[0])
    context = f"context {facts.context:,}" if facts.context else "context not stated"
    # For a GGUF file, the file's own format, even if its converted folder is float32.
    stored_as = source_quantization(facts.config) or facts.weights.dtype
    size = f"{facts.weights.parameters / 1e6:,.1f} M parameters in {stored_as}"
    kind, layers = architecture(facts.config), describe_layers(facts.config)
    return well(role, f"{kind}, {size}, {context}, {layers}, from {facts.name}")


def check_fill_in(target: ModelFacts) -> Finding:
    """Return a finding on fill-in-the-middle: a target without FIM tokens does not use the text after the cursor."""
    template = target.template
    if template is None or isinstance(template, FimMissing):
        message = f"the text after the cursor is not used ({template.reason if template else 'no usable tokenizer'})"
        return warning("fill-in", message, "choose a target with FIM tokens")
    others = "" if template.separator_id is not None else "; without other files, because it has no file separator"
    return well("fill-in", f"the target fills in the middle ({template.family}, {template.order}){others}")


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
    fix = "name other files with --files"
    return warning("tokens", f"{message}; a tokenizer can't encode {left_out} files, which are left out", fix)


def _check_drafts(drafts: Sequence[PerfectDrafts]) -> Finding:
    shares = [each.survival for each in drafts if each.survival is not None]
    if len(shares) < len(drafts):
        return warning("drafts", "the text is too short to measure perfect drafts", "name more files with --files")
    lengths = ", ".join(str(each.tokens) for each in drafts)
    message = f"{', '.join(f'{100 * share:.1f}' for share in shares)} % of perfect drafts of {lengths} tokens survive"
    if min(shares) >= LITTLE_SURVIVES:
        return well("drafts", message)
    return warning("drafts", f"{message}: the rest ends inside a target token", "choose a drafter with similar tokens")


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample texts for the measurements."""

    source: str  # in words
    texts: tuple[tuple[str, str], ...]  # file names and their texts

    @property
    def size(self) -> int:
        """Bytes of all texts."""
        return sum(len(text.encode("utf-8")) for _, text in self.texts)


@dataclass(frozen=True, slots=True)
class PerfectDrafts:
    """The numbers of drafted and surviving tokens in perfect drafts of one length."""

    tokens: int  # the length, in average target tokens
    rounds: int  # number of drafts
    drafted: int  # target tokens in all drafts
    accepted: int  # those that survive

    @property
    def survival(self) -> float | None:
        """The share of drafted tokens that survive, or None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text of the sample, tokenized for both models."""

    data: bytes
    ids: list[int]  # of the target
    ends: list[int]  # byte offset at which each target token ends
    drafter_tokens: int  # number of drafter tokens


def named_sample(files: Sequence[Path]) -> Sample:
    """Read the files named by the user, up to MAX_BYTES in total; raise ConfigError for a file that can't be read."""
    texts, left = [], MAX_BYTES
    for file in files:
        try:
            text = _read(file, left)
        except OSError as error:
            raise ConfigError(f"{file} can't be read ({error.strerror or error})", "check the path") from error
        except NotUtf8 as error:
            raise ConfigError(f"{file} is not UTF-8 text ({error})", "name other files with --files") from error
        texts.append((str(file), text))
        left = max(0, left - len(text.encode("utf-8")))
    return Sample("named files", tuple(texts))


def find_sample(root: Path) -> Sample:
    """Return a sample of the source files in a folder or, if they have too little text, of the standard library."""
    own = folder_sample(root, "files here")
    return own if own.size >= MIN_BYTES else folder_sample(Path(sysconfig.get_path("stdlib")), "standard library")


def folder_sample(root: Path, source: str) -> Sample:
    """Return a sample of at most MAX_FILES source files in a folder, evenly spaced in the list of source files."""
    files, texts = source_files(root), []
    count = min(len(files), MAX_FILES)
    for file in (files[place * len(files) // count] for place in range(count)):
        with suppress(OSError, NotUtf8):  # left out of the sample
            texts.append((str(file.relative_to(root)), _read(file, min(MAX_OF_ONE, MAX_BYTES // count))))
    return Sample(source, tuple(texts))


def source_files(root: Path) -> list[Path]:
    """Return the source files in a folder in a fixed order, without hidden, installed or generated files."""
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
    """Return at most the first `most` bytes of a file's text, cut after a whole line. Raises OSError and NotUtf8."""
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
    """Tokenize the texts that both tokenizers can encode, and skip texts with characters missing from a vocabulary."""
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
    """Draft about `tokens` target tokens at up to `most` evenly spaced positions, and count the tokens that survive."""
    every = [(text, index) for text in texts for index in range(1, len(text.ids) - 3 * tokens)]
    places = [(text, index, text.ends[index - 1]) for text, index in every[:: max(1, -(-len(every) // most))]]
    at = [(text, index, start) for text, index, start in places if text.data[start] & 0xC0 != 0x80]  # whole characters
    if target.fingerprint == drafter.fingerprint:  # all drafted tokens survive, because drafts are passed as token ids
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
