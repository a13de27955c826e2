"""`codespec bench divergence`: how far a number format moves a target's predictions on held-out code.

Logits are compared over the whole vocabulary, window by window; only those of one piece of a window are in memory at a
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from codespec import __version__
from codespec.backends.language_model import LanguageModel, Rows, on_host
from codespec.backends.loader import load_model
from codespec.backends.torch.loader import DTYPES
from codespec.backends.torch.model_check import read_config
from codespec.errors import ConfigError, ModelError
from codespec.files import NotUtf8, read_text
from codespec.store.machine import machine_memory, processor
from codespec.store.model_folder import read_weights
from codespec.store.resolve import resolve
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.bench.harness import Figures, Scenario, commit_name
from codespec_lab.bench.quality.scenario import labels
from codespec_lab.bench.report import table
from codespec_lab.bench.settings import DivergenceBench
from codespec_lab.bench.sites import spread_numbers
from codespec_lab.corpus.standard_library import held_out_files

WINDOW, PIECE = 512, 128  # most ids of a window; rows of a forward
STDLIB = "held-out parts of the standard library"
MEMORY_SHARE = 0.9  # of the machine's memory: the rest is for torch, its copies and other programs


def run_divergence_bench(bench: DivergenceBench) -> dict[str, Any]:
    """Return all figures as plain JSON values. Raise ConfigError or ModelError before any measurement."""
    texts = read_texts(bench.files)
    _demand_memory(bench)
    if bench.config.threads:
        torch.set_num_threads(bench.config.threads)
    reference, candidate = _load(bench, bench.against), _load(bench, bench.candidate)
    windows = cut_windows(reference.tokenizer, texts, bench.tokens)
    found = measure(reference, candidate, windows)
    return {
        "bench": "divergence",
        "date": date.today().isoformat(),
        "processor": processor().label,
        "codespec": __version__,
        "commit": commit_name(),
        "target": labels([bench.config.target])[0],
        "parameters": reference.spec.parameters,
        "reference": reference.spec.dtype,
        "candidate": candidate.spec.dtype,
        "mode": bench.config.mode,
        "texts": "named files" if bench.files else STDLIB,
        "files": len(texts),
        "windows": len(windows),
        **asdict(found),
    }


def report(found: Figures) -> list[str]:
    """Return the report as lines."""
    size = f"{found['parameters'] / 1e6:.1f} M"
    rows = [
        ("KL divergence", f"{found['kl']:.5f} nats"),
        ("same first choice", f"{found['same_first']:.2%}"),
        (f"loss in {found['reference']}", f"{found['loss_reference']:.4f} nats"),
        (f"loss in {found['candidate']}", f"{found['loss_candidate']:.4f} nats"),
    ]
    return [
        found["processor"],
        f"{found['target']} ({size}), {found['candidate']} against {found['reference']}, {found['mode']} mode",
        f"{found['tokens']:,} tokens of {found['windows']} windows, {found['texts']}",
        "",
        *table(rows),
    ]


def read_texts(files: Sequence[Path]) -> list[str]:
    """Return the texts of `files`, or of the standard library's held-out modules. Raise ConfigError for an unreadable
    file.
    """
    chosen = list(files) or [path for _, path in held_out_files()]
    if not chosen:
        raise ConfigError("This Python has no standard library source: name files by --files.")
    return [_read(file) for file in chosen]


def cut_windows(tokenizer: TextTokenizer, texts: Sequence[str], tokens: int) -> list[list[int]]:
    """Return windows of up to WINDOW ids, evenly spread over the texts, that predict about `tokens` tokens.

    A window never contains two texts, and begins with the tokenizer's `bos_ids`.
    """
    bos = list(tokenizer.bos_ids)
    size = WINDOW - len(bos)
    windows = (
        [
            [*bos, *ids[start : start + size]]
            for ids in tokenizer.encode_batch(texts)
            for start in range(0, len(ids), size)
            if len(ids) - start > size // 2  # short remainders have little context
        ]
        or [[*bos, *ids[:size]] for ids in tokenizer.encode_batch(texts) if len(ids) > 1]
    )
    if not windows:
        raise ConfigError("The files contain too little text: name longer ones by --files.")
    mean = sum(map(len, windows)) / len(windows)
    return [windows[number] for number in spread_numbers(len(windows), max(1, round(tokens / mean)))]


def weight_bytes(name: str, dtype: str) -> int:
    """Return the memory that a model's weights take in a number format while it is loaded."""
    if dtype == "native" and (file := resolve(name).source()).is_file():
        return file.stat().st_size
    folder = resolve(name).folder(dtype)
    tied = read_config(folder).get_text_config().tie_word_embeddings
    return read_weights(folder, tied=tied).parameters * DTYPES[dtype].itemsize


def _read(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, NotUtf8) as error:
        raise ConfigError(f"{file} can't be read as UTF-8 text ({error}): name another file.") from error


def _load(bench: DivergenceBench, dtype: str) -> LanguageModel:
    config = bench.config
    return load_model(config.target, device=config.device, dtype=dtype, exact=config.mode == "exact")


def _demand_memory(bench: DivergenceBench) -> None:
    """Raise ConfigError if both models do not fit into the machine's memory; a GPU's memory is checked on load."""
    memory = machine_memory()
    if memory is None or bench.config.device not in ("cpu", "auto"):
        return
    needed = sum(weight_bytes(bench.config.target, dtype) for dtype in (bench.against, bench.candidate))
    if needed > MEMORY_SHARE * memory:
        raise ConfigError(
            f"{bench.against} and {bench.candidate} together need {needed / 2**30:.1f} GiB, this machine has "
            f"{memory / 2**30:.1f}: compare with --against bfloat16, or use a smaller target."
        )


@dataclass(frozen=True, slots=True)
class Divergence:
    """Means over `tokens` predicted tokens, in nats.

    kl              KL(reference ‖ candidate) of the next token
    same_first      share of tokens at which both models rank the same token first
    loss_reference  cross-entropy of the text under the reference
    loss_candidate  the same for the candidate
    """

    kl: float
    same_first: float
    loss_reference: float
    loss_candidate: float
    tokens: int


def measure(reference: LanguageModel, candidate: LanguageModel, windows: Sequence[Sequence[int]]) -> Divergence:
    """Compare the models' predictions of every token of each window except the first.

    Free both models' caches and allocate one slot each. Raise ModelError if the vocabularies differ, if a window has
    more than WINDOW ids, if there is nothing to predict, or if the candidate's logits are not finite.
    """
    one, other = reference.spec, candidate.spec
    if one.vocab_size != other.vocab_size:
        raise ModelError(
            f"{one.name} has {one.vocab_size} tokens, {other.name} {other.vocab_size}: compare models with one "
            "vocabulary."
        )
    longest = max(map(len, windows), default=0)
    if longest > WINDOW:
        raise ModelError(f"A window has {longest} ids: cut texts into windows of at most {WINDOW}.")
    tokens = sum(len(window) - 1 for window in windows if window)
    if not tokens:
        raise ModelError("There is no token to predict: give windows of at least two ids.")
    for model in {reference, candidate}:
        model.allocate(1, WINDOW)
    sums = torch.zeros(4, dtype=torch.float64)
    for window in windows:
        if len(window) > 1:
            sums += _compare(reference, candidate, window)
    kl, same, ours, theirs = (sums / tokens).tolist()
    if kl != kl:
        raise ModelError(f"{candidate.spec.name} in {candidate.spec.dtype} computes NaN logits: choose another dtype.")
    return Divergence(max(0.0, kl), same, ours, theirs, tokens)


@torch.inference_mode()
def _compare(reference: LanguageModel, candidate: LanguageModel, window: Sequence[int]) -> Tensor:
    """Return sums over a window: KL, agreement of the first choice, both losses."""
    sums = torch.zeros(4, dtype=torch.float64)
    inputs, answers = window[:-1], torch.tensor(window[1:])
    begin = 0
    if reference is candidate:  # one slot: compute each row once
        pairs: Iterator[tuple[Tensor, Tensor]] = ((logits, logits) for logits in _pieces(reference, inputs))
    else:
        pairs = zip(_pieces(reference, inputs), _pieces(candidate, inputs), strict=True)
    for ours, theirs in pairs:
        answer = answers[begin : begin + len(ours), None]
        begin += len(ours)
        first = ours.argmax(-1) == theirs.argmax(-1)
        ours, theirs = ours.log_softmax(-1), theirs.log_softmax(-1)
        losses = [-logs.gather(1, answer).sum(dtype=torch.float64) for logs in (ours, theirs)]
        kl = (ours.exp() * (ours - theirs)).sum(-1, dtype=torch.float64).sum()
        sums += torch.stack([kl, first.sum().double(), *losses])
    return sums


def _pieces(model: LanguageModel, ids: Sequence[int]) -> Iterator[Tensor]:
    """Yield the model's logits of all rows on the CPU, PIECE rows at a time, without padding ids."""
    model.admit(0, len(ids))
    for start in range(0, len(ids), PIECE):
        piece = ids[start : start + PIECE]
        yield torch.from_numpy(on_host(model.step([Rows(0, start, piece, keep=len(piece))])))


SCENARIO = Scenario(run_divergence_bench, report)
