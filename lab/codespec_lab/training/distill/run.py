"""`codespec distill` from settings to the output folder, in stages with saved results, so a killed run can resume."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from codespec.backends.torch.loader import load_torch_model
from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from codespec.errors import PairError
from codespec.store.machine import computes_bfloat16
from codespec_lab.progress import StageBar
from codespec_lab.training.distill.acceptance import (
    LENGTH,
    Comparison,
    Estimate,
    Measured,
    licence_of,
    measure,
    measuring_engine,
    write_card,
)
from codespec_lab.training.distill.lessons import Lesson, TextOrigin, make_lesson
from codespec_lab.training.distill.loop import Score, Training
from codespec_lab.training.distill.places import load_places, request_at
from codespec_lab.training.distill.stages import (
    PLACES_A_MINUTE,
    Places,
    Split,
    general_code,
    prepare_places,
    read_code,
    read_texts,
    split,
    to_read,
    write_texts,
)
from codespec_lab.training.distill.student import Student, check_size
from codespec_lab.training.distill.teacher import AlignedVocabularies, Expected, Teacher
from codespec_lab.training.distill.texts import GROUP, DistillationExample, distillation_engine, write_group
from codespec_lab.training.distill.work import Settings, WorkFolder, check_out, check_target
from codespec_lab.training.run import catching_signals

WRITING, READING = 0.45, 0.7  # shares of the minutes at which writing and reading end
SPARE = 10.0  # seconds, in addition to the last measurement
OWN = 2 * GROUP  # texts that the drafter writes per round
OWN_SHARE = 0.5  # time per own text relative to earlier texts: the drafter writes faster than the target
MEASURED_AGAIN = 1.2  # expected time of the last measurement relative to the first


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run: `folder` is None if the old drafter is better, `found` is None if a signal stopped the run."""

    found: Comparison | None
    folder: Path | None
    reason: str = ""


def distill(settings: Settings, *, resume: bool = False) -> Outcome:
    """Run until finished or until a signal arrives.

    Raise TrainingError, ModelError or PairError with a one-sentence message for every error a user can cause.
    """
    torch.set_num_threads(settings.threads)
    check_out(settings)
    check_size(settings.drafter)
    code = None if resume else split(read_code([Path(folder) for folder in settings.code]))
    fills_in = check_target(settings)
    lora = {"full": False, "lora": True}.get(settings.method)
    student = Student(settings.drafter, seed=settings.seed, lora=lora, device=settings.device)
    work = WorkFolder(Path(settings.out), settings.as_dict(), resume=resume)
    return _Run(settings, work, student).finish(code, fills_in=fills_in)


class _Run:
    """One run; its target is loaded on first use."""

    def __init__(self, settings: Settings, work: WorkFolder, student: Student) -> None:
        self.settings, self.work, self.student = settings, work, student
        self.end = 60.0 * settings.minutes
        self._teacher: Teacher | None = None

    @cached_property
    def target(self) -> TorchModel:
        device = self.settings.device
        dtype = "bfloat16" if device != "cpu" or computes_bfloat16() else "float32"
        target = load_torch_model(self.settings.target, device=device, dtype=dtype)
        if target.spec.parameters <= self.student.parameters:
            self.work.remove()
            raise PairError(
                f"{self.settings.drafter} is as large as {self.settings.target}, so it cannot draft for it: "
                "choose a smaller --drafter."
            )
        return target

    def finish(self, code: Split | None, *, fills_in: bool) -> Outcome:
        places = self._places(code, fills_in)
        before, spent = self._before(places)
        lessons, facts = self._lessons(places)
        training = self._train(lessons, reserve=MEASURED_AGAIN * spent + SPARE)
        return self._conclude(training, places, before, facts) if training else Outcome(None, None)

    def _places(self, code: Split | None, fills_in: bool) -> Places:
        settings = self.settings

        def own() -> Split:
            found = code or split(read_code([Path(folder) for folder in settings.code]))
            self.work.decide("files", lambda: [len(found.learned), len(found.held_out)])
            return found

        def general() -> Split:
            found = general_code()
            kept = read_code([Path(folder) for folder in settings.keep]) if settings.keep else found.held_out
            return Split(found.learned, kept)

        count = settings.places or int(PLACES_A_MINUTE * settings.minutes)
        return prepare_places(self.work.folder, own, general, count, seed=settings.seed, fills_in=fills_in)

    def _before(self, places: Places) -> tuple[dict[str, list[int]], float]:
        """Measure the old drafter; return accepted tokens and rounds for both sets of positions, and the seconds."""

        def make() -> dict[str, Any]:
            old, bar = None if self.student.is_new else self._load(str(self.student.folder)), StageBar("judge")
            began = self.work.seconds
            engine = measuring_engine(self.target, old, self.settings.threads)
            building = self.work.seconds - began  # the last measurement builds an engine too
            for kind, where in (("here", places.judge_here), ("elsewhere", places.judge_elsewhere)):
                self.work.save_part(kind, 0, measure(engine, where, bar).texts)
            bar.note(f"wrote the texts by which the best weights are chosen, {self.work.seconds:.0f} s of the run used")
            began = self.work.seconds
            found = self._measure(engine, places)
            counts = {kind: [measured.accepted, measured.rounds] for kind, measured in found.items()}
            return {"counts": counts, "seconds": building + self.work.seconds - began}

        decided = self.work.decide("before", make)
        return decided["counts"], decided["seconds"]

    def _measure(self, engine: Engine, places: Places) -> dict[str, Measured]:
        bar, began = StageBar("measure"), self.work.seconds
        found = {"here": measure(engine, places.here, bar), "elsewhere": measure(engine, places.elsewhere, bar)}
        rates = ", ".join(f"{measured.a_round:.3f} {kind}" for kind, measured in found.items())
        bar.note(f"accepted a round: {rates}; {self.work.seconds - began:.0f} s")
        return found

    def _load(self, name: str) -> TorchModel:
        return load_torch_model(name, device=self.settings.device, exact=False)

    @cached_property
    def _vocabularies(self) -> AlignedVocabularies:
        return AlignedVocabularies(self.target.tokenizer, self.student.tokenizer)

    def teacher(self) -> Teacher:
        """Return the target, ready to read."""
        if self._teacher is None:
            self._teacher = Teacher(self.target, self._vocabularies)
        return self._teacher

    def _lessons(self, places: Places) -> tuple[list[Lesson], dict[str, Any]]:
        """Return the lessons, and the number of texts of each kind."""
        work, settings = self.work, self.settings
        bar = StageBar("write")
        written = write_texts(
            lambda: distillation_engine(self.target, settings.threads), places.written, work, bar,
            seed=settings.seed, until=WRITING * self.end,
        )  # fmt: skip
        bar.note(f"{sum(map(len, written))} texts written, {work.seconds:.0f} s of the run used")
        bar = StageBar("read")
        found, counts = list[Lesson](), dict[str, Any]()
        for kind, parts in (("written", written), ("read", to_read(places.read))):
            taught = read_texts(self.teacher, kind, parts, work, bar, until=READING * self.end)  # type: ignore[arg-type]
            found += self._to_lessons(kind, taught)  # type: ignore[arg-type]
            counts[kind] = len(taught)
            bar.note(f"{len(taught)} texts {kind} and taught, {work.seconds:.0f} s of the run used")
        own = f" and {OWN} of its own in each of {settings.rounds} rounds" if settings.rounds else ""
        return found, counts | {"own": own}

    def _to_lessons(self, kind: TextOrigin, taught: Sequence[tuple[DistillationExample, Expected]]) -> list[Lesson]:
        tokenizer, template = self.student.tokenizer, self.student.template
        return [make_lesson(tokenizer, template, example, expected, kind) for example, expected in taught]

    def _train(self, lessons: list[Lesson], reserve: float) -> Training | None:
        """Return the finished training, or None if a signal stopped it."""
        work, settings = self.work, self.settings
        target = self.target.tokenizer
        here, elsewhere = (Estimate(self.student, target, work.load_part(k, 0) or []) for k in ("here", "elsewhere"))
        judge: Callable[[], Score] = lambda: Score(here.of(self.student), elsewhere.of(self.student))  # noqa: E731
        training = Training(self.student, settings.rate, settings.seed, judge)
        training.learn_from(lessons, 0)
        training.open(work.checkpoint)
        own = settings.rounds * OWN * OWN_SHARE * work.seconds / max(1, len(lessons))
        left = self.end - work.seconds - reserve - own
        steps = work.decide("steps", lambda: settings.steps or training.fitting_steps(left))
        bar = StageBar("train")
        with catching_signals() as interruption:
            for turn in range(settings.rounds + 1):
                first, until = (steps * end // (settings.rounds + 1) for end in (turn, turn + 1))
                if turn and not training.over:
                    lessons = [*lessons, *self._own_lessons(turn, training)]
                    training.learn_from(lessons, turn)
                if not training.run(first, until, steps, work.checkpoint, bar, lambda: interruption.requested):
                    work.save()
                    return None
        bar.note(f"{training.position.step} steps, {work.seconds:.0f} s of the run used")
        return training

    def _own_lessons(self, turn: int, training: Training) -> list[Lesson]:
        """Return lessons from the drafter's current texts and the target's distributions in them.

        This is generalized distillation (Agarwal et al. 2024).
        """
        work, settings = self.work, self.settings
        part = work.load_part("own", turn)
        if part is None:
            places = load_places(work.folder / "places-written.jsonl.gz")[-turn * OWN :][:OWN]
            folder = work.folder / "own-drafter"
            training.student.export(folder)
            engine = distillation_engine(load_torch_model(str(folder), device=settings.device), settings.threads)
            requests = [request_at(p, n, seed=settings.seed + turn, sampled=0.5) for n, p in enumerate(places)]
            part = write_group(engine.complete, requests)
            work.save_part("own", turn, part)
        texts = part
        return self._to_lessons("own", list(zip(texts, work.expected("own", turn, self._reading(texts)), strict=True)))

    def _reading(self, texts: list[DistillationExample]) -> Callable[[], list[Expected]]:
        return lambda: self.teacher().read(texts)

    def _conclude(
        self, training: Training, places: Places, before: dict[str, list[int]], facts: dict[str, Any]
    ) -> Outcome:
        """Measure the best weights, and move them to the output folder if they are better."""
        work, position = self.work, training.position
        if not position.best_step:
            reason = f"no step accepted more than {position.first_here:.3f} a round by estimate"
            work.remove()
            return Outcome(None, None, reason)
        self.student.load_state_dict(training.best)
        self.student.export(work.student)
        self._teacher = None  # its slots are reallocated
        engine = measuring_engine(self.target, self._load(str(work.student)), self.settings.threads)
        found = self._measure(engine, places)
        ratios = {kind: accepted / max(1, rounds) for kind, (accepted, rounds) in before.items()}
        old = {kind: None if self.student.is_new else ratio for kind, ratio in ratios.items()}
        compared = Comparison(old["here"], found["here"].a_round, old["elsewhere"], found["elsewhere"].a_round)
        if not compared.reason:
            write_card(work.student, facts | self._facts(training, places), compared)
            os.rename(work.student, self.settings.out)
        work.remove()
        return Outcome(compared, None if compared.reason else Path(self.settings.out), compared.reason)

    def _facts(self, training: Training, places: Places) -> dict[str, Any]:
        """Return the card's facts about the run."""
        settings, student = self.settings, self.student
        licence, line = licence_of(settings.drafter, student.folder)
        learned, held = self.work.decide("files", lambda: [0, 0])
        return {
            "target": Path(settings.target).name,
            "drafter": f"random weights ({settings.drafter})" if student.is_new else Path(settings.drafter).name,
            "licence": licence,
            "licence_line": line,
            "length": LENGTH,
            "here_places": len(places.here),
            "elsewhere_places": len(places.elsewhere),
            "elsewhere": "code given with --keep" if settings.keep else "four packages of the standard library",
            "learned_files": learned,
            "held_files": held,
            "method": "LoRA, merged" if student.lora else "all weights",
            "best_step": training.position.best_step,
            "steps": self.work.decide("steps", int),
            "rate": settings.rate,
            "seed": settings.seed,
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "shared": self._vocabularies.shared,
            "vocabulary": self.target.tokenizer.vocab_size,
            "command": settings.command,
        }
