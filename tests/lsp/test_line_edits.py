"""The ring of changes: what is merged, cancelled and dropped, and how rows follow the text."""

from __future__ import annotations

from codespec_lsp.buffer import Buffer, TextPosition
from codespec_lsp.documents import Document
from codespec_lsp.line_edits import MAX_CHANGE_AGE_S, MAX_CHANGES, MAX_ROWS, EditHistory, is_typed_along, line_edit

from codespec.api.limits import is_revert
from tests.lsp.conversation import URI

ROWS = "".join(f"row {number}\n" for number in range(100))


class Typist:
    """Edits one document, at a time under the test's control."""

    def __init__(self, text: str = ROWS, uri: str = URI) -> None:
        self.now = 0.0
        self.history = EditHistory(lambda: self.now)
        self.document = Document(uri, "python", 1, Buffer(text))

    def replace(self, row: int, start: int, end: int, text: str, wait: float = 0.1) -> None:
        self.now += wait
        edit = self.document.buffer.replace(TextPosition(row, start), TextPosition(row, end), text)
        lines = line_edit(self.document, edit)
        if lines is not None:
            self.history.edited(self.document, lines)

    @property
    def changes(self) -> list[tuple[int, str, str]]:
        return [(each.row, "".join(each.old), "".join(each.new)) for each in self.history.changes()]


def test_keys_are_one_change_and_pauses_at_another_place_begin_another() -> None:
    typist = Typist()
    for column, key in enumerate("name"):
        typist.replace(3, column, column, key)
    assert typist.changes == [(3, "row 3\n", "namerow 3\n")]
    typist.replace(8, 0, 3, "line")
    assert typist.changes == [(3, ROWS[18:54], "namerow 3\nrow 4\nrow 5\nrow 6\nrow 7\nline 8\n")], "near and soon"
    typist.replace(50, 0, 0, "x")
    typist.replace(50, 1, 1, "y", wait=5.0)
    typist.replace(52, 0, 0, "z", wait=5.0)
    assert typist.changes[1:] == [(50, "row 50\n", "xyrow 50\n"), (52, "row 52\n", "zrow 52\n")]


def test_rows_follow_the_text_and_the_text_around_is_kept() -> None:
    typist = Typist()
    typist.replace(50, 0, 0, "x")
    typist.replace(0, 0, 0, "new\n", wait=2.0)
    assert [row for row, _, _ in typist.changes] == [51, 0]
    change = typist.history.changes()[0]
    assert change.before == ROWS and change.after == ROWS.replace("row 50", "xrow 50")


def test_what_was_undone_leaves_nothing() -> None:
    typist = Typist()
    typist.replace(3, 0, 0, "name")
    typist.replace(3, 0, 4, "")
    assert typist.changes == [] and typist.history.undone
    typist.replace(3, 0, 0, "name")
    assert not typist.history.undone
    typist.replace(60, 0, 0, "x", wait=2.0)
    typist.replace(3, 0, 4, "", wait=20.0)
    assert typist.changes == [(60, "row 60\n", "xrow 60\n")] and typist.history.undone


def test_each_step_of_a_merged_change_is_an_earlier_text() -> None:
    typist = Typist(ROWS.replace("row 12\n", "row 11\n"))
    rows = ["row 10\n", "row 11\n"]
    for start, end, text in ((10, 12, ""), (12, 12, "".join(rows))):  # two rows are moved below another row 11
        edit = typist.document.buffer.replace(TextPosition(start, 0), TextPosition(end, 0), text)
        lines = line_edit(typist.document, edit)
        assert lines is not None
        typist.history.edited(typist.document, lines)
    assert len(typist.changes) == 1
    states = typist.history.states(URI)
    assert is_revert(12, rows, [], states), "the second step alone"
    assert not is_revert(12, rows[1:], [], states) and not is_revert(17, ["row 17\n"], [], states)


def test_blank_old_and_large_changes_are_dropped() -> None:
    typist = Typist()
    typist.replace(3, 5, 5, "   ")
    typist.replace(20, 5, 5, "\n\n", wait=2.0)
    assert typist.changes == []
    typist.replace(40, 0, 0, "x", wait=2.0)
    typist.now += MAX_CHANGE_AGE_S + 1
    assert typist.changes == []
    for row in range(0, 10 * (MAX_CHANGES + 2), 10):
        typist.replace(row, 0, 0, "x", wait=2.0)
    assert len(typist.changes) == MAX_CHANGES
    typist.replace(0, 0, 0, "y\n" * (MAX_ROWS + 1), wait=2.0)
    assert typist.changes == [] and typist.history.is_bulk


def test_the_whole_text_sent_again_is_one_small_change() -> None:
    typist = Typist()
    edit = typist.document.buffer.replace_all(ROWS.replace("row 50\n", "rows 50\nmore\n"))
    lines = line_edit(typist.document, edit)
    assert lines is not None and (lines.row, lines.old, lines.new) == (50, ["row 50\n"], ["rows 50\n", "more\n"])


def test_typed_along() -> None:
    assert is_typed_along("f(a)", "f(a, b)", "f(a, )")
    assert is_typed_along("f(a)", "g(a)", "(a)") and is_typed_along("f(a)", "g(a)", "gf(a)")
    assert not is_typed_along("f(a)", "f(a, b)", "f(a; )") and not is_typed_along("f(a)", "f(a, b)", "f()")
