"""llama.cpp as a contestant: its server reads the target's own GGUF file, plain, with n-gram speculation, and with the
drafter's GGUF file as the draft model.

Each contestant has one server at a time, started with the threads and options of a variant. The server gets the
target's token ids.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from codespec.api.config import EngineConfig
from codespec.files import read_json
from codespec.store.catalogue import is_gguf
from codespec.store.conversions import SOURCE, base_model_name, source_quantization
from codespec.store.pulled import pulled
from codespec.store.resolve import resolve
from codespec_lab.bench.decode.codespec_engine import FAMILY as OWN
from codespec_lab.bench.decode.contest import (
    Answer,
    Contestant,
    Family,
    PeerError,
    Task,
    Variant,
    Workload,
    cut_at_end,
    join_answers,
    thread_counts,
)
from codespec_lab.bench.llama_server import Completion, LlamaServer, LlamaServerError, Program, find_program

FAMILY = "llama.cpp"
PLAIN, NGRAM, DRAFT = FAMILY, f"{FAMILY} n-gram", f"{FAMILY} draft model"
# (length of the n-gram to match, ids drafted): the server's defaults, and shorter ones that match in short texts too
NGRAMS = ((12, 48), (3, 10))
DRAFT_TOKENS = (3, 8)  # per round; the first is the server's default
MARGIN = 64  # extra positions of a slot beyond prompt and text, for drafts


@dataclass(frozen=True, slots=True)
class Original:
    """The GGUF file that a model was read from, and the format of most of its weights ("Q4_1")."""

    file: Path
    kind: str


@dataclass(frozen=True, slots=True)
class Files:
    """Settings shared by all contestants: the program, the target's and the drafter's file, and the server's size."""

    program: Program
    target: Original
    drafter: Original | None
    slots: int
    room: int


class LlamaContestant(Contestant):
    """One way to run llama-server."""

    family = FAMILY
    batched = True

    def __init__(self, name: str, files: Files) -> None:
        self.name = name
        self.plain = name == PLAIN
        self.reference = OWN if self.plain else FAMILY
        self._files = files
        self._server: LlamaServer | None = None
        self._variant: Variant | None = None

    def variants(self) -> list[Variant]:
        """Return all combinations of threads and options; the number formats are those of the files."""
        drafter = self._files.drafter.kind.lower() if self.name == DRAFT and self._files.drafter else ""
        options = {PLAIN: 1, NGRAM: len(NGRAMS), DRAFT: len(DRAFT_TOKENS)}[self.name]
        kind = self._files.target.kind.lower()
        return [Variant(kind, drafter, *ways) for ways in product(thread_counts(), range(options))]

    def facts(self, variant: Variant) -> dict[str, Any]:
        """Return the package and the options in use."""
        return {"program": self._files.program.label, "options": " ".join(self._speculation(variant, named=True))}

    def answer(self, work: Workload, variant: Variant) -> Answer:
        """Decode the prompts in batches that begin together. Raise PeerError if the server fails."""
        try:
            server = self._running(variant)
            return join_answers(work.parts(), lambda part: _together(server, part))
        except LlamaServerError as error:
            raise PeerError(str(error)) from error

    def _running(self, variant: Variant) -> LlamaServer:
        """Return the server of a variant, and start it if it is not running. Stop another variant's server first, so
        that only one is in memory. Raise LlamaServerError if the server does not start.
        """
        if self._server is None or self._variant != variant or not self._server.alive:
            self.close()
            files, flags = self._files, self._speculation(variant)
            room = files.room + MARGIN
            self._server = LlamaServer(
                files.program, files.target.file, threads=variant.threads, slots=files.slots, room=room, flags=flags
            )
            self._variant = variant
        return self._server

    def close(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.stop()
        self._server = None

    def _speculation(self, variant: Variant, *, named: bool = False) -> list[str]:
        """Return the server's flags; `named` leaves out file paths and the settings already in the variant."""
        if self.name == NGRAM:
            key, value = map(str, NGRAMS[variant.option])
            sizes = ["--spec-ngram-simple-size-n", key, "--spec-ngram-simple-size-m", value]
            return ["--spec-type", "ngram-simple", *sizes, "--spec-draft-n-max", value]
        if self.name == DRAFT and self._files.drafter is not None:
            most, threads = str(DRAFT_TOKENS[variant.option]), str(variant.threads)
            file = [] if named else ["--spec-draft-model", str(self._files.drafter.file)]
            share = [] if named else ["--spec-draft-threads", threads, "--spec-draft-threads-batch", threads]
            return ["--spec-type", "draft-simple", *file, *share, "--spec-draft-n-max", most]
        return []


class LlamaFamily(Family):
    """llama.cpp's contestants, or the reason why they are absent. A prompt and its text take `room` positions at most.
    The program is the one in `folder` if given.
    """

    name = FAMILY

    def __init__(self, config: EngineConfig, slots: int, room: int, folder: Path | None = None) -> None:
        self.contestants: list[LlamaContestant] = []
        self.absent = dict.fromkeys((PLAIN, NGRAM, DRAFT), "")
        try:
            files = _find_files(config, slots, room, folder)
        except LlamaServerError as error:
            self.absent = dict.fromkeys(self.absent, str(error))
        else:
            names = [PLAIN, NGRAM, *([DRAFT] if files.drafter else [])]
            self.contestants = [LlamaContestant(name, files) for name in names]
            self.absent = {} if files.drafter else {DRAFT: "there is no drafter, or it was not read from a GGUF file"}


def find_original(name: str) -> Original | None:
    """Return the GGUF file that `name` refers to or was converted from; None if there is none or it was deleted. If an
    adapter was merged into the model, the file is the base model.
    """
    model = resolve(name)
    config = read_json(model.folder() / "config.json")
    kind = source_quantization(config)
    if not kind:
        return None
    if model.form == "adapter" and model.path is not None:
        model = resolve(base_model_name(model.path))
    if model.form == "gguf" and model.path is not None:
        return Original(model.path, kind)
    digest = config[SOURCE].get("sha256")
    kept = [model.path for model in pulled().values() if digest in model.sha256.values() and is_gguf(model.model)]
    return Original(kept[0], kind) if kept else None


def _find_files(config: EngineConfig, slots: int, room: int, folder: Path | None) -> Files:
    """Return the program and the files. Raise LlamaServerError if llama.cpp can't take part."""
    if config.device != "cpu":
        raise LlamaServerError("it takes part beside a CPU only")  # the package has no GPU kernels
    target = find_original(config.target)
    if target is None:
        raise LlamaServerError("the target was not read from a GGUF file: name one by --target FILE.gguf")
    drafter = find_original(config.drafter) if config.drafter != "none" else None
    return Files(find_program(folder), target, drafter, slots, room)


def _together(server: LlamaServer, work: Workload) -> Answer:
    """Decode one batch. Decoding starts once every text has its first token."""

    def complete(task: Task) -> Completion:
        return server.complete(task.ids, work.tokens, work.ends, temperature=work.temperature, seed=task.number)

    with ThreadPoolExecutor(len(work.tasks)) as pool:  # threads that wait for the server
        began = time.perf_counter()
        found = list(pool.map(complete, work.tasks))
    ended, first = max(completion.ended for completion in found), max(completion.arrived[0] for completion in found)
    ids = [cut_at_end(completion.ids, work.ends) for completion in found]
    first_tokens = sum(moment <= first for completion in found for moment in completion.arrived)
    accounts = [completion.timings for completion in found if completion.timings is not None]
    drafted, accepted = sum(each.drafted for each in accounts), sum(each.accepted for each in accounts)
    later = sum(map(len, ids)) - first_tokens
    return Answer(ids, ended - began, first - began, first_tokens, max(0, later - accepted), drafted, accepted)
