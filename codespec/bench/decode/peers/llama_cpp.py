"""llama.cpp as a contestant, by its Python package: plain with GGUF files written here from the target's weights, plain
with the user's own file where the target was read from one, and with a lookup in its fastest format.

It is called by its lowest interface, all prompts in one batch, so that the package's own loop does not count. It gets
the target's ids, after a check that each of its tokens spells the same bytes. Knows llama.cpp; does not know codespec's
engine.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codespec.bench.decode.contest import Answer, Contestant, ModelCache, PeerError, Variant, in_turn, thread_counts
from codespec.bench.decode.peers.codespec_engine import FAMILY as OWN
from codespec.bench.decode.peers.gguf_file import FORMATS, why_not, write_gguf
from codespec.bench.decode.peers.hugging_face import load_network
from codespec.bench.decode.tasks import Task, Workload
from codespec.catalogue.conversion_cache import SOURCE
from codespec.catalogue.store import pulled
from codespec.config import EngineConfig
from codespec.model_folders.conversions import base_model_name, is_adapter, is_gguf, source_quantization
from codespec.model_folders.find import find_folder, find_local
from codespec.models.processor import processor
from codespec.models.shapes import SHAPES, enlarge
from codespec.text.control_tokens import read_json
from codespec.text.tokenizer import TextTokenizer

FAMILY = "llama.cpp"
NGRAM_NAME = f"{FAMILY} n-gram"
PACKAGES = ("llama_cpp", "gguf")
NGRAM, GUESS = 2, 10  # ids looked for, ids drafted: the package's own defaults
PIECE = 512  # bytes of a token, at most

Row = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Original:
    """The GGUF file that a target was read from, and the format in which it stores most weights ("Q4_1")."""

    file: Path
    kind: str


@dataclass(slots=True)
class LlamaText:
    """One text being written; its `pending` ids were not fed yet: the first of them is final, the
    others are drafted.
    """

    number: int
    ids: list[int]
    prompt: int
    pending: list[int] = field(default_factory=list)
    dice: np.random.Generator = field(default_factory=np.random.default_rng)

    @property
    def count(self) -> int:
        """Tokens written."""
        return len(self.ids) - self.prompt

    def ended(self, work: Workload) -> bool:
        """Whether the text is complete."""
        return self.count >= work.tokens or (self.count > 0 and self.ids[-1] in work.ends)


class LlamaModel:
    """A loaded GGUF file with a cache for `slots` sequences of `room` positions. Without `repacked` the weights keep
    their layout instead of one that suits the processor.
    """

    def __init__(self, file: Path, slots: int, room: int, vocabulary: int, repacked: bool) -> None:
        self._api: Any = importlib.import_module("llama_cpp")  # optional, and without types
        llama_cpp = self._api
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)  # kept: the library holds no reference
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        if not (repacked or hasattr(settings, "use_extra_bufts")):
            raise PeerError("this llama-cpp-python can't leave AMX, which fails on this file: install a newer one")
        settings.use_extra_bufts = repacked
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), settings)
        if not self._model:
            raise PeerError(f"llama.cpp can't load {file.name}")
        given = llama_cpp.llama_context_default_params()
        given.n_ctx, given.n_batch, given.n_ubatch, given.n_seq_max = slots * room, slots * room, 512, slots
        given.n_threads = given.n_threads_batch = 1
        self._context = llama_cpp.llama_init_from_model(self._model, given)
        if not self._context:
            raise PeerError("llama.cpp can't make a context for the prompts")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._batch = llama_cpp.llama_batch_init(slots * room, 0, 1)
        self._choosable = min(vocabulary, llama_cpp.llama_vocab_n_tokens(self._vocabulary))
        self.room = room

    def clear(self, threads: int) -> None:
        """Empties the cache."""
        self._api.llama_memory_clear(self._memory, True)
        self._api.llama_set_n_threads(self._context, threads, threads)

    def forward(self, parts: Sequence[tuple[int, int, Sequence[int], int]]) -> list[list[Row]]:
        """Feeds (sequence, position, ids, number of rows) and returns the last rows of logits of each."""
        batch, count, wanted = self._batch, 0, []
        for sequence, start, ids, keep in parts:
            for offset, token in enumerate(ids):
                batch.token[count], batch.pos[count], batch.n_seq_id[count] = token, start + offset, 1
                batch.seq_id[count][0] = sequence
                batch.logits[count] = offset >= len(ids) - keep
                count += 1
            wanted.append(range(count - keep, count))
        batch.n_tokens = count
        status = self._api.llama_decode(self._context, batch)
        if status:
            raise PeerError(f"llama.cpp's decoding fails with {status}")
        return [[self._row(number) for number in numbers] for numbers in wanted]

    def roll_back(self, sequence: int, length: int) -> None:
        """Cuts a sequence back to a length."""
        self._api.llama_memory_seq_rm(self._memory, sequence, length, -1)

    def spelled(self, token: int) -> bytes:
        """The bytes of an id; none for a control token."""
        buffer = ctypes.create_string_buffer(PIECE)
        size = self._api.llama_token_to_piece(self._vocabulary, token, buffer, PIECE, 0, False)
        return buffer.raw[: max(0, size)]

    def _row(self, number: int) -> Row:
        row = self._api.llama_get_logits_ith(self._context, number)
        return np.ctypeslib.as_array(row, shape=(self._choosable,))


class LlamaContestant:
    """One way to run llama.cpp: plain with a file of one of `kinds`, or with a lookup and the fastest of them."""

    family = FAMILY
    batched = True
    keyed = True  # one random number a token, in the order of the text

    def __init__(
        self,
        name: str,
        kinds: Sequence[str],
        models: ModelCache[LlamaModel],
        reference: str = "",
        *,
        repacked: bool = True,
    ) -> None:
        self.name = name
        self._repacked = repacked
        self.reference = reference
        self.plain = name != NGRAM_NAME
        self._kinds = kinds
        self._models = models

    def variants(self) -> list[Variant]:
        """File formats and threads."""
        return [Variant(kind, threads=threads) for kind, threads in product(self._kinds, thread_counts())]

    def begin(self) -> None:
        """Has learned nothing."""

    def facts(self, variant: Variant) -> dict[str, Any]:
        """The lookup's settings, and whether a file's weights are left as they are."""
        held_back = {} if self._repacked else {"repacked": False}
        return held_back if self.plain else {"ngram": NGRAM, "guess": GUESS}

    def answer(self, work: Workload, variant: Variant) -> Answer:
        """Decodes the prompts in batches that begin and end together."""
        return in_turn(work.parts(), lambda part: self._together(part, variant))

    def _together(self, work: Workload, variant: Variant) -> Answer:
        model = self._models.get(variant.dtype)
        longest = max(len(task.ids) for task in work.tasks) + work.tokens + GUESS
        if longest > model.room:
            raise PeerError(f"a prompt and its text take {longest} positions, more than {model.room}")
        model.clear(variant.threads)
        going = [_begin(number, task) for number, task in enumerate(work.tasks)]
        texts = list(going)
        began = time.perf_counter()
        self._round(model, going, work)
        first, verify, rounds, drafted, accepted = time.perf_counter(), 0.0, 0, 0, 0
        while going := [text for text in going if not text.ended(work)]:
            if not self.plain:
                for text in going:
                    text.pending += look_up(text.ids, min(GUESS, work.tokens - text.count - 1))
            guesses, before = sum(len(text.pending) - 1 for text in going), sum(text.count for text in going)
            verify += self._round(model, going, work)
            rounds, drafted = rounds + len(going), drafted + guesses
            accepted += sum(text.count for text in going) - before - len(going)
        ended = time.perf_counter()
        split = {"verify": verify, "rest": ended - first - verify}
        ids = [tuple(text.ids[text.prompt :]) for text in texts]
        return Answer(ids, ended - began, first - began, len(ids), rounds, drafted, accepted, split)

    def _round(self, model: LlamaModel, texts: Sequence[LlamaText], work: Workload) -> float:
        """One forward of all texts, and what it commits; returns its seconds. A prompt needs the logits of its last id
        only.
        """
        parts = []
        for text in texts:
            keep = len(text.pending) if text.count else 1
            start = len(text.ids) - (1 if text.count else text.prompt)
            parts.append((text.number, start, text.pending, keep))
        began = time.perf_counter()
        rows = model.forward(parts)
        seconds = time.perf_counter() - began
        for text, own in zip(texts, rows, strict=True):
            drafted = text.pending[1:] if text.count else []
            for offset, row in enumerate(own):
                token = choose(row, work.temperature, text.dice)
                text.ids.append(token)
                if offset >= len(drafted) or drafted[offset] != token or token in work.ends:
                    break
            model.roll_back(text.number, len(text.ids) - 1)
            text.pending = [text.ids[-1]]
        return seconds


class LlamaFamily:
    """llama.cpp's contestants, or why there are none; a prompt and its text take `room` positions at most."""

    name = FAMILY

    def __init__(self, config: EngineConfig, slots: int, room: int) -> None:
        self._config, self._slots, self._room = config, slots, room + GUESS
        self._models: ModelCache[LlamaModel] = ModelCache(self._load)
        self._original = find_original(config.target) if config.target_shape == "own" else None
        missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
        reason = f"{' and '.join(missing)} not installed: run `pip install llama-cpp-python gguf`" if missing else ""
        if config.device != "cpu":
            reason = "it takes part beside a CPU only"  # the package comes without a GPU's kernels
        contestants = self._all_contestants()
        self.contestants: Sequence[Contestant] = [] if reason else contestants
        self.absent: Mapping[str, str] = {llama.name: reason for llama in contestants} if reason else {}

    def keep(self, variants: Collection[Variant]) -> None:
        """Keeps all formats: a lookup may take any of them."""

    def _all_contestants(self) -> list[LlamaContestant]:
        """Contestants with the target's own weights are compared in text. The user's file is not: it is computed in
        another way, and may lack an adapter that the target has.
        """
        own = [self._original.kind.lower()] if self._original else []
        kinds = [kind.lower() for kind in FORMATS if kind.lower() not in own]
        plain = [LlamaContestant(f"{FAMILY} {kind}", [kind], self._models, OWN) for kind in kinds]
        repacked = repacks_originals()
        plain += [LlamaContestant(f"{FAMILY} {kind}", [kind], self._models, repacked=repacked) for kind in own]
        return [*plain, LlamaContestant(NGRAM_NAME, [*kinds, *own], self._models)]

    def _load(self, kind: str) -> LlamaModel:
        """Loads the target in a format, and checks that its tokens are the target's."""
        tokenizer = TextTokenizer.from_folder(find_folder(self._config.target))
        if self._original and self._original.kind.lower() == kind:
            model = self._load_original(self._original, tokenizer)
        else:
            model = self._load_written(kind, tokenizer)
        wrong = [n for n, spelled in enumerate(tokenizer.token_bytes) if spelled and model.spelled(n) != spelled]
        if wrong:
            raise PeerError(f"llama.cpp spells {len(wrong)} tokens otherwise (first: {wrong[0]})")
        return model

    def _load_original(self, original: Original, tokenizer: TextTokenizer) -> LlamaModel:
        return LlamaModel(original.file, self._slots, self._room, tokenizer.vocab_size, repacks_originals())

    def _load_written(self, kind: str, tokenizer: TextTokenizer) -> LlamaModel:
        network = load_network(self._config.target, "float32")
        reason = why_not(network, tokenizer)
        if reason:
            raise PeerError(reason)
        shape = SHAPES.get(self._config.target_shape)
        if shape is not None:
            network = enlarge(network, shape)
        with tempfile.TemporaryDirectory(prefix="codespec-gguf-") as folder:  # the file is mapped, so it may be deleted
            file = Path(folder) / f"{kind}.gguf"
            write_gguf(file, network, tokenizer, _merges(find_folder(self._config.target)), kind.upper())
            return LlamaModel(file, self._slots, self._room, tokenizer.vocab_size, repacked=True)


def find_original(target: str) -> Original | None:
    """The GGUF file that `target` names or was converted from; None if there is none, or it is gone. If an adapter was
    merged into the target, the file is the model without it.
    """
    config = read_json(find_folder(target) / "config.json")
    kind = source_quantization(config)
    if not kind:
        return None
    there = find_local(target)
    if there is not None and is_adapter(there):
        there = find_local(base_model_name(there))
    if there is not None and is_gguf(there):
        return Original(there, kind)
    digest = config[SOURCE].get("sha256")
    kept = [model.path for model in pulled().values() if digest in model.sha256.values() and is_gguf(model.path)]
    return Original(kept[0], kind) if kept else None


def repacks_originals() -> bool:
    """Whether a user's file is computed with repacked weights: with AMX this ends the process on some files (seen with
    Q4_1).
    """
    return not any(feature.startswith("amx") for feature in processor().features)


def choose(row: Row, temperature: float, dice: np.random.Generator) -> int:
    """The best id, or one drawn at a temperature."""
    if temperature == 0.0:
        return int(row.argmax())
    probabilities = np.exp((row - row.max()) / temperature).cumsum()
    return int(np.searchsorted(probabilities, dice.random() * probabilities[-1], side="right"))


def look_up(ids: Sequence[int], count: int) -> list[int]:
    """The ids that followed the first occurrence of the last two ids, else of the last one."""
    text = np.asarray(ids, dtype=np.int32)
    for size in range(NGRAM, 0, -1):
        matches = np.ones(len(text) - size, dtype=bool)
        for offset in range(size):
            matches &= text[offset : len(text) - size + offset] == text[len(text) - size + offset]
        found = matches.nonzero()[0]
        if len(found):
            begin = int(found[0]) + size
            return list(ids[begin : begin + count])
    return []


def _begin(number: int, task: Task) -> LlamaText:
    ids = list(task.ids)
    return LlamaText(number, list(ids), len(ids), ids, np.random.default_rng(task.number))


def _merges(folder: Path) -> list[str]:
    """The merges of a byte-level tokenizer.json, as GGUF spells them."""
    found = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in found]
