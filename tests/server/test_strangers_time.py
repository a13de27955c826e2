"""Long or numerous texts in a request must not hold up the event loop, which serves all other documents."""

from __future__ import annotations

import pytest

from codespec.exclusions.secrets import is_secret
from codespec.server.wire import is_utf8
from codespec.text.fim_templates import MAX_FILES, split_ready_made
from tests.processor_time import least
from tests.server.daemons import serving
from tests.server.fakes import FakeEngine

FIM = "<fim_prefix>x = <fim_suffix>y<fim_middle>"


def test_lone_surrogates_are_searched_without_a_loop() -> None:
    text = "\u00e9" * 1_000_000
    loop = least(lambda: sum(1 for _ in text))
    assert least(lambda: is_utf8(text)) < loop / 4
    assert is_utf8("") and is_utf8("a\u00e9\U0001f600") and not is_utf8("a" * 100 + "\udfff")


def test_a_ready_made_prompt_of_many_files_keeps_the_last_ones_and_says_so() -> None:
    files = "".join(f"<file_sep>f{number}.py\nx\n" for number in range(40_000))
    found = split_ready_made(files + FIM)
    assert found is not None and (len(found.files), found.left_out) == (MAX_FILES, 40_000 - MAX_FILES)
    assert found.files[-1] == ("f39999.py", "x\n")
    engine = FakeEngine()
    with serving(engine) as served:
        reply = served.post("/v1/completions", {"prompt": files + FIM, "max_tokens": 1}).json
    assert reply["notes"] == [f"the first {40_000 - MAX_FILES} other files were left out: at most 64 are read"]
    assert len(engine.submitted[0].snippets) == MAX_FILES


def test_a_line_longer_than_any_path_is_text() -> None:
    line = "a/" * 4000
    found = split_ready_made(f"<file_sep>{line}\nx\n{FIM}")
    assert found is not None and found.files == (("", f"{line}\nx\n"),) and found.left_out == 0


@pytest.mark.parametrize("parts", [("<|fim_prefix|>", "<|fim_suffix|><|fim_middle|>"), ("<PRE> ", " <SUF> <MID>")])
def test_nested_markers_are_read_a_fixed_number_of_times(parts: tuple[str, str]) -> None:
    """Not once per level and family: 50 levels would take for ever."""
    short, long = (
        least(lambda size=size: split_ready_made(parts[0] * size + "x" + parts[1] * size)) for size in (500, 4000)
    )  # type: ignore[misc]
    assert long < 16 * short + 0.01


@pytest.mark.parametrize("part", ["/#", "#/", "/?", ";#/"])
def test_a_name_of_many_marks_is_judged_once_each(part: str) -> None:
    """Not once for each mark."""
    short, long = (least(lambda size=size: is_secret(part * size)) for size in (500, 4000))  # type: ignore[misc]
    assert long < 16 * short + 0.002
    assert is_secret(part * 500 + "/.env")
