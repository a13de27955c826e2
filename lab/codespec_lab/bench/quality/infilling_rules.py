"""HumanEval-Infilling's rules (Bavarian et al. 2022), derived from HumanEval's own solutions.

single-line   each line with text, its line break included: 1,033 sites in HumanEval's 164 problems
multi-line    each run of whole lines that begins and ends with one: 5,815 sites
random-span   SPANS texts a problem between any two characters, chosen by the seed: not the published spans

The whole solution surrounds a gap, the prompt is not healed, and a completion ends at the model's end token; a
single-line completion ends with its line. A gap at a solution's end is followed by a line break, since codespec builds
no fill-in-the-middle prompt without text after the cursor.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from codespec.contract.types import CompletionRequest
from codespec.text.fim import build_prompt
from codespec.text.fim_templates import FimMissing, find_template
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.bench.quality.sites import HUMANEVAL, GapSite, choose_sites, gap_between
from codespec_lab.bench.settings import LINE, MULTI, SINGLE, SPAN, TASK_KINDS
from codespec_lab.corpus.gaps import Gap
from codespec_lab.corpus.held_out import HeldOut, Task

SPANS = 10  # per problem
MOST_TOKENS = {SINGLE: 64, MULTI: 256, SPAN: 256}  # longest in Qwen's tokens: 47 for a line, 240 for a solution


def infilling_sites(
    held_out: HeldOut, kinds: Sequence[str], *, seed: int, each: int = 0, limit: int = 0
) -> list[GapSite]:
    """Return the sites of `kinds` in the first `limit` problems, `each` per problem (0: all). Held-out code is cut as
    for an editor.
    """
    found: list[GapSite] = []
    for kind in kinds:
        if kind in TASK_KINDS:
            for task in held_out.tasks[: limit or None]:
                gaps = infilling_gaps(task, kind, seed)
                if each and each < len(gaps):
                    gaps = random.Random(f"{seed} {kind} {task.name} each").sample(gaps, each)
                found += [GapSite(kind, HUMANEVAL, gap) for gap in gaps]
        else:
            found += choose_sites(held_out, [kind], seed=seed, limit=limit)
    return found


def infilling_gaps(task: Task, kind: str, seed: int) -> list[Gap]:
    """Return all gaps of one kind in a problem's solution."""
    if kind == SPAN:
        return _spans(task, seed)
    lines = task.solution.splitlines(keepends=True)
    begins = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    written = [number for number, line in enumerate(lines) if line.strip()]
    runs = [(first, last) for first in written for last in written if first == last or (first < last and kind == MULTI)]
    return [gap_between(task, begins[first], begins[last + 1]) for first, last in runs]


def infilling_request(site: GapSite, left_only: bool) -> CompletionRequest:
    """Return the request of a site for an engine."""
    before, behind = _around(site, left_only)
    return CompletionRequest(
        prefix=before,
        suffix=behind,
        path=site.gap.path,
        language=site.gap.language,
        snippets=site.snippets,
        max_tokens=most_tokens(site),
        stop=stops(site),
        speculate=False,
    )


def prompt_ids(tokenizer: TextTokenizer, site: GapSite, left_only: bool, context: int) -> list[int]:
    """Return the prompt that an engine with this context builds for that request, to send to another server."""
    before, behind = _around(site, left_only)
    found = find_template(tokenizer)
    return build_prompt(
        tokenizer,
        None if isinstance(found, FimMissing) else found,
        prefix=before,
        suffix=behind,
        path=site.gap.path,
        snippets=[(snippet.path, snippet.text) for snippet in site.snippets],
        budget=context - most_tokens(site),
        heal=False,
    ).ids


def most_tokens(site: GapSite) -> int:
    """Return the token limit of a completion."""
    return MOST_TOKENS.get(site.kind, site.tokens)


def stops(site: GapSite) -> tuple[str, ...]:
    """Return the texts that end a completion in addition to an end token."""
    return ("\n",) if site.kind in (SINGLE, LINE) else ()


def cut(site: GapSite, written: str) -> str:
    """Return the part of a completion to score. A missing line of HumanEval includes its line break."""
    if site.kind not in (SINGLE, LINE):
        return written
    line = written.partition("\n")[0]
    return line + "\n" if site.gap.answer.endswith("\n") else line


def _spans(task: Task, seed: int) -> list[Gap]:
    dice = random.Random(f"{seed} {SPAN} {task.name}")
    size = len(task.solution)
    spans: dict[tuple[int, int], None] = {}
    for _ in range(SPANS * SPANS):  # short solutions have few spans
        begin, end = sorted((dice.randint(0, size), dice.randint(0, size)))
        if len(spans) < SPANS and task.solution[begin:end].strip():
            spans[begin, end] = None
    return [gap_between(task, begin, end) for begin, end in spans]


def _around(site: GapSite, left_only: bool) -> tuple[str, str]:
    gap = site.gap
    before, behind = (gap.before, gap.behind) if site.kind in TASK_KINDS else (gap.prefix, gap.suffix)
    return before, "" if left_only else behind or "\n"
