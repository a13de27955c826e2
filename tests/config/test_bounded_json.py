"""Depth and number of JSON values are checked before parsing; brackets inside strings are ignored."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.files import MAX_JSON_DEPTH, TooLarge, Unreadable, _outside_quotes, parse_json, read_json_file

ROOT = Path(__file__).parents[2]
# These files read back JSON that codespec wrote: a tokenizer in memory, and results of benchmarks and training.
OWN = (
    "codespec/text/tokenizer.py",
    "lab/codespec_lab/bench/",
    "lab/codespec_lab/corpus/",
    "lab/codespec_lab/training/",
    "codespec/files",
    "grammars/codespec_grammars/workers.py",  # from the process that started it
    "grammars/codespec_grammars/workers.py",  # any failure counts as the process's (tests/grammars/test_nested.py)
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(alphabet='[]{},"\\é x'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[]{},"\\'), inner),
    max_leaves=40,
)


def depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(values, st.integers(0, 4))
def test_it_is_what_json_says(value: object, padding: int) -> None:
    data = json.dumps(value, ensure_ascii=False, indent=padding or None).encode()
    assert parse_json(data) == value


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"b]": '])
@pytest.mark.parametrize("quoted", ["", "]" * 200, '\\"]]'])
def test_depth_is_bounded(opening: str, quoted: str) -> None:
    """Counted by open brackets outside strings."""
    each = opening.replace("b]", "").count("[") + opening.count("{")
    for count, fits in ((MAX_JSON_DEPTH // each, True), (MAX_JSON_DEPTH // each + 1, False), (100_000, False)):
        closing = "".join({"[": "]", "{": "}"}[mark] for mark in reversed(opening.replace("b]", "")) if mark in "[{")
        text = opening * count + f'"{quoted}"' + closing * count
        if fits:
            assert depth(parse_json(text.encode())) == MAX_JSON_DEPTH // each * each
        else:
            with pytest.raises(TooLarge, match="brackets deep"):
                parse_json(text.encode())


@given(values, st.integers(1, 9))
def test_blocks_make_no_difference(value: object, block: int) -> None:
    """Brackets inside strings are text, wherever a block ends."""
    text = json.dumps([value], ensure_ascii=False)
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", text, flags=re.DOTALL)
    with mock.patch("codespec.files.SCAN_BYTES", block):
        found = b"".join(_outside_quotes(text.encode())).decode()
    assert [mark for mark in found if mark in "[]{},"] == [mark for mark in outside if mark in "[]{},"]


def test_values_are_counted_outside_quotes() -> None:
    assert parse_json(b'["' + b"[,{" * 100 + b'"]', 8) == ["[,{" * 100]
    with pytest.raises(TooLarge, match="more than 8 commas"):
        parse_json(b"[" + b"1," * 9 + b"1]", 8)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[", b'"', b"{]", b"9" * 5000])
def test_what_is_no_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_json(data)
    assert not isinstance(caught.value, TooLarge)


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_may_be_refused(name: str) -> None:
    assert isinstance(parse_json(name.encode()), float)
    with pytest.raises(ValueError, match="is not valid in JSON"):
        parse_json(name.encode(), finite=True)


def test_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to("/dev/zero")
    with pytest.raises(Unreadable, match="not a regular file"):
        read_json_file(tmp_path / "a.json")


def test_nobody_parses_json_of_others_in_another_way() -> None:
    """`json.loads` recurses at each bracket, to a depth that depends on its caller."""
    found = []
    for file in sorted(file for folder in ("codespec", "lsp", "grammars") for file in (ROOT / folder).rglob("*.py")):
        name = str(file.relative_to(ROOT))
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        if any(ast.unparse(call.func) in ("json.loads", "json.load") for call in calls) and not name.startswith(OWN):
            found.append(name)
    assert found == []
