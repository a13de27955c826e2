"""Recorded exchanges: which answers are read, and what their replay counts."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from codespec_lab.bench.edits.recordings import read_exchanges, replay

from codespec.errors import ConfigError
from tests.toy_tokenizers import toy_tokenizer

WINDOW = "".join(f"name_{number} = {number}\n" for number in range(12))
SWEEP = (
    f"<|file_sep|>a.py\nx = 1\n<|file_sep|>original/a.py:1:12\n{WINDOW}<|file_sep|>current/a.py:1:12\n"
    f"{WINDOW.replace('name_3', 'name_3<|cursor|>')}<|file_sep|>updated/a.py:1:12\nname_0 = 0\n"
)
ZETA = (
    "### Instruction:\n### User Excerpt:\n\n```a.py\n<|editable_region_start|>\n"
    f"{WINDOW}<|user_cursor_is_here|>\n<|editable_region_end|>\n```\n\n### Response:\n"
)
ZETA_2 = f"<[fim-suffix]>\n<[fim-prefix]><filename>a.py\n<<<<<<< CURRENT\n{WINDOW}=======\n<[fim-middle]>"


def body(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def record(folder: Path, *exchanges: tuple[Any, Any]) -> None:
    folder.mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = [{"kind": "meta", "provider": "x"}]
    for number, (request, response) in enumerate(exchanges):
        rows.append({"kind": "request", "interaction": number, "body_b64": body(request)})
        rows.append({"kind": "response", "interaction": number, "body_b64": body(response)})
    (folder / "a.ndjson").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def answer(text: str, reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": reason}]}


def test_which_exchanges_are_read(tmp_path: Path) -> None:
    rest = WINDOW.removeprefix("name_0 = 0\n")
    record(
        tmp_path / "some",
        ({"prompt": SWEEP}, answer(rest)),
        ({"prompt": SWEEP}, answer(rest, "length")),
        ({"prompt": ZETA_2}, answer(WINDOW.replace("name", "field"))),
        ({"prompt": ZETA}, answer(f"<|editable_region_start|>\n{WINDOW}")),
        ({"prompt": "def add("}, answer("a")),
        ({"messages": []}, answer("a")),
        ([1], [2]),
    )
    found = list(read_exchanges(tmp_path))
    assert [(each.format, each.changed) for each in found] == [
        ("sweep-server", False),
        ("zeta-2", True),
        ("zeta-1", False),
    ]
    assert found[0].prediction == found[0].answer == rest, "without the mark and the line that is given"


def test_an_unchanged_window_takes_few_rounds(tmp_path: Path) -> None:
    record(
        tmp_path / "some",
        ({"prompt": ZETA_2}, answer(WINDOW)),
        ({"prompt": ZETA_2}, answer(WINDOW.replace("name_5", "field_5"))),
    )
    found = replay(tmp_path, toy_tokenizer("gpt2"))["zeta-2"]
    assert found["unchanged"]["answers"] == found["changed"]["answers"] == 1
    assert found["unchanged"]["tokens_a_round"] > found["changed"]["tokens_a_round"] > 1.0


def test_no_recordings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no answers of Sweep or Zeta"):
        replay(tmp_path, toy_tokenizer("gpt2"))
    (tmp_path / "a.ndjson").write_text("{}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="is no recording"):
        replay(tmp_path, toy_tokenizer("gpt2"))
