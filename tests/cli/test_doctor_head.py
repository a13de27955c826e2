"""`codespec doctor` checks the configured head."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from codespec.models.heads.checkpoint import save_head
from codespec.models.heads.config import WEIGHTS, Kind
from codespec.models.loader import load_model
from tests.cli.conftest import Command, Models, write_model
from tests.cli.doctors import lines_of
from tests.random_heads import random_head


def write_head(folder: Path, models: Models, kind: Kind) -> Path:
    """Write a random head for the pair's target."""
    target = load_model(str(models.target), exact=False)
    head = random_head(target, kind)
    folder.mkdir()
    for name, data in save_head(head.config, head.network, head.ids, name="toy").items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_head_that_fits_is_told_of(command: Command, models: Models, tmp_path: Path, kind: Kind) -> None:
    head = write_head(tmp_path / "head", models, kind)
    found = lines_of(command("doctor", "--no-probe", "--target", models.target, "--drafter", "none", "--head", head))
    assert found["head"].startswith(f"ok: {kind}, reads the target's layers ") and str(head) in found["head"]
    alone = command("doctor", "--no-probe", "--target", models.target, "--drafter", "none")
    assert "head" not in lines_of(alone)


def test_a_head_that_does_not_fit_is_a_failure(command: Command, models: Models, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", models, "eagle3")
    other = write_model(tmp_path / "other", "bytes", 3)
    cases = {
        "was trained for another target (toy: ": (other, head),
        "There is no head in ": (models.target, tmp_path / "nowhere"),
    }
    for sentence, (target, folder) in cases.items():
        done = command("doctor", "--no-probe", "--target", target, "--drafter", "none", "--head", folder)
        assert done.code == 1 and lines_of(done)["head"].startswith("failed") and sentence in lines_of(done)["head"]
    (head / WEIGHTS).unlink()
    done = command("doctor", "--target", models.target, "--drafter", "none", "--head", head)
    assert f"has no {WEIGHTS}: fetch or export the head again" in lines_of(done)["head"]
    assert "fix the failed checks above first" in lines_of(done)["probe"]
