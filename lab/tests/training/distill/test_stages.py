"""A run's kinds of positions do not overlap."""

from __future__ import annotations

from pathlib import Path

from codespec_lab.corpus.documents import Document
from codespec_lab.training.distill import stages
from codespec_lab.training.distill.stages import Split, prepare_places


def test_the_places_that_choose_the_weights_do_not_measure_them(tmp_path: Path, documents: list[Document]) -> None:
    both = Split(documents[:6], documents[6:])
    made = prepare_places(tmp_path, lambda: both, lambda: both, 4, seed=0, fills_in=True)
    for judging, measuring, count in (
        (made.judge_here, made.here, stages.HERE),
        (made.judge_elsewhere, made.elsewhere, stages.ELSEWHERE),
    ):
        assert len(judging) == len(measuring) == count and not set(judging) & set(measuring)
