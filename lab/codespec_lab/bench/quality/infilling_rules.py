"""HumanEval-Infilling's rules (Bavarian et al. 2022), derived from HumanEval's own solutions.

single-line   each line with text, its line break included: 1,033 sites in HumanEval's 164 problems
multi-line    each run of whole lines that begins and ends with one: 5,815 sites
random-span   SPANS texts a problem between any two characters, chosen by the seed: other spans than the published ones

The whole solution stands around a gap, the prompt is not healed, and a completion ends at the model's end token; a
single line ends with its line. A gap at a solution's end is followed by a line break, since without any text after the
cursor codespec builds no fill-in-the-middle prompt.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from codespec.text.fim import FimMissing, build_prompt, find_template
from codespec.text.tokenizer import TextTokenizer
from codespec.types import CompletionRequest
from codespec_lab.bench.quality.sites import (
    HUMANEVAL,
    LINE,
    MULTI,
    SINGLE,
    SPAN,
    TASK_KINDS,
    GapSite,
    choose_sites,
    gap_between,
)
from codespec_lab.corpus.gaps import Gap
from codespec_lab.corpus.held_out import HeldOut, Task

SPANS = 10  # of a problem
MOST_TOKENS = {SINGLE: 64, MULTI: 256, SPAN: 256}  # Qwen's longest: 47 of a line, 240 of a solution


def infilling_sites(
    held_out: HeldOut, kinds: Sequence[str], *, seed: int, each: int = 0, limit: int = 0
) -> list[GapSite]:
    """The sites of these kinds in the first `limit` problems, `each` of them a problem (0: all); held-out code is cut
    as for an editor.
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
    """All gaps of one kind in a problem's solution."""
    if kind == SPAN:
        return _spans(task, seed)
    lines = task.solution.splitlines(keepends=True)
    begins = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    written = [number for number, line in enumerate(lines) if line.strip()]
    runs = [(first, last) for first in written for last in written if first == last or (first < last and kind == MULTI)]
    return [gap_between(task, begins[first], begins[last + 1]) for first, last in runs]


def infilling_request(site: GapSite, left_only: bool) -> CompletionRequest:
    """The request of a site for an engine."""
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
    """The prompt that an engine of this context builds for that request, for another server of the same model."""
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
    """The most tokens that a completion may have."""
    return MOST_TOKENS.get(site.kind, site.tokens)


def stops(site: GapSite) -> tuple[str, ...]:
    """What ends a completion beside an end token."""
    return ("\n",) if site.kind in (SINGLE, LINE) else ()


def cut(site: GapSite, written: str) -> str:
    """The part of a completion that is scored. A missing line of HumanEval includes its line break."""
    if site.kind not in (SINGLE, LINE):
        return written
    line = written.partition("\n")[0]
    return line + "\n" if site.gap.answer.endswith("\n") else line


def _spans(task: Task, seed: int) -> list[Gap]:
    dice = random.Random(f"{seed} {SPAN} {task.name}")
    size = len(task.solution)
    spans: dict[tuple[int, int], None] = {}
    for _ in range(SPANS * SPANS):  # short solutions have few
        begin, end = sorted((dice.randint(0, size), dice.randint(0, size)))
        if len(spans) < SPANS and task.solution[begin:end].strip():
            spans[begin, end] = None
    return [gap_between(task, begin, end) for begin, end in spans]


def _around(site: GapSite, left_only: bool) -> tuple[str, str]:
    gap = site.gap
    before, behind = (gap.before, gap.behind) if site.kind in TASK_KINDS else (gap.prefix, gap.suffix)
    return before, "" if left_only else behind or "\n"
