"""The page at /: its files and content policy; nothing else is reachable, and it loads nothing from outside."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from codespec.server.app import PAGE, PAGE_FILES
from tests.cli.processes import TOKEN
from tests.server.daemons import Served, serving
from tests.server.fakes import FakeEngine

ROOT = Path(__file__).resolve().parents[2]
PATHS = {f"/page/{name}": name for name in PAGE_FILES}
MAX_BYTES = 450_000


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(FakeEngine()) as daemon:
        yield daemon


class Links(HTMLParser):
    """The resources a page loads, and its inline scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.inline += [name for name in given if name.startswith("on") or name == "style"]
        self.inline += [tag] * (tag == "style" or (tag == "script" and "src" not in given))
        found = [given[name] for name in ("src", "href", "action") if given.get(name)]
        (self.linked if tag == "a" else self.loaded).extend(str(value) for value in found)


def test_the_page_is_there(served: Served) -> None:
    reply = served.ask("GET", "/")
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    assert reply.body == (PAGE / "index.html").read_bytes() == served.ask("GET", "/page/index.html").body


def test_it_loads_only_what_is_served_with_it(served: Served) -> None:
    links = Links(served.ask("GET", "/").body.decode())
    assert {"/page/codespec.js", "/page/codespec.css", "/page/icon.svg"} == set(links.loaded)
    assert links.linked == ["/page/licences.txt"]
    assert links.inline == []
    for path in links.loaded + links.linked:
        assert served.ask("GET", path).status == 200


@pytest.mark.parametrize("path", ["/", *PATHS])
def test_every_file_has_its_type_and_the_policy(path: str, served: Served) -> None:
    reply = served.ask("GET", path)
    assert reply.status == 200 and reply.body
    assert reply.headers["Content-Type"] == f"{PAGE_FILES[PATHS.get(path, 'index.html')]}; charset=utf-8"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Cache-Control"] == "no-cache"
    assert reply.headers["Referrer-Policy"] == "no-referrer"
    policy = dict(part.split(" ", 1) for part in reply.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert {value for value in policy.values()} == {"'none'", "'self'"}, "no inline script, no other place"


@pytest.mark.parametrize("path", ["/", *PATHS])
def test_what_a_browser_has_is_not_sent_again(path: str, served: Served) -> None:
    whole = served.ask("GET", path)
    head = served.ask("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(whole.body))
    assert head.headers["ETag"] == whole.headers["ETag"]
    again = served.ask("GET", path, If_None_Match=whole.headers["ETag"])
    assert (again.status, again.body) == (304, b"")
    assert again.headers["ETag"] == whole.headers["ETag"]
    assert served.ask("GET", path, If_None_Match='"another"').body == whole.body


def test_tags_differ(served: Served) -> None:
    assert len({served.ask("GET", path).headers["ETag"] for path in PATHS}) == len(PATHS)


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page", "/page/.", "/page/..", "/page/../page.py", "/page/%2e%2e/page.py", "/page/..%2fpage.py",
     "/page/..%5cpage.py", "/page//etc/passwd", "/page/%2fetc%2fpasswd", "/page/codespec.js/", "/page/index.html%00",
     "/page/CODESPEC.JS", "/page/codespec.js.map", "/index.html", "/codespec.js"],
)  # fmt: skip
def test_no_other_file_can_be_reached(path: str, served: Served) -> None:
    reply = served.ask("GET", path)
    assert (reply.status, reply.json["error"]["field"]) == (404, "path")


def test_only_reading(served: Served) -> None:
    for path in ("/", "/page/codespec.js"):
        for method in ("POST", "PUT", "DELETE"):
            assert served.ask(method, path).status == 405


def test_foreign_names_and_pages_get_none_of_it(served: Served) -> None:
    for path in ("/", "/page/codespec.js"):
        assert served.ask("GET", path, Host="evil.example").status == 403
        assert served.ask("GET", path, Origin="https://evil.example").status == 403


def test_the_page_asks_for_the_token_so_it_needs_none() -> None:
    with serving(FakeEngine(), token=TOKEN) as guarded:
        for path in ("/", *PATHS):
            reply = guarded.ask("GET", path)
            assert reply.status == 200 and TOKEN.encode() not in reply.body
        for path in ("/props", "/metrics", "/page", "//"):
            assert guarded.ask("GET", path).status == 401
        assert guarded.post("/", {}).status == 401


def test_nothing_from_outside() -> None:
    """Addresses in the script are namespaces, which no browser fetches."""
    for name in ("codespec.js", "codespec.css", "index.html", "icon.svg"):
        text = (PAGE / name).read_text(encoding="utf-8")
        found = set(re.findall(r"""(?:https?:|wss?:)?//[\w-]+\.[\w.-]+[^\s"'`)]*""", text))
        assert found <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}, found
        assert not re.search(
            r"@import\s*(?:url|['\"\\])|url\((?!'data:)|sourceMappingURL|importScripts|\beval\(|new Function\(", text
        )


def test_it_is_small_and_whole() -> None:
    assert {path.name for path in PAGE.iterdir()} == set(PAGE_FILES)
    assert sum((PAGE / name).stat().st_size for name in PAGE_FILES if name != "licences.txt") < MAX_BYTES


def test_every_package_in_it_is_named_with_its_licence() -> None:
    wanted = json.loads((ROOT / "web" / "package.json").read_text(encoding="utf-8"))["dependencies"]
    licences = (PAGE / "licences.txt").read_text(encoding="utf-8")
    for name, version in wanted.items():
        assert f"\n{name} {version} (MIT)\n" in licences
    assert licences.count("Permission is hereby granted") >= len(wanted)


@pytest.mark.parametrize("path", sorted((ROOT / "web").glob("[st]*/*.ts")), ids=lambda path: path.name)
def test_its_sources_keep_the_sizes_of_the_house(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 300 and max(map(len, lines)) <= 120
    assert path.name.endswith((".test.ts", ".d.ts")) or lines[0].startswith("/**"), "what it knows, and what not"


def test_the_lock_says_what_but_not_where() -> None:
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text(encoding="utf-8"))
    packages = {name: values for name, values in lock["packages"].items() if name}
    assert packages
    for name, values in packages.items():
        assert "resolved" not in values and values["integrity"].startswith("sha512-"), name


def test_what_the_page_shows_first_is_code_that_compiles() -> None:
    """The recorded example, which the page's pictures also show."""
    record = json.loads((ROOT / "web" / "src" / "recorded.json").read_text(encoding="utf-8"))
    text = "".join(each["event"]["text"] for each in record["events"] if each["event"]["name"] == "text")
    assert text.strip()
    compile(record["ask"]["prefix"] + text + record["ask"]["suffix"], "recorded", "exec")
    sample = (ROOT / "web" / "samples" / "python.txt").read_text(encoding="utf-8")
    assert record["ask"]["prefix"] + "‸" + record["ask"]["suffix"] == sample
