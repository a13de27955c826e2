"""The report of a measured pair, and the verdict on two pairs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.held_out import HeldOut, by_row
from codespec_lab.training.evaluation import PairScores, report, show_completions, verdict
from codespec_lab.training.scores import DRAFT_LENGTHS, Acceptance, InfillScores, Rate, RateTable

from codespec.api.types import Completion, CompletionRequest, Stats

Change = Callable[[PairScores], object]
GO = ["go", "1.000", "2.000", "3 of 10", "30.0 %", "1 of 5", "1 of 5", "20.0 %"]
BETTER = "better in all three (bits per byte, infilling, acceptance)"


def filled(right: int, count: int) -> InfillScores:
    outcomes = [place < right for place in range(count)]
    table = {"go": Rate(right, count)}
    return InfillScores(RateTable(table), RateTable(table), RateTable(table), outcomes)


def scores(bits: float = 8.0, right: int = 3, accepted: int = 10) -> PairScores:
    """Scores of a pair, all derived from three numbers."""
    facts = {"name": "m", "parameters": 5_260_000, "vocabulary": 9, "sha256": "0123456789abcdef"}
    row = Acceptance(RateTable({"go": Rate(accepted, 20)}), RateTable({"string": Rate(accepted, 20)}))
    return PairScores(
        models={"target": facts, "drafter": facts},
        bits={"target": RateTable({"go": Rate(bits, 8)}), "drafter": RateTable({"go": Rate(2 * bits, 8)})},
        ms_per_token={"target": 4.0, "drafter": 1.0},
        lines=filled(right, 10),
        blocks=filled(1, 5),
        tasks=InfillScores(),
        loops=RateTable({"go": Rate(2, 4)}),
        acceptance={length: copy.deepcopy(row) for length in DRAFT_LENGTHS},
    )


def test_better_in_all_three() -> None:
    assert verdict(scores(), scores(7.0, 4, 11)) == f"{BETTER}; gaps filled exactly: 1 gained, 0 lost"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda pair: pair.bits["target"].add("go", 2.0, 0), "not better in: bits per byte;"),
        (lambda pair: pair.bits["drafter"].add("go", 2.0, 0), "not better in: bits per byte;"),
        (lambda pair: pair.blocks.outcomes.__setitem__(0, False), "not better in: infilling;"),
        (lambda pair: pair.acceptance[8].by_row.add("go", -1.0, 0), "not better in: acceptance;"),
        (lambda pair: pair.acceptance.clear(), "not better in: acceptance (not measured for both);"),
        (lambda pair: (pair.acceptance.clear(), pair.bits.clear()), "bits per byte (not measured for both), acc"),
    ],
)
def test_one_thing_that_is_no_better_is_named(change: Change, words: str) -> None:
    after = scores(7.0, 4, 11)
    change(after)
    message = verdict(scores(), after)
    assert words in message and BETTER not in message


def test_one_pair_has_its_tables_and_no_verdict() -> None:
    pair = scores()
    pair.notes += ["said once", "said once"]
    told = report([pair])
    assert "target 5.26 M (01234567)" in told and told.count("said once") == 1
    assert [*GO, "2 of 4", *["0.500"] * 3] in table(told)
    assert ["string", *["0.500 (20)"] * 3] in table(told)
    assert "target 4.00, drafter 1.00" in told and "better" not in told and "→" not in told


def test_two_pairs_stand_side_by_side() -> None:
    after = scores(7.0, 4, 11)
    after.bits["target"].add("rust", 3.0, 2)
    told = report([scores(), after])
    rows = {cells[0]: cells[1:] for cells in table(told)}
    assert rows["go"][:3] == ["1.000 → 0.875", "2.000 → 1.750", "3 → 4 of 10"]
    assert rows["rust"][:3] == ["– → 1.500", "–", "–"]
    assert rows["all"][0] == "0.500 → 0.550 (20)"  # the last table's
    assert told.endswith(verdict(scores(), after))


def table(told: str) -> list[list[str]]:
    """Return the tables' lines as cells."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in told.splitlines() if line]


def test_a_pair_without_a_drafter_has_no_table_of_contexts() -> None:
    pair = scores()
    pair.acceptance.clear()
    del pair.bits["drafter"], pair.models["drafter"]
    told = report([pair])
    assert "context" not in told and "accepted" not in told and "drafter" not in told.split("milliseconds")[0]


def test_the_showcase_is_chosen_by_rule(documents: list[Document]) -> None:
    asked: list[CompletionRequest] = []

    def complete(requests: Sequence[CompletionRequest]) -> list[Completion]:
        asked.extend(requests)
        return [Completion("WRITTEN\n", (), "stop", Stats()) for _ in requests]

    held_out = HeldOut(by_row(documents))
    told = show_completions(complete, held_out, 5)
    assert told == show_completions(complete, held_out, 5) and asked[:5] == asked[5:]
    assert told.count("⟨WRITTEN⟩\n````") == 5 == len({request.path for request in asked})
    for request in asked:
        assert request.shape == "auto" and request.heal and request.suffix.startswith("\n")
        assert f"`{request.path}`, line " in told and "\n".join(request.prefix.split("\n")[-3:]) + "⟨" in told
