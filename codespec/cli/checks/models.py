"""Target and drafter: found, whole, fit for each other. Knows what files say; loads no weights and fetches nothing."""

from __future__ import annotations

from collections.abc import Iterator

from codespec.cli.check import choose_sample
from codespec.cli.checks.finding import Finding, failed, from_error, warning, well
from codespec.errors import CodespecError, ModelError
from codespec.pair.facts import ModelFacts, read_facts
from codespec.pair.folder import find_fetched, looks_local
from codespec.pair.model_rows import stored_as
from codespec.pair.report import check_pair
from codespec.text.fim import FimMissing


def check_model(role: str, name: str) -> tuple[Finding, ModelFacts | None]:
    """Whether a model's folder is there, whole, and can be used; and what its files say."""
    if not looks_local(name) and find_fetched(name) is None:
        mend = "the first start fetches it; `hf download` does so now"
        return warning(role, f"{name} is a hub id and not on this machine yet", mend), None
    try:
        facts = read_facts(name)
    except ModelError as error:
        return from_error(role, error), None
    if facts.reasons:
        said, _, mend = facts.reasons[0].rpartition(": ")
        return failed(role, said or mend, mend if said else "choose another model"), None
    size = f"{facts.weights.parameters / 1e6:,.1f} M parameters in {stored_as(facts)}"
    return well(role, f"{facts.architecture}, {size}, from {name}"), facts


def check_fill_in(target: ModelFacts) -> Finding:
    """Whether the target was trained to fill in, so that the text behind the cursor counts."""
    template = target.template
    if template is None or isinstance(template, FimMissing):
        reason = template.reason if template else "it has no usable tokenizer"
        return warning(
            "fill-in", f"the text behind the cursor is not used ({reason})", "choose a target with FIM tokens"
        )
    return well("fill-in", f"the target fills in ({template.family}, {template.order})")


def check_together(target: ModelFacts, drafter: ModelFacts) -> Iterator[Finding]:
    """What `codespec check` says of the two."""
    try:
        report = check_pair(target, drafter, choose_sample(None))
    except CodespecError as error:
        yield from_error("pair", error)
        return
    if report.problem:
        said, _, mend = report.problem.removesuffix(".").rpartition(": ")
        yield failed("pair", said or mend, mend if said else "see `codespec check`")
        return
    notes = [row.label for row in report.rows if row.finding == "note"]
    yield well("pair", report.verdict + (f" ({', '.join(notes)}; see `codespec check`)" if notes else ""))
