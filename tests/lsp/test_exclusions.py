"""Excluded files: secrets, the user's globs, and ignore files read as git reads them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Collection
from pathlib import Path

import pytest
from codespec_lsp.exclusions import Exclusions, Rules
from codespec_lsp.session import NOT_KNOWN
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from codespec.exclusions import git_ignore, ignore_files
from codespec.exclusions.ignore_files import MAX_IGNORE_BYTES, IgnoreFiles, Patterns
from tests.lsp.conversation import run
from tests.lsp.fake_daemon import talking
from tests.processor_time import least

RULES = Rules(frozenset(), Patterns(()), IgnoreFiles())
READ, COMPILE = ignore_files.read_regular, ignore_files.GitIgnoreSpecPattern
NAMES = ["a", "a", "a", "b", "b", "ab", "a.py", "b.log", "[x]", "x y", "!a", "#b", "é", "bab", "]", "-"]
NAMES += ["-b", "b-", "]b"]
LINES = ["a", "/a", "a/", "*.py", "!*.py", "a/**", "**/b", "a/*/b", "!a", "?", "[ab]", "[!a]", "\\!a", "\\#b", "#b"]
LINES += [
    "/a",
    "/b",
    "/a/b",
    "a/b",
    "b/*",
    "x y",
    "x\\ y",
    "b.log  ",
    "",
    "/",
    "**",
    "a/**/b.log",
    "[",
    "[[]x]",
    "*/",
    "!/a/b/",
    "[a-b]*",
    "a\\",
    "a*b",
    "*b*a*",
    "a.??",
    "***/b",
    "a/***",
    "[[:alpha:]]*[[:punct:]]*",
    "[[:a]b",
    "[[:alpha]*",
    "[]x]",
    "[!]-a]",
    "[\\]x]*",
    "é*",
    "??é",
    "a/[!b]*/[a-]",
    "a\\/b",
    "*.p[xyz]",
    "[a-]b",
    "[b-]*",
]

# Git compares bytes: one `?` or [!a] is half of an é. Pathspec compares characters, and so excludes more.
WIDER = {(line, path) for line in ("?", "[!a]", "[!]-a]") for path in ("é", "a/é")}


def git(folder: Path, *words: str, text: str = "") -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], input=text, capture_output=True, encoding="utf-8", timeout=60
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "-q")
    return folder


lines = st.lists(st.sampled_from(LINES), max_size=5)
# "a" is a folder, which git checks.
paths = (
    st.lists(st.sampled_from([name for name in NAMES if name != "é"]), min_size=1, max_size=3)
    .map("/".join)
    .filter(lambda path: path != "a")
)


@pytest.fixture
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without git, pathspec decides."""
    monkeypatch.setattr(git_ignore, "find_git", lambda: "")
    monkeypatch.setattr("tests.lsp.test_exclusions.RULES", Rules(frozenset(), Patterns(()), IgnoreFiles()))


def ignored(repository: Path, asked: list[str]) -> list[str]:
    """Return the paths that git ignores, tracked or not."""
    out = git(repository, "check-ignore", "--no-index", "-z", "--stdin", text="\0".join(f"./{path}" for path in asked))
    return [path.removeprefix("./") for path in out.split("\0") if path]


@settings(
    max_examples=30,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(top=lines, inner=lines, asked=st.lists(paths, min_size=20, max_size=30, unique=True))
def test_pathspec_means_what_git_says(
    no_git: None, repository: Path, top: list[str], inner: list[str], asked: list[str]
) -> None:
    (repository / "a").mkdir(exist_ok=True)
    (repository / ".gitignore").write_text("\n".join(top))
    (repository / "a" / ".gitignore").write_text("\n".join(inner))
    ours = [path for path in asked if RULES.reason((repository / path).as_uri())]
    assert ours == [path for path in asked if path in ignored(repository, asked)]


def test_each_pattern_alone_means_what_git_says(no_git: None, repository: Path) -> None:
    """All names with all patterns; the random tests above hit rare pairs too seldom."""
    (repository / "a").mkdir(exist_ok=True)
    (repository / "a" / ".gitignore").unlink(missing_ok=True)
    asked = [*(name for name in NAMES if name != "a"), *(f"a/{name}" for name in NAMES), "ab", "[b"]
    differ = []
    for line in LINES:
        (repository / ".gitignore").write_text(line)
        ours = {path for path in asked if RULES.reason((repository / path).as_uri())}
        differ += [(line, path) for path in sorted(ours ^ set(ignored(repository, asked)))]
        differ = [each for each in differ if each not in WIDER]
    assert not differ, repr(differ)


def test_links_to_secrets(tmp_path: Path) -> None:
    """A link is checked at every step of its path, which may be a loop."""
    for link, target in [("a.py", "b.py"), ("b.py", "prod.env"), ("prod.env", "vault"), ("c.py", "c.py")]:
        (tmp_path / link).symlink_to(target)
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "id_ecdsa").write_text("KEY")
    (tmp_path / "folder").symlink_to("keys")
    (tmp_path / "d.py").symlink_to("folder/id_ecdsa")
    for name in ("a.py", "b.py", "d.py"):
        assert "links to a file that may hold secrets" in RULES.reason((tmp_path / name).as_uri())
    (tmp_path / "e.py").symlink_to("x.py")
    assert RULES.reason((tmp_path / "e.py").as_uri()) == RULES.reason((tmp_path / "c.py").as_uri()) == ""


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("file:///p/a.py", ""),
        ("untitled:Untitled-1", ""),
        ("git:/p/a.py?HEAD", "'git' is not a file"),
        ("output:tasks", "'output' is not a file"),
        ("file:///p/.env", ".env may hold secrets"),
        ("file:///p/gen/a.py", "codespec.exclude"),
        ("file:///p/deep/x.min.js", "codespec.exclude"),
        ("untitled:/q/x.min.js", "codespec.exclude"),
    ],
)
def test_reasons(uri: str, words: str) -> None:
    globs = Patterns(["/gen/", "*.min.js"])
    reason = Rules(frozenset([Path("/p")]), globs, IgnoreFiles()).reason(uri)
    assert words in reason and bool(reason) == bool(words)


def test_a_name_that_is_looked_up_as_another_is_not_sent(tmp_path: Path) -> None:
    """The check would apply to the other name. On Windows, names with a trailing dot are such."""
    assert RULES.lets_out(tmp_path / "a.py") and not RULES.lets_out(Path(f"/{tmp_path}/a.py"))


def test_codespecs_own_ignore_file_and_changes_of_it(tmp_path: Path) -> None:
    rules = Rules(frozenset([tmp_path]), Patterns(()), IgnoreFiles())
    file = tmp_path / "sub" / "a.py"
    assert rules.reason(file.as_uri()) == ""
    (tmp_path / ".codespecignore").write_text("sub/\n")
    assert rules.reason(file.as_uri()) == "a.py is excluded by .codespecignore."
    assert rules.reason((tmp_path / "b.py").as_uri()) == ""
    (tmp_path / ".codespecignore").write_text("*.txt\n")
    assert rules.reason(file.as_uri()) == ""


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("a%00b/c.py", "x" * 300, "x" * 300 + "/a.py", "file/a.py", "%ED%A0%80/a.py"):
        assert RULES.reason(f"file://{tmp_path}/{name}") == ""
    assert "is not a file on this machine" in RULES.reason("C:\\a.py")
    assert "lies in more than 100 folders" in Rules(frozenset([Path("/")]), Patterns(()), IgnoreFiles()).reason(
        f"file:///{'a/' * 200}b.py"
    )


def test_an_ignore_file_is_read_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading is not repeated for each request, and only patterns that may match are compiled."""
    read, compiled = [], []
    monkeypatch.setattr(ignore_files, "read_regular", lambda *asked: read.append(asked) or READ(*asked))
    monkeypatch.setattr(ignore_files, "GitIgnoreSpecPattern", lambda line: compiled.append(line) or COMPILE(line))
    (tmp_path / ".codespecignore").write_bytes(b"".join(b"*%dx*\n" % number for number in range(20_000)))
    why = IgnoreFiles().reason
    for _ in range(10):
        assert why(tmp_path / "a.py", []) == ""
    assert (len(read), compiled) == (1, [])
    assert why(tmp_path / "b17x.py", []) and (len(read), compiled) == (1, ["*17x*"])
    (tmp_path / ".codespecignore").write_text("*.py")
    assert why(tmp_path / "a.py", []) and (len(read), compiled) == (2, ["*17x*", "*.py"])


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 100 + "b", "a" * 250),
        ("**/a/" * 50 + "b", "a/" * 50 + "a"),
        ("*[a-c]?" * 80 + "b", "a" * 250),
        ("*a*" * 20_000 + "b", "a" * 250),
    ],
)
def test_no_pattern_takes_for_ever(pattern: str, path: str) -> None:
    """Each of these would take too long if all positions were tried after a star, so it may count as matching."""
    scan = least(lambda: sum(1 for _ in pattern * 20))
    assert least(lambda: Patterns([pattern] * 20).match(path, is_folder=False)) < 200 * scan, "about 10"


def test_ignore_files_that_can_not_be_followed(tmp_path: Path) -> None:
    """Their patterns are unknown, so nothing around them is completed, and the message says how to fix it."""
    (tmp_path / ".git").mkdir()
    file, ignore = tmp_path / "a.py", tmp_path / ".gitignore"

    def why() -> str:
        found = IgnoreFiles().reason(file, [])
        assert found.startswith(f"a.py is not completed, because {ignore} can't be read (")
        return found

    os.mkfifo(ignore)
    assert "not a regular file" in why()
    ignore.unlink()
    ignore.symlink_to("/dev/zero")
    assert "not a regular file" in why()
    ignore.unlink()
    ignore.symlink_to(ignore)
    assert "symbolic links" in why()
    ignore.unlink()
    ignore.write_bytes(b"x\n" * (MAX_IGNORE_BYTES // 2 + 1))
    assert "longer than 256 KiB" in why()
    ignore.unlink()
    ignore.symlink_to("nowhere")
    assert IgnoreFiles().reason(file, []) == "", "there is none"
    (tmp_path / "b").mkdir()
    file, ignore = tmp_path / "b" / "a.py", tmp_path / ".codespecignore"
    ignore.write_bytes(b"x\n" * (MAX_IGNORE_BYTES // 2))
    (tmp_path / "b" / ".codespecignore").write_text("*.txt")
    assert "longer than 256 KiB" in why()


def test_a_folder_that_does_not_answer_holds_up_no_other_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own document is neither completed nor sent until the decision is known."""
    answers = threading.Event()
    why = IgnoreFiles.reason

    def wait(self: IgnoreFiles, file: Path, roots: Collection[Path]) -> str:
        if file.name == "slow.py":
            answers.wait()
        return why(self, file, roots)

    monkeypatch.setattr(IgnoreFiles, "reason", wait)

    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("import here\n", uri="file:///slow.py")
            client.open("x = \n")
            assert await client.texts(0, 4) == ["x = 1"]
            assert fake.asked[0].body["snippets"] == []
            assert await client.texts(0, 4, uri="file:///slow.py") == []
            status = await client.status()
            assert (status["kind"], status["message"]) == ("Inactive", NOT_KNOWN)
            answers.set()
            while (await client.status())["kind"] == "Inactive":  # no request is needed for it
                continue
            while not (shown := await client.texts(1, 0, uri="file:///slow.py")):
                continue
            assert shown == ["1"]

    try:
        run(scenario())
    finally:
        answers.set()


def test_new_settings_begin_running_decisions_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a status stays at "not known yet" until somebody types."""
    answers, uri = threading.Event(), "file:///slow.py"
    monkeypatch.setattr(IgnoreFiles, "reason", lambda self, file, roots: answers.wait() and "")

    async def scenario() -> None:
        exclusions = Exclusions()
        known = []
        async for _ in exclusions.follow(uri):
            known.append(exclusions.known(uri))
            exclusions.set_globs([], [], [])
            answers.set()
        assert known == [None, ""]

    try:
        run(scenario())
    finally:
        answers.set()


def test_settings_that_change_twice_leave_no_status_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, uri = threading.Event(), "file:///slow.py"
    monkeypatch.setattr(IgnoreFiles, "reason", lambda self, file, roots: answers.wait() and "")

    async def scenario() -> None:
        exclusions, loop = Exclusions(), asyncio.get_running_loop()
        known = []
        async for _ in exclusions.follow(uri):
            if not known:
                loop.call_soon(exclusions.set_globs, [], [], [])
                loop.call_later(0.05, answers.set)
            known.append(exclusions.known(uri))
        assert known[0] is None and known[-1] == ""

    try:
        run(scenario())
    finally:
        answers.set()


def test_a_late_decision_for_a_request_shows_in_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    answers.set()
    monkeypatch.setattr(IgnoreFiles, "reason", lambda self, file, roots: answers.wait() and "")
    monkeypatch.setattr("codespec_lsp.exclusions.MAX_DECISION_AGE_S", 0.0)

    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("x = \n")
            assert await client.texts(0, 4) == ["x = 1"]
            answers.clear()
            assert await client.texts(0, 4) == []
            assert (await client.status())["message"] == NOT_KNOWN
            answers.set()
            while (await client.status())["kind"] == "Inactive":  # no request is needed for it
                continue

    try:
        run(scenario())
    finally:
        answers.set()


@pytest.mark.parametrize(
    ("path", "roots", "shown"),
    [
        ("/home/ana/shop/src/cart.py", ["/home/ana/shop"], "src/cart.py"),
        ("/home/ana/shop/src/cart.py", ["/home/ana", "/home/ana/shop/src"], "cart.py"),
        ("/home/ana/shop/src/cart.py", [], "src/cart.py"),
        ("/cart.py", ["/home"], "cart.py"),
        ("Untitled-1", [], "Untitled-1"),
        ("C:\\work\\shop\\cart.py", [], "shop/cart.py"),
        ("C:\\cart.py", [], "cart.py"),
        ("/c:/cart.py", [], "cart.py"),
    ],
)
def test_a_path_says_nothing_of_the_users_machine(path: str, roots: list[str], shown: str) -> None:
    rules = Rules(frozenset(map(Path, roots)), Patterns(()), IgnoreFiles())
    assert rules.shown(path) == shown
