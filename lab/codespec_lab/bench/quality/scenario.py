"""`codespec bench quality`: how often a target fills a gap with the text that was cut out, or with code that passes the
problem's tests. Every target fills the same gaps, greedily and in plain decoding, since drafts do not change the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import PurePath
from typing import Any

from codespec import __version__
from codespec.api.config import SHIPPED, EngineConfig
from codespec.api.types import CompletionRequest
from codespec.backends.loader import model_facts
from codespec.engine.engine import Engine
from codespec.errors import ConfigError
from codespec.store.machine import processor
from codespec.store.resolve import resolve
from codespec.text.fim_templates import FimMissing, find_template
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.bench.harness import Deadline, Scenario, commit_name, write_json
from codespec_lab.bench.llama_server import LlamaClient, LlamaServerError
from codespec_lab.bench.quality.execution import Ended, Executor, TaskTest, demand_limits, read_tests
from codespec_lab.bench.quality.sites import (
    GapSite,
    choose_sites,
    cut,
    infilling_request,
    infilling_sites,
    max_tokens,
    prompt_ids,
    sample_sites,
    stops,
)
from codespec_lab.bench.quality.summary import Outcome, count_rows, differences, report
from codespec_lab.bench.settings import PROJECT_KINDS, TASK_KINDS, QualityBench
from codespec_lab.bench.sites import read_held_out_code
from codespec_lab.bench.statistics import common
from codespec_lab.corpus.gaps import BATCH, begins_right, infill_request, is_exact
from codespec_lab.corpus.held_out import HeldOut
from codespec_lab.progress import ProgressBar

GROUP = 4 * BATCH  # requests in the queue at once, to keep the batch full
Writer = Callable[[Sequence[GapSite]], list[str]]  # the texts for gaps


@dataclass(slots=True)
class Filled:
    """One contestant's facts, and its outcomes so far, in the order of the sites."""

    facts: dict[str, Any]
    outcomes: list[Outcome] = field(default_factory=list)


class Judge:
    """Scores completions, and runs HumanEval's tests if given."""

    def __init__(self, tests: dict[str, TaskTest]) -> None:
        self.tests = tests
        self.executor = Executor()

    def outcome(self, site: GapSite, written: str) -> Outcome:
        """Compare a completion with the missing text, ignoring trailing white space, and run its program."""
        answer = site.gap.answer
        exact, first_line = is_exact(written, answer), begins_right(written, answer)
        right = common(written, answer.rstrip())
        return Outcome(exact, first_line, self.run(site, written), right, len(answer.rstrip()))

    def run(self, site: GapSite, written: str) -> Ended | None:
        """Run the program with this completion and return how it ended; None if there are no tests."""
        test = self.tests.get(site.gap.path) if site.kind in TASK_KINDS else None
        return self.executor.run(test.program(site.gap.before + written + site.gap.behind)) if test else None

    def check_answers(self, sites: Sequence[GapSite]) -> dict[str, Any]:
        """Return the limits, and how many of the problems' own solutions pass: an upper bound for every target."""
        problems = {site.gap.path: site for site in sites if site.kind in TASK_KINDS}
        passed = [self.run(site, site.gap.answer) == "passed" for site in problems.values()]
        found = {"own_solutions": len(passed), "own_solutions_passed": sum(passed)}
        return found | self.executor.as_dict()


def run_quality_bench(bench: QualityBench) -> dict[str, Any]:
    """Return all figures as plain JSON values; they are kept in the file after each group of gaps. Progress goes to
    stderr. Raise ConfigError, TrainingError or ModelError before any measurement.
    """
    server = _server(bench)
    contestants = _contestants(bench)
    held_out = read_held_out_code(bench.held_out, bench.prompts)
    sites = _sites(bench, held_out)
    judge = Judge(_tests(bench))
    conditions = _conditions(bench, held_out)
    conditions["execution"] = judge.check_answers(sites) if bench.execute else None
    deadline, found = Deadline(bench.minutes), list[Filled]()

    def keep() -> dict[str, Any]:
        figures = {**conditions, **_side_by_side(sites, found)}
        if bench.file is not None:
            write_json(bench.file, figures)
        return figures

    def fill(facts: dict[str, Any], write: Writer) -> None:
        found.append(Filled(facts))
        for start in range(0, len(sites), GROUP):
            group = sites[start : start + GROUP]
            found[-1].outcomes += [judge.outcome(site, text) for site, text in zip(group, write(group), strict=True)]
            keep()
            if deadline.too_late(0.0):
                return

    for label, config in contestants.items():
        if not (found and deadline.too_late(0.0)):
            fill(*_engine_writer(bench, config, ProgressBar(label, len(sites)), label))
    if server is not None and not deadline.too_late(0.0):
        with _server_errors(bench.llama_server):
            fill(*_server_writer(bench, server, ProgressBar("llama.cpp", len(sites)), found[0].facts["context"]))
    return keep()


def _side_by_side(sites: Sequence[GapSite], found: Sequence[Filled]) -> dict[str, Any]:
    """Return the figures of all contestants, and the differences between the first and each other one at the sites that
    both have filled.
    """
    targets: list[dict[str, Any]] = []
    compared: list[dict[str, Any]] = []
    first = found[0]
    for contestant in found:
        facts, outcomes, filled = contestant.facts, contestant.outcomes, len(contestant.outcomes)
        notes = [f"stopped early: {filled} of {len(sites)} sites are filled"] if filled < len(sites) else []
        targets.append({**facts, "notes": facts["notes"] + notes, "rows": count_rows(sites[:filled], outcomes)})
        if contestant is not first:
            both = differences(sites[:filled], first.outcomes[:filled], outcomes)
            compared.append({"target": first.facts["name"], "other": facts["name"], "kinds": both})
    return {"targets": targets, "differences": compared}


def labels(names: Sequence[str]) -> list[str]:
    """Return short names: the last part of each path or id, with as many parts before it as make the names unique;
    `starter` for the shipped target.
    """
    parts = [("starter",) if name == str(SHIPPED / "target") else PurePath(name).parts for name in names]
    length = next((n for n in range(1, max(map(len, parts))) if len({part[-n:] for part in parts}) == len(parts)), 0)
    return ["/".join(part[-length:]) for part in parts]


def request_for(bench: QualityBench, site: GapSite) -> CompletionRequest:
    """Return the request at a site: an editor's, or one by the published rules."""
    if bench.shape == "infilling":
        return infilling_request(site, bench.left_only)
    request = replace(infill_request(site.gap, site.shape), language=site.gap.language, max_tokens=site.tokens)
    return replace(request, suffix="") if bench.left_only else request


def _contestants(bench: QualityBench) -> dict[str, EngineConfig]:
    """Return the configurations by label. Raise ConfigError for duplicates and unsuitable number formats."""
    names, config = [bench.config.target, *bench.compare], bench.config
    if len(set(names)) < len(names):
        raise ConfigError("--compare names a target twice: name different ones.")
    formats = [config.dtype, *bench.formats]
    if len(set(formats)) < len(formats):
        raise ConfigError(f"--formats names a number format twice ({config.dtype} is the target's own): leave it out.")
    short = labels(names)
    if bench.formats:
        found = {f"{short[0]} {dtype}": engine_settings(replace(config, dtype=dtype), names[0]) for dtype in formats}
        others = zip(names[1:], short[1:], strict=True)
        found |= {f"{label} {config.dtype}": engine_settings(config, name) for name, label in others}
    else:
        found = {label: engine_settings(config, name) for name, label in zip(names, short, strict=True)}
    for settings in found.values():  # report missing weights before minutes of work
        resolve(settings.target).open(settings.dtype)
    return found


def _sites(bench: QualityBench, held_out: HeldOut) -> list[GapSite]:
    choose = infilling_sites if bench.shape == "infilling" else choose_sites
    sites = choose(held_out, _kinds(bench), seed=bench.seed, limit=bench.limit or 0)
    return sample_sites(sites, bench.sample, bench.seed) if bench.sample else sites


def _server(bench: QualityBench) -> LlamaClient | None:
    if not bench.llama_server:
        return None
    if bench.shape != "infilling":
        raise ConfigError("llama-server accepts no editor's requests: use --shape infilling with --llama-server.")
    with _server_errors(bench.llama_server):
        server = LlamaClient(bench.llama_server)
        server.facts()  # fail before minutes are spent on the other contestants
        return server


@contextmanager
def _server_errors(url: str) -> Iterator[None]:
    """Turn a failure of a server into a ConfigError about it."""
    try:
        yield
    except LlamaServerError as error:
        raise ConfigError(f"{url} can't be used ({error}): check --llama-server and the log of that server.") from error


def _server_writer(
    bench: QualityBench, server: LlamaClient, bar: ProgressBar, context: int
) -> tuple[dict[str, Any], Writer]:
    """Return the facts of a llama-server, and a writer with the same prompt ids as an engine with this context."""
    tokenizer = TextTokenizer.from_folder(resolve(bench.config.target).folder())

    def write(sites: Sequence[GapSite]) -> list[str]:
        texts = []
        for site in sites:
            ids = prompt_ids(tokenizer, site, bench.left_only, context)
            texts.append(cut(site, server.complete(ids, max_tokens(site), stops=stops(site)).text))
            bar.advance(1)
        return texts

    known, own = server.facts(), PurePath(bench.config.target).name
    differs = own.endswith(".gguf") and own != known.model
    facts = {
        "name": "llama.cpp",
        "parameters": known.parameters,
        "dtype": known.model,
        "sha256": "",
        "sides": _sides(bench, tokenizer),
        "context": context,
        "build": known.build,
        "notes": [f"the server runs {known.model}, not {own}"] if differs else [],
    }
    return facts, write


def _sides(bench: QualityBench, tokenizer: TextTokenizer) -> str:
    template = find_template(tokenizer)
    return "left" if bench.left_only or isinstance(template, FimMissing) else template.order


def _engine_writer(
    bench: QualityBench, config: EngineConfig, bar: ProgressBar, label: str
) -> tuple[dict[str, Any], Writer]:
    """Load a target. Return its facts and its writer, which adds the engine's notes to the facts."""
    engine = Engine.build(config)
    kernel = [f"multiplied by {engine.kernel}"] if engine.kernel else []
    facts = model_facts(engine.target) | {
        "name": label,
        "dtype": engine.target.spec.dtype,
        "context": engine.context,
        "sides": _sides(bench, engine.target.tokenizer),
        "notes": list(dict.fromkeys([*kernel, *engine.notes])),
    }

    def write(sites: Sequence[GapSite]) -> list[str]:
        texts, notes = _write(engine, [request_for(bench, site) for site in sites], bar.advance)
        facts["notes"] += [note for note in dict.fromkeys(notes) if note not in facts["notes"]]
        infilling = bench.shape == "infilling"
        return [cut(site, text) if infilling else text for site, text in zip(sites, texts, strict=True)]

    return facts, write


def engine_settings(config: EngineConfig, target: str) -> EngineConfig:
    """Return settings for plain decoding in batches, without shortened prompts on a slow machine."""
    return replace(
        config, target=target, drafter="none", proposers="suffix", policy="fixed", speculate=False, learn=False,
        max_batch=BATCH, first_answer_ms=0,
    )  # fmt: skip


def _write(
    engine: Engine, requests: Sequence[CompletionRequest], advance: Callable[[int], None]
) -> tuple[list[str], list[str]]:
    """Return the texts, and the engine's notes about them."""
    done = engine.complete(requests)
    advance(len(done))
    return [completion.text for completion in done], [note for completion in done for note in completion.stats.notes]


def _kinds(bench: QualityBench) -> Sequence[str]:
    """Return the requested kinds, or all kinds for which there are texts."""
    kinds = bench.kinds or ((*TASK_KINDS, *PROJECT_KINDS) if bench.prompts else PROJECT_KINDS)
    if bench.prompts is None and set(kinds) & set(TASK_KINDS):
        raise ConfigError(f"The kinds {', '.join(TASK_KINDS)} are cut out of HumanEval: name its file by --prompts.")
    if bench.execute and not set(kinds) & set(TASK_KINDS):
        raise ConfigError("--execute runs HumanEval's tests: name its file by --prompts, and one of its kinds.")
    return kinds


def _tests(bench: QualityBench) -> dict[str, TaskTest]:
    if not bench.execute or bench.prompts is None:
        return {}
    demand_limits()
    return read_tests(bench.prompts)


def _conditions(bench: QualityBench, held_out: HeldOut) -> dict[str, Any]:
    kinds = set(_kinds(bench))
    used = {"prompts": TASK_KINDS, "projects": PROJECT_KINDS, "stdlib": PROJECT_KINDS}
    return {
        "bench": "quality",
        "command": bench.command,
        "date": date.today().isoformat(),
        "processor": processor().label,
        "codespec": __version__,
        "commit": commit_name(),
        "seed": bench.seed,
        "sample": bench.sample or 0,
        "shape": bench.shape,
        "left_only": bench.left_only,
        "data": {name: digest for name, digest in held_out.digests.items() if kinds & set(used[name])},
        "note": held_out.note if kinds & set(PROJECT_KINDS) else "",
    }


SCENARIO = Scenario(run_quality_bench, report)
