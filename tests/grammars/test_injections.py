"""Code inside another language's file ends where the same code ends in a file of its own."""

from __future__ import annotations

from functools import partial

import pytest
from codespec_grammars import find_place

from codespec.api.types import CompletionRequest
from codespec.text.ending import begin_endings
from tests.processor_time import least

SCRIPT = (
    "function total(items) {\n",
    "  let sum = 0;\n  for (const item of items) {\n    sum += item;\n  }\n  return sum;\n}\n\nnext();\n",
)
PYTHON = (
    "def total(items):\n    ",
    "result = 0\n    for item in items:\n        result += item\n    return result\n\n\nprint(1)\n",
)
STYLE = (".box {\n", "  color: red;\n  margin: 0;\n}\n\n.other {\n  color: blue;\n}\n")
SHELL = ("for file in *.py; do\n", '  echo "$file"\n  wc -l "$file"\ndone\n\nls\n')
PHP = (
    "<?php\nfunction total($items) {\n",
    "    $sum = 0;\n    foreach ($items as $item) {\n        $sum += $item;\n    }\n    return $sum;\n}\n\nnext();\n",
)
PLACES = [
    # file, before, after, the same code's file, its text
    ("a.html", "<html>\n<script>\n", "\n</script>\n</html>\n", "a.js", SCRIPT),
    ("a.html", '<script type="module" async>\n', "\n</script>\n", "a.js", SCRIPT),
    ("a.html", "<!-- <script> -->\n<style>\n", "\n</style>\n", "a.css", STYLE),
    ("a.html", "<style>\na { b: c }\n</style>\n<script>\n", "\n</script>\n", "a.js", SCRIPT),
    ("a.vue", "<template>\n  <a/>\n</template>\n<script setup lang=\"ts\">\n", "\n</script>\n", "a.ts", SCRIPT),
    ("a.vue", "<script>\n</script>\n<style scoped>\n", "\n</style>\n", "a.css", STYLE),
    ("a.svelte", "<script lang='ts'>\n", "\n</script>\n<h1>x</h1>\n", "a.ts", SCRIPT),
    ("a.astro", "---\n", "\n---\n<h1>x</h1>\n", "a.ts", SCRIPT),
    ("a.astro", "---\nconst a = 1;\n---\n<script>\n", "\n</script>\n", "a.js", SCRIPT),
    ("a.markdown", "# Title\n\n```python\n", "\n```\n", "a.py", PYTHON),
    ("a.markdown", "```js\nx\n```\n\n~~~~ {.python}\n", "\n~~~~\n", "a.py", PYTHON),
    ("a.markdown", "```sh\n", "\n```\n", "a.sh", SHELL),
    ("a.markdown", "> ```bash\n", "\n> ```\n", "a.sh", SHELL),
    ("a.markdown", "````markdown\n```\n````\n```ts\n", "\n```\n", "a.ts", SCRIPT),
    ("a.markdown", "```html\n<script>\n", "\n</script>\n```\n", "a.js", SCRIPT),
    ("a.php", "<html>\n<?php if ($a): ?>\n<script>\n", "\n</script>\n<?php endif ?>\n", "a.js", SCRIPT),
    ("a.markdown", "```php\n", "\n```\n", "a.php", PHP),
    ("a.html.erb", "<p><%= x %></p>\n<script>\n", "\n</script>\n", "a.js", SCRIPT),
    ("a.svg", "<svg>\n<style>\n", "\n</style>\n</svg>\n", "a.css", STYLE),
    ("a.astro", "\n---\n", "\n---\n<h1>x</h1>\n", "a.ts", SCRIPT),
    ("a.markdown", "- item\n\n  ```js\n", "\n  ```\n", "a.js", SCRIPT),
    ("a.markdown", "# Title\n\n<script setup lang=\"ts\">\n", "\n</script>\n\ntext\n", "a.ts", SCRIPT),
    ("a.php", "<?php\n$a = '?>';\n$b = \"?>\";\n/* ?> */\n" + PHP[0].partition("\n")[2], "\n", "a.php", PHP),
]  # fmt: skip


def end(path: str, prefix: str, suffix: str, text: str) -> tuple[int | None, str]:
    """Return the end of a text, and why."""
    ending = begin_endings(CompletionRequest(prefix=prefix, suffix=suffix, path=path, shape="auto"))[0]
    assert ending is not None
    assert not ending.idle
    ending.advance(text.encode())
    ending.finish()
    return ending.cut, ending.reason


@pytest.mark.parametrize("returns", [False, True], ids=["lf", "crlf"])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0]}-{place[1][-24:]!r}")
def test_it_ends_as_in_a_file_of_its_own(place: tuple[str, str, str, str, tuple[str, str]], returns: bool) -> None:
    path, before, after, own, (code, text) = place
    if returns:
        before, code, after = (part.replace("\n", "\r\n") for part in (before, code, after))
    alone, inside = end(own, code, "\n", text), end(path, before + code, after, text)
    assert inside == alone
    assert text[: alone[0]].count("\n") >= 1, "several lines"


@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        ("a.html", "<p>text\n"),
        ("a.html", "<script>\nx\n</script>\n<p>\n"),
        ("a.html", "<script la"),
        ("a.html", "<!-- <script>\n"),
        ("a.html", '<script type="text/x-template">\n<p>'),
        ("a.vue", "<template>\n  <p>\n"),
        ("a.astro", "---\nconst a = 1;\n---\n<p>\n"),
        ("a.markdown", "Some `code` and\n"),
        ("a.markdown", "```py"),
        ("a.markdown", "```\nx = 1\n"),
        ("a.markdown", "```unheard-of\nx = 1\n"),
        ("a.markdown", "```py\nx = 1\n```\ntext\n"),
        ("a.py", "x = '''<script>\n"),
        ("a.php", "<?php\n$a = '<script>';\n"),
        ("a.php", "function f() {\n"),
        ("a.html", "<textarea>\n<style>\n</textarea>\n<p>"),
        ("a.html", '<a title="<script>">\n<p>'),
        ("a.markdown", "Write `<script>` or <script>\ninto it"),
        ("a.markdown", "---\n\nA rule, no head of a page\n"),
    ],
)
def test_the_hosts_own_part_stays_as_it_is(path: str, prefix: str) -> None:
    place = find_place("", path, prefix.encode(), b"\n")
    assert not place.inside and place.prefix == prefix.encode()


def test_php_around_a_page_is_blank() -> None:
    place = find_place("php", "", b"<p><?php\n echo 1 ?>\n<b", b"</b>")
    assert (place.language, place.prefix) == ("html", b"<p>     \n          \n<b")


def test_a_region_that_begins_above_the_text() -> None:
    suffix = b"\n</script>\n<script>\n</script>"
    place = find_place("html", "", b"let a = 1;\n", suffix)
    assert (place.language, place.suffix) == ("javascript", b"\n")
    assert not find_place("html", "", b"text\n", b"<script>\n</script>").inside


def test_its_language_is_an_id_or_a_suffix() -> None:
    def fenced(info: str) -> str:
        return find_place("markdown", "", f"```{info}\nx".encode(), b"").language

    known = {"py": "python", "Python": "python", "rs": "rust", "c++": "cpp", "typescriptreact": "tsx", "yml": "yaml"}
    assert {info: fenced(info) for info in known} == known


@pytest.mark.parametrize(
    ("path", "prefix", "language"),
    [
        ("a.svelte", '<script generics="T extends Foo<string>" lang="ts">\n', "typescript"),
        ("a.vue", '<script\n  setup\n  generic="T extends Foo<string>"\n  lang="tsx"\n>\n', "tsx"),
        ("a.html", '<script data-type="x">\n', "javascript"),
        ("a.html", '<script type="">\n', "javascript"),
        ("a.html", '<script type="text/babel">\n', "javascript"),
        ("a.html", '<script type="application/manifest+json">\n', "json"),
        ("a.html", '<script type="text/python">\n', "python"),
        ("a.html", "---\nlayout: page\n", "yaml"),
        ("a.markdown", "---\nlayout: page\n", "yaml"),
        ("a.markdown", "+++\ntitle = 1\n", "toml"),
        ("a.markdown", "```{code-block} python\n", "python"),
        ("a.markdown", "```golang\n", "go"),
        ("a.php", "<?php // a ?>\n<style>\n", "css"),
        ("a.php", "<?php /* it's */ f() ?>\n<style>\n", "css"),
    ],
)
@pytest.mark.parametrize("returns", [False, True], ids=["lf", "crlf"])
def test_how_a_language_is_named(path: str, prefix: str, language: str, returns: bool) -> None:
    text = prefix.replace("\n", "\r\n") if returns else prefix
    place = find_place("", path, text.encode(), b"\n")
    assert (place.language, place.inside) == (language, True)


def test_each_mark_is_read_once() -> None:
    """A page of comments, in which the script's mark never comes."""
    text = b"<!-- a -->\n" * 20_000
    assert not find_place("html", "", text, b"").inside


@pytest.mark.parametrize(
    "mark",
    [
        "<script ",
        "<!--",
        "```",
        "- ",
        "<?php ?>",
        "> ",
        "`",
        "<style",
        '="<',
        '<script "',
        "<?php /*",
        "<?php '",
        "<?php #",
    ],
)
def test_any_number_of_marks_is_read_in_the_time_of_their_length(mark: str) -> None:
    """Without an end a mark must not be looked for again and again."""
    for host in ("html", "markdown", "php"):
        few, many = (least(partial(find_place, host, "", (mark * count).encode(), b"")) for count in (4000, 16_000))
        assert many < 8 * few + 0.05
