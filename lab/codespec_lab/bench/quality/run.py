"""`codespec bench quality`: how often a target fills a gap with the text that was cut out, or with code that passes the
problem's tests. Every target fills the same gaps, greedily and in plain decoding, since drafts do not change the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path, PurePath
from typing import Any, Literal

from codespec import __version__
from codespec.config import SHIPPED, EngineConfig
from codespec.engine.engine import Engine
from codespec.engine.load import build_engine
from codespec.errors import ConfigError
from codespec.models.loader import model_facts, weights_folder
from codespec.models.processor import processor
from codespec.progress import ProgressBar
from codespec.store.resolve import resolve
from codespec.text.fim import FimMissing, find_template
from codespec.text.tokenizer import TextTokenizer
from codespec.types import CompletionRequest
from codespec_lab.bench.llama_client import LlamaClient, LlamaServerError
from codespec_lab.bench.quality.definitions import add_definitions
from codespec_lab.bench.quality.execution import Ended, Executor, TaskTest, demand_limits, read_tests
from codespec_lab.bench.quality.infilling_rules import (
    cut,
    infilling_request,
    infilling_sites,
    most_tokens,
    prompt_ids,
    stops,
)
from codespec_lab.bench.quality.sites import PROJECT_KINDS, SEED, TASK_KINDS, GapSite, choose_sites, sample_sites
from codespec_lab.bench.quality.summary import Outcome, count_rows, differences
from codespec_lab.bench.results import commit_name
from codespec_lab.bench.sites import read_held_out_code
from codespec_lab.bench.typing.summary import common
from codespec_lab.corpus.held_out import HeldOut
from codespec_lab.corpus.infilling import BATCH, begins_right, infill_request, is_exact

GROUP = 4 * BATCH  # requests in the queue at once, to keep the batch full
RequestShape = Literal["editor", "raw", "infilling"]
Measured = tuple[dict[str, Any], list[Outcome], list[Outcome]]  # facts, outcomes without definitions and with them


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityBench:
    """The settings: the target of `config` and the targets to `compare`.

    The sites are `each` for each problem and kind (0: one, or all with the shape `infilling`), of at most `limit`
    problems and sites a language (0: all); `sample` of each kind are drawn from these (0: all). `formats` are further
    number formats of the target. `llama_server` is the address of another contestant, which needs the shape
    `infilling`. With `definitions`, every contestant fills gaps in held-out code a second time, with the definitions
    that the file imports in the prompt. `command` is the user's command line.
    """

    config: EngineConfig
    compare: Sequence[str] = ()
    prompts: Path | None = None
    held_out: Path | None = None
    kinds: Sequence[str] | None = None
    seed: int = SEED
    each: int = 0
    limit: int = 0
    sample: int = 0
    formats: Sequence[str] = ()
    llama_server: str = ""
    shape: RequestShape = "editor"
    left_only: bool = False
    definitions: bool = False
    execute: bool = False
    command: str = ""


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
    """Return all figures as plain JSON values. Progress goes to stderr. Raise ConfigError, TrainingError or ModelError
    before any measurement.
    """
    server = _server(bench)
    contestants = _contestants(bench)
    held_out = read_held_out_code(bench.held_out, bench.prompts)
    sites = _sites(bench, held_out)
    judge = Judge(_tests(bench))
    execution = judge.check_answers(sites) if bench.execute else None
    found = [_measure(bench, config, label, sites, judge) for label, config in contestants.items()]
    if server is not None:
        found.append(_measure_server(bench, server, sites, judge, found[0][0]["context"]))
    return {**_conditions(bench, held_out), "execution": execution, **_side_by_side(sites, found)}


def _side_by_side(sites: Sequence[GapSite], found: Sequence[Measured]) -> dict[str, Any]:
    """Compare the first contestant with the others, and each with itself with definitions. Return all figures."""
    targets: list[dict[str, Any]] = []
    compared: list[dict[str, Any]] = []
    projects = [number for number, site in enumerate(sites) if site.kind in PROJECT_KINDS]
    theirs = [sites[number] for number in projects]
    known = sum(bool(site.snippets) for site in theirs)
    first, outcomes, _ = found[0]
    for facts, plain, defined in found:
        name = facts["name"]
        targets.append({**facts, "rows": count_rows(sites, plain)})
        if name != first["name"]:
            compared.append({"target": first["name"], "other": name, "kinds": differences(sites, outcomes, plain)})
        if defined:
            notes = [f"{known} of {len(theirs)} sites in held-out code are in files whose imports define something"]
            other = f"{name} + definitions"
            without, those = ([given[number] for number in projects] for given in (plain, defined))
            targets.append({**facts, "name": other, "notes": notes, "rows": count_rows(theirs, those)})
            compared.append({"target": name, "other": other, "kinds": differences(theirs, without, those)})
    return {"targets": targets, "differences": compared}


def labels(names: Sequence[str]) -> list[str]:
    """Return short names: the last part of each path or id, with as many parts before it as make the names unique;
    `starter` for the shipped target.
    """
    parts = [("starter",) if name == str(SHIPPED / "target") else PurePath(name).parts for name in names]
    length = next((n for n in range(1, max(map(len, parts))) if len({part[-n:] for part in parts}) == len(parts)), 0)
    return ["/".join(part[-length:]) for part in parts]


def request_for(bench: QualityBench, site: GapSite) -> CompletionRequest:
    """Return the request at a site: an editor's; `raw`, ended by the target's end tokens only and not healed; or by the
    published rules.
    """
    if bench.shape == "infilling":
        return infilling_request(site, bench.left_only)
    request = replace(
        infill_request(site.gap, site.shape),
        language=site.gap.language,
        snippets=site.snippets,
        max_tokens=site.tokens,
    )
    if bench.left_only:
        request = replace(request, suffix="")
    return replace(request, shape="raw", heal=False) if bench.shape == "raw" else request


def _contestants(bench: QualityBench) -> dict[str, EngineConfig]:
    """Return the configurations by label. Raise ConfigError for duplicates and unsuitable number formats."""
    names, config = [bench.config.target, *bench.compare], bench.config
    if len(set(names)) < len(names):
        raise ConfigError("--compare names a target twice: give different ones.")
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
    for one in found.values():  # report missing weights before minutes of work
        weights_folder(one.target, one.dtype, enlarged=one.target_shape != "own")
    return found


def _sites(bench: QualityBench, held_out: HeldOut) -> list[GapSite]:
    if bench.shape == "infilling":
        sites = infilling_sites(held_out, _kinds(bench), seed=bench.seed, each=bench.each, limit=bench.limit)
    else:
        sites = choose_sites(held_out, _kinds(bench), seed=bench.seed, each=bench.each or 1, limit=bench.limit)
    if bench.sample:
        sites = sample_sites(sites, bench.sample, bench.seed)
    return add_definitions(sites, held_out) if bench.definitions else sites


def _server(bench: QualityBench) -> LlamaClient | None:
    if not bench.llama_server:
        return None
    if bench.shape != "infilling":
        raise ConfigError("llama-server can't be asked as an editor asks: use --shape infilling with --llama-server.")
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


def _measure_server(
    bench: QualityBench, server: LlamaClient, sites: Sequence[GapSite], judge: Judge, context: int
) -> Measured:
    """Fill all gaps with a llama-server, from the same prompt ids as the target in an engine with this context."""
    tokenizer = TextTokenizer.from_folder(resolve(bench.config.target).folder())

    def write(chosen: Sequence[GapSite]) -> list[str]:
        bar = ProgressBar("llama.cpp", len(chosen))
        texts = []
        for site in chosen:
            ids = prompt_ids(tokenizer, site, bench.left_only, context)
            texts.append(cut(site, server.complete(ids, most_tokens(site), stops=stops(site)).text))
            bar.advance(1)
        return texts

    with _server_errors(bench.llama_server):
        known = server.facts()
        outcomes = _fill(sites, write, judge)
    own = PurePath(bench.config.target).name
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
    return facts, *outcomes


def _sides(bench: QualityBench, tokenizer: TextTokenizer) -> str:
    template = find_template(tokenizer)
    return "left" if bench.left_only or isinstance(template, FimMissing) else template.order


def _measure(bench: QualityBench, config: EngineConfig, label: str, sites: Sequence[GapSite], judge: Judge) -> Measured:
    """Load a target and fill all gaps with it."""
    engine = build_engine(config)
    notes: list[str] = []

    def write(chosen: Sequence[GapSite]) -> list[str]:
        requests = [request_for(bench, site) for site in chosen]
        texts, more = _write(engine, requests, ProgressBar(label, len(chosen)).advance)
        notes.extend(more)
        infilling = bench.shape == "infilling"
        return [cut(site, text) if infilling else text for site, text in zip(chosen, texts, strict=True)]

    plain, defined = _fill(sites, write, judge)
    kernel = [f"multiplied by {engine.kernel}"] if engine.kernel else []
    facts = model_facts(engine.target) | {
        "name": label,
        "dtype": engine.target.spec.dtype,
        "context": engine.context,
        "sides": _sides(bench, engine.target.tokenizer),
        "notes": list(dict.fromkeys([*kernel, *engine.notes, *notes])),
    }
    return facts, plain, defined


def _fill(
    sites: Sequence[GapSite], write: Callable[[Sequence[GapSite]], list[str]], judge: Judge
) -> tuple[list[Outcome], list[Outcome]]:
    """Return the outcomes at all sites without other files' definitions, and with them (empty if no site has any).
    Sites without definitions are filled once.
    """
    plain = [replace(site, snippets=()) for site in sites]
    outcomes = [judge.outcome(site, text) for site, text in zip(sites, write(plain), strict=True)]
    numbers = [number for number, site in enumerate(sites) if site.snippets]
    if not numbers:
        return outcomes, []
    defined = list(outcomes)
    for number, text in zip(numbers, write([sites[number] for number in numbers]), strict=True):
        defined[number] = judge.outcome(sites[number], text)
    return outcomes, defined


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
    texts: list[str] = []
    notes: list[str] = []
    for start in range(0, len(requests), GROUP):
        done = engine.complete(requests[start : start + GROUP])
        texts += [completion.text for completion in done]
        notes += [note for completion in done for note in completion.stats.notes]
        advance(len(done))
    return texts, notes


def _kinds(bench: QualityBench) -> Sequence[str]:
    """Return the requested kinds, or all kinds for which there are texts."""
    kinds = bench.kinds or ((*TASK_KINDS, *PROJECT_KINDS) if bench.prompts else PROJECT_KINDS)
    if bench.prompts is None and set(kinds) & set(TASK_KINDS):
        raise ConfigError(f"The kinds {', '.join(TASK_KINDS)} are cut out of HumanEval: name its file by --prompts.")
    if bench.definitions and not set(kinds) & set(PROJECT_KINDS):
        raise ConfigError(f"--definitions needs held-out code: add {' or '.join(PROJECT_KINDS)} to --kinds.")
    if bench.definitions and bench.left_only:
        raise ConfigError("--definitions needs text after the cursor in the prompt: leave out --left-only.")
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
        "sample": bench.sample,
        "shape": bench.shape,
        "left_only": bench.left_only,
        "definitions": bench.definitions,
        "data": {name: digest for name, digest in held_out.digests.items() if kinds & set(used[name])},
        "note": held_out.note if kinds & set(PROJECT_KINDS) else "",
    }
