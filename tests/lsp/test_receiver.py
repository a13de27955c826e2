"""The type of the value before the dot: what a row above says, in any language."""

from __future__ import annotations

import pytest
from codespec_lsp.prompt import receiver_type


@pytest.mark.parametrize(
    ("above", "line", "expected"),
    [
        ("def send(crate: Crate) -> None:", "    crate.", "Crate"),
        ("def send(crate: 'Crate | None' = None):", "    return crate.we", "Crate"),
        ("def send(crate: Optional[stock.Crate]):", "    crate.", "Crate"),
        ("crate = Crate(sku)", "print(crate.", "Crate"),
        ("crate = await Crate.open(sku)", "crate.", ""),
        ("if isinstance(crate, (Crate, Box)):", "    crate.", "Crate"),
        ("const crate = new Crate(sku);", "  crate?.", "Crate"),
        ("function send(crate: Readonly<Crate>) {", "  crate.", "Crate"),
        ("if (crate instanceof Crate) {", "  crate.", "Crate"),
        ("fn send(crate: &mut Crate) {", "    crate.", "Crate"),
        ("let crate_ = Crate::new(1);", "    crate_.", "Crate"),
        ("func send(crate *stock.Crate, n int) {", "\tcrate.", "Crate"),
        ("\tcrate := &Crate{sku: 1}", "\tcrate.", "Crate"),
        ("    Crate crate = open();", "    crate.", "Crate"),
        ("void send(const Crate *crate) {", "    crate->", "Crate"),
        ("    List<Crate> crates = open();", "    crates.", "List"),
        ("fun send(crate: Crate) {", "    crate.", "Crate"),
        ("crate = other", "crate.", ""),
        ("return crate", "crate.", ""),
        ("Crate", "self.", ""),
        ("crate: Crate", "crates.", ""),
        ("crate: Crate", "my.crate.", ""),
        ("crate: Crate", "crate", ""),
    ],
)
def test_it_is_what_a_row_above_says(above: str, line: str, expected: str) -> None:
    assert receiver_type(line, [above + "\n"]) == expected


def test_the_nearest_row_counts() -> None:
    assert receiver_type("box.", ["box = Crate()\n", "box = Box()\n", "pass\n"]) == "Box"


def test_long_rows_and_names_cost_nothing() -> None:
    assert receiver_type("x" * 100_000 + ".", ["x: T" * 100_000] * 1000) == ""
    assert receiver_type("a" * 60 + ".", ["a" * 60 + " " * 300 + "b"] * 100) == ""
