"""A rename is offered at the name's other places, which are those of the same binding, by each language's facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest
from codespec_lsp import name_scopes
from codespec_lsp.buffer import Buffer, Edit
from codespec_lsp.line_edits import Change, Hunk
from codespec_lsp.name_scopes import SameName
from codespec_lsp.renames import MAX_PLACES, find_repeats, merge_last, renamed_name
from codespec_lsp.syntax import DocumentTree, SyntaxTree
from tree_sitter import Node

Descend = Callable[[Node, int], Iterator[name_scopes._Step]]


class Typist:
    """Edits a text row by row and records the changes, as the ring of edits does."""

    def __init__(self, text: str, language: str = "python") -> None:
        self.lines, self.language, self.changes = Buffer(text).lines, language, list[Change]()

    def change(self, row: int, old: str, new: str, count: int = 1) -> Typist:
        """Replace `old` by `new` in a row, the first `count` times."""
        before, after = self.lines[row], self.lines[row].replace(old, new, count)
        self.lines[row] = after
        self.changes.append(Change("file:///a", "a", self.language, row, [before], [after]))
        return self

    def hunks(self) -> Sequence[Hunk]:
        """Return what is offered."""
        tree = SyntaxTree(self.language, "".join(self.lines))
        tree.parse()

        async def ask(old: str, new: str, renamed: Sequence[int]) -> SameName | None:
            return tree.same_name(old, new, renamed)

        return asyncio.run(find_repeats(self.changes, self.lines, ask))

    def rows(self) -> list[tuple[int, str]]:
        """Return the first rows of the hunks and their new texts."""
        return [(hunk.start_row, hunk.new) for hunk in self.hunks()]


AREA = "def area(w, h):\n    print(h)\n    return w * h\n\n\ndef other(w):\n    return w\n"


def test_a_renamed_parameter_is_offered_in_its_function() -> None:
    typist = Typist(AREA).change(0, "w", "width")
    assert typist.rows() == [(2, "    return width * h\n")]
    assert typist.hunks()[0] == (2, 3, "    return w * h\n", "    return width * h\n")


@pytest.mark.parametrize(
    ("old", "new", "offered"),
    [
        ("scheme", "_scheme", False),
        ("hash", "_", False),
        ("column", "columns", False),
        ("fields", "field", False),
        ("_scheme", "scheme", True),
        ("succes", "success", True),
        ("type", "type_", True),
    ],
)
def test_a_name_of_another_value_is_no_rename(old: str, new: str, offered: bool) -> None:
    typist = Typist(f"def f({old}):\n    return {old}\n").change(0, old, new)
    assert typist.rows() == ([(1, f"    return {new}\n")] if offered else [])


def test_a_renamed_class_of_python_is_none() -> None:
    assert Typist("class A:\n    pass\n\n\nA()\n").change(0, "A", "Base").rows() == []
    typist = Typist("def a():\n    pass\n\n\na()\n").change(0, "a", "base")
    assert typist.rows() == [(4, "base()\n")]


def test_a_name_typed_letter_by_letter_is_one_rename() -> None:
    typist = Typist(AREA).change(0, "w", "").change(0, "(,", "(wi,").change(0, "(wi", "(width")
    assert typist.rows() == [(2, "    return width * h\n")]


def test_a_name_typed_and_taken_back_offers_nothing() -> None:
    assert Typist(AREA).change(0, "w", "width").change(0, "width", "w").rows() == []


def test_a_rename_taken_back_elsewhere_offers_nothing() -> None:
    typist = Typist("def f(w):\n    return w\n\ndef g(width):\n    return width\n")
    typist.change(0, "w", "width")
    assert typist.change(3, "width", "w").rows() == []


def test_places_renamed_before_count_as_renamed() -> None:
    text = "def f(w):\n    a = w\n    b = w\n    c = w\n"
    assert Typist(text).change(0, "w", "x").change(1, "w", "x").rows() == [(2, "    b = x\n"), (3, "    c = x\n")]


def test_rows_after_the_change_come_first() -> None:
    typist = Typist("def f():\n    g(w)\n    for w in a:\n        b(w)\n        c(w)\n    d(e)\n    w()\n")
    assert [row for row, _ in typist.change(2, "w", "x").rows()] == [3, 4, 6, 1]


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_line_ends_are_kept(end: str) -> None:
    typist = Typist(AREA.replace("\n", end)).change(0, "w", "width")
    assert typist.rows() == [(2, f"    return width * h{end}")]


def test_a_change_of_more_than_a_name_is_no_rename() -> None:
    for old, new in [("w, h", "x, y"), ("area(w", "area(v, w"), ("w", "1"), ("(w", "[w"), ("def ", "class ")]:
        assert Typist(AREA).change(0, old, new).rows() == [], old


def test_a_change_that_the_document_no_longer_holds_offers_nothing() -> None:
    typist = Typist(AREA).change(0, "w", "width")
    typist.lines[0] = "def area(x, h):\n"
    assert typist.rows() == []


def test_broken_code_offers_nothing_in_its_broken_part() -> None:
    assert Typist("def area(w, h:\n    return w * ]\n").change(0, "w", "width").rows() == []


def test_no_changes() -> None:
    assert Typist(AREA).rows() == []
    assert merge_last([]) is None


def test_a_name_of_one_letter_and_names_with_signs() -> None:
    assert Typist(AREA).change(0, "h", "x").rows()
    typist = Typist("function f($a) {\n  return $a;\n}\n", "javascript").change(0, "$a", "_b$")
    assert typist.rows() == [(1, "  return _b$;\n")]


def test_too_many_places_are_not_offered() -> None:
    text = "def f(w):\n" + "    w()\n" * (MAX_PLACES + 1)
    assert Typist(text).change(0, "w", "x").rows() == []


def test_a_language_without_grammar() -> None:
    change = Change("file:///a", "a", "", 0, ["let a be\n"], ["let b be\n"])

    async def ask(old: str, new: str, renamed: Sequence[int]) -> None:
        return None

    assert asyncio.run(find_repeats([change], ["let b be\n", "a\n"], ask)) == ()


def test_a_renamed_name_of_several_rows_is_merged() -> None:
    change = Change("file:///a", "a", "python", 3, ["a(w,\n", "  w)\n"], ["a(x,\n", "  x)\n"])
    assert renamed_name(change) == ("w", "x", [(0, 2), (1, 2)])


def test_the_documents_process_finds_the_places_and_a_cancelled_request_costs_only_the_process() -> None:
    async def scenario() -> None:
        text = AREA
        tree = DocumentTree("python", lambda: text, [], lambda: None)
        assert await tree.same_name("w", "width", [9]) is None  # not parsed yet
        await tree.refresh()
        text = AREA.replace("(w,", "(width,")
        tree.edited(Edit(9, "w", "width"))
        refreshed = asyncio.ensure_future(tree.refresh())  # both need the same process
        assert await tree.same_name("w", "width", [9]) == SameName("local", [text.index("w *")], [])
        await refreshed
        asked = asyncio.ensure_future(tree.same_name("w", "width", [9]))
        await asyncio.sleep(0)
        asked.cancel()
        assert await asyncio.gather(asked, return_exceptions=True)
        await tree.refresh()
        assert await tree.same_name("w", "width", [9]) is not None
        tree.close()
        assert await tree.same_name("w", "width", [9]) is None

    asyncio.run(scenario())


def test_a_name_in_a_large_file_is_looked_up_only_where_it_stands() -> None:
    """The rest of the file costs a search in its text: nodes visited do not grow with it."""
    visited = list[int]()
    for rest in (10, 2000):
        typist = Typist(AREA + "def f(a):\n    return a\n" * rest).change(0, "w", "width")
        with pytest.MonkeyPatch.context() as patch:
            count, descend = list[int](), name_scopes._descend

            def counted(
                root: Node, start: int, count: list[int] = count, descend: Descend = descend
            ) -> list[name_scopes._Step]:
                found = list(descend(root, start))
                count.append(len(found))
                return found

            patch.setattr(name_scopes, "_descend", counted)
            assert typist.rows() == [(2, "    return width * h\n")]
        visited.append(sum(count))
    assert visited[0] == visited[1]


def test_a_cell_with_magics() -> None:
    typist = Typist("%matplotlib inline\n!ls w\n\ndef f(w):\n    return w\n").change(3, "w", "x")
    assert typist.rows() == [(4, "    return x\n")]


def test_members_uses_and_one_of_several_bindings_are_not_offered() -> None:
    """They are right too seldom (`is_offered`)."""
    member = "class A:\n    def __init__(self):\n        self.w = 1\n    def f(self):\n        return self.w\n"
    assert Typist(member).change(2, "w", "x").rows() == []
    assert Typist("def f(w):\n    g(w)\n    return w\n").change(1, "w", "x").rows() == []
    assert Typist("w = 1\nf(w)\nw = 2\ng(w)\n").change(0, "w", "x").rows() == []
    assert Typist("from a import w\nw()\n").change(0, "w", "x").rows() == []
    assert Typist("import { w } from 'a';\nw();\n", "javascript").change(0, "w", "x").rows() == [(1, "x();\n")]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("javascript", "function f(w) {\n  return { w, a: w };\n}\n", "  return { w: x, a: x };\n"),
        ("typescript", "let w = 1;\nf({ w });\n", "f({ w: x });\n"),
        ("rust", "fn f(w: u8) -> S {\n    S { w }\n}\n", "    S { w: x }\n"),
    ],
)
def test_a_name_that_is_a_key_as_well_keeps_the_key(language: str, text: str, expected: str) -> None:
    assert Typist(text, language).change(0, "w", "x").rows() == [(1, expected)]


def same(language: str, text: str) -> SameName | None:
    """Return what is found for the `w` that was renamed to «v» in the text."""
    starts = [at - 2 * index for index, at in enumerate(at for at, sign in enumerate(text) if sign == "«")]
    text = text.replace("«", "").replace("»", "")
    tree = SyntaxTree(language, text)
    tree.parse()
    return tree.same_name("w", "v", starts)


def found_in(language: str, expected: str) -> str | None:
    """Return the text with <> around the places that are found, without those of `expected`."""
    text = expected.replace("<w>", "w")
    found = same(language, text)
    if found is None:
        return None
    unmarked = text.replace("«", "").replace("»", "")
    for start in sorted([*found.starts, *found.shorthands], reverse=True):
        unmarked = f"{unmarked[:start]}<w>{unmarked[start + 1 :]}"
    return unmarked


PLACES = [
    (
        "python",
        "def f(«v», b=w):\n"
        "    <w> += 1\n"
        "    def g(w): return w\n"
        "    x.w = d['w']  # w\n"
        "    h(w=<w>)\n"
        "    return [w for w in z], f'{<w>}'\n",
    ),
    (
        "javascript",
        "function f(«v», { k: a }) { <w> += 1; { let w = 2; w } o.w; ({ w: <w> }); ({ <w> }); var b = (w) => w }\nw",
    ),
    ("javascript", "function f() { if (a) { var «v» = 1 } return <w> }"),
    ("tsx", "const F = ({ a }, «v») => <T w={<w>}>{<w>}</T>"),
    (
        "go",
        "func f(«v» int) int { <w> = <w> + 1; if w := 2; w > 1 { g(w) }; s.w = 1; T{w: <w>}; return <w> }\nvar w int\n",
    ),
    (
        "rust",
        'fn f(«v»: u8) { match o { Some(w) => w, _ => <w> }; println!("{}", <w>); s.w; }\nfn g(w: u8) { w }\n',
    ),
    (
        "java",
        "class A { int w; void f(int «v») { this.w = <w>; g(<w>); } void g() { w++; w(); } }",
    ),
    ("c", "int f(int «v») { s->w = <w>; { int w = 1; w++; } return <w>; }\nint g(int w);\n"),
    ("c", "int f(int «v»);\nint g(int w);\n"),
    ("cpp", "class A { int w; void f(int «v») { g(<w>); this->w; o.w; } int h() { return w; } };\n"),
    ("kotlin", "class A(val w: Int) { fun f(«v»: Int) { <w>; this.w; o.w; g(w = 1) }\n fun g(w: Int) = w }\n"),
]


@pytest.mark.parametrize(("language", "expected"), PLACES)
def test_only_the_same_binding_is_found(language: str, expected: str) -> None:
    assert found_in(language, expected) == expected.replace("«", "").replace("»", "")


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "def f(«v»):\n    v = 1\n    return w\n"),  # bound already
        ("python", "def f(w):\n    return «v»(w)\n\ndef v(w):\n    pass\n\nw = 1\n"),  # the use of another function
        ("python", "class A:\n    «v» = 1\n    def f(self): self.«v» = self.w\n"),  # members
        ("python", "class A:\n    «v» = 1\n    def f(self): return self.w\n"),
        ("typescript", "class A { private «v»: number = 1; f() { this.w = o.w } }"),
        ("go", "type S struct { «v» int }\nfunc (s *S) F() { s.w = 1 }\n"),
        ("rust", "struct S { «v»: u8 }\nimpl T for S { fn f(&self) { self.w } }\n"),
        ("java", "class A { int «v»; void g() { w++; } }"),
        ("cpp", "class A { int «v»; void f() { w++; this->w; } };\n"),
        ("kotlin", "class A(val «v»: Int) { fun f() { w; this.w } }\n"),
        ("python", "def f(w):\n    return «v», w\n"),  # the use of another name
        ("python", "f(«v»)\nf(w)\n"),
        ("python", "w = 1\ndef f():\n    global w\n    «v» = 2\n"),
        ("javascript", "function f(«v») { const g = () => v + w }"),
        ("java", "class A { int v; int f(int «v») { return v + w; } }"),
        ("python", "x = '«v»' + w\n"),  # text is no name
        ("python", "f(«v»=w)\n"),  # nor is a key
        ("python", "o.«v» = o.w\n"),  # whose attribute is unknown
        ("python", "def f(«v»:\n    w(\n  ) return w ]\n"),  # broken code
    ],
)
def test_nothing_is_found(language: str, text: str) -> None:
    assert same(language, text) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("def f(«v»):\n    return w\n", "local"),
        ("«v» = 1\nf(w)\n", "module"),
        ("from a import «v»\nf(w)\n", "import"),
    ],
)
def test_kinds(text: str, kind: str) -> None:
    found = same("python", text)
    assert found is not None and found.kind == kind


def test_several_renamed_places_and_letters_of_several_bytes() -> None:
    assert found_in("python", "def f(«v»):\n    é = '…'; «v»; <w>\n") == "def f(v):\n    é = '…'; v; <w>\n"


def test_renamed_places_of_different_names_give_nothing() -> None:
    assert same("python", "def f(«v»): return w\ndef g(«v»): return w\n") is None


def test_a_language_without_facts_gives_nothing() -> None:
    assert same("css", ".«v» { w: w }") is None


@pytest.mark.parametrize(
    ("language", "text", "is_one"),
    [
        ("python", "def f():\n    «v» = 0\n    w = w + 1\n    w += 1\n", True),  # made from the name
        ("python", "def f():\n    «v» = 0\n    w = 1\n", False),
        ("python", "def f():\n    «v» = g()\n    w = int(w)\n", False),  # two types
        ("python", "def f(w):\n    «v» = g(w)\n", False),  # a new variable, and the parameter
        ("python", "def f():\n    for «v» in a: w\n    for w in b: w\n", False),
        ("javascript", "let «v» = 0; w = w + 1;", True),
        ("javascript", "const «v» = () => w();", True),  # recursion
        ("go", "func f() {\n\t«v», err := a()\n\tw, err := b()\n}\n", False),
        ("rust", "fn f() { let «v» = 0; let w = w + 1; }", False),  # another variable
    ],
)
def test_a_name_bound_to_several_values_is_none(language: str, text: str, is_one: bool) -> None:
    assert (same(language, text) is not None) == is_one
