"""A renamed name's other places are those of the same binding, by the facts of each language."""

from __future__ import annotations

import pytest
from codespec_lsp.renames import SameName
from codespec_lsp.syntax import SyntaxTree


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
