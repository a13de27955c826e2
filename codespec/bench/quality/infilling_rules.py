"""HumanEval-Infilling's rules (Bavarian et al. 2022): the prompt is not healed, a completion ends at the model's end
token, and a single missing line ends with its line. A solution's whole text stands on both sides.
"""

from __future__ import annotations

from codespec.bench.quality.sites import LINE, SINGLE, TASK_KINDS, GapSite
from codespec.text.fim import FimMissing, build_prompt, find_template
from codespec.text.tokenizer import TextTokenizer
from codespec.types import CompletionRequest

ONE_LINE = (SINGLE, LINE)


def infilling_request(site: GapSite, left_only: bool) -> CompletionRequest:
    """The request of a site for an engine."""
    before, behind = _around(site, left_only)
    return CompletionRequest(
        prefix=before,
        suffix=behind,
        path=site.gap.path,
        language=site.gap.language,
        max_tokens=site.tokens,
        stop=stops(site),
        speculate=False,
    )


def prompt_ids(tokenizer: TextTokenizer, site: GapSite, left_only: bool, context: int) -> list[int]:
    """The prompt that an engine of this context builds for that request, for another server of the same model."""
    before, behind = _around(site, left_only)
    found = find_template(tokenizer)
    template = None if isinstance(found, FimMissing) else found
    budget = context - site.tokens
    return build_prompt(
        tokenizer, template, prefix=before, suffix=behind, path=site.gap.path, budget=budget, heal=False
    ).ids


def stops(site: GapSite) -> tuple[str, ...]:
    """What ends a completion beside an end token."""
    return ("\n",) if site.kind in ONE_LINE else ()


def cut(site: GapSite, written: str) -> str:
    """The part of a completion that is scored."""
    return written.partition("\n")[0] if site.kind in ONE_LINE else written


def _around(site: GapSite, left_only: bool) -> tuple[str, str]:
    gap = site.gap
    before, behind = (gap.before, gap.behind) if site.kind in TASK_KINDS else (gap.prefix, gap.suffix)
    return before, "" if left_only else behind
