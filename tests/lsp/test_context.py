"""Context of a request: the window, facts about the cursor, pieces of other files, and no secrets."""

from __future__ import annotations

import asyncio
import random
import sys
import tracemalloc
from pathlib import Path

import pytest
from codespec_grammars import Context, ContextTracker, Cursor, workers
from codespec_lsp import syntax
from codespec_lsp.buffer import Buffer, Edit, TextPosition
from codespec_lsp.completions import stable_prefix
from codespec_lsp.documents import Document
from codespec_lsp.prompt import build_prompt
from codespec_lsp.syntax import MAX_TREES, SERVICE, Change, DocumentSyntax, DocumentTree, SyntaxTree

from codespec.api.limits import MAX_SIDE
from tests.lsp.conversation import insertion, run, until
from tests.lsp.fake_daemon import talking

OPEN = "X = call({\n" + "".join(f'    "key{number}": [{number}, {number}],\n' for number in range(800))
CLOSED = OPEN + "    \n})\n"
DOCUMENTED = 'def f():\n    """Says.\n' + "    more words, and a few more\n" * 500
PROGRAM = Path(asyncio.__file__).with_name("base_events.py").read_text(encoding="utf-8")


def parsed(text: str, language: str = "python") -> SyntaxTree:
    tree = SyntaxTree(language, text)
    tree.parse()
    return tree


def find_cursor(
    language: str, prefix: str, suffix: str, tree: SyntaxTree | None = None, bytes_before: int = 0
) -> Cursor:
    data = prefix.encode()
    return syntax.find_cursor(ContextTracker(language, data, suffix.encode()), data, tree, bytes_before)


def test_what_was_opened_far_above_is_known() -> None:
    """The window shows neither the bracket nor the quotes."""
    tree = parsed(OPEN + "    \n})\n")
    alone, seen = (find_cursor("python", OPEN + "    ", "\n})\n", each) for each in (None, tree))
    assert (alone.open_brackets, seen.open_brackets) == ("", "({")
    tree = parsed(DOCUMENTED + '    and \n    """\n')
    alone, seen = (find_cursor("python", DOCUMENTED + "    and ", '\n    """\n', each) for each in (None, tree))
    assert (alone.context == Context.DOCSTRING, seen.context) == (False, Context.DOCSTRING)


def test_what_a_window_shows_is_not_said_twice() -> None:
    text = OPEN + "    foo(["
    seen = find_cursor("python", text, "])\n})\n", parsed(text + "])\n})\n"))
    assert seen.open_brackets == "({(["
    short = "x = f(["
    assert find_cursor("python", short, "])", parsed(short + "])")).open_brackets == "(["


def test_after_a_text_that_breaks_its_grammar_windows_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """This grammar's scanner writes more levels than it has room for, which kills the process at each key."""

    async def scenario() -> None:
        texts: list[str] = []
        look_up = workers.look_up
        monkeypatch.setattr(workers, "look_up", lambda *request: texts.append(request[1]) or look_up(*request))
        document = DocumentSyntax(Document("file:///a.yaml", "yaml", 1, Buffer("")), [], lambda: None)
        for key in ("", "a", "ab"):
            document.find_cursor("- " * 260 + key, "", 0, in_document=False)
        assert len(texts) == 1
        monkeypatch.setattr(syntax, "RETRY_S", 0.0)
        document._parse_from = 0.0
        document.find_cursor("key: val", "", 0, in_document=False)
        assert len(texts) == 2
        document.close()

    run(scenario())


def test_a_language_without_a_grammar() -> None:
    assert find_cursor("", "abc", "").context == Context.UNKNOWN


def test_edits_are_not_kept_for_a_tree_that_nobody_looks_at() -> None:
    """An hour of typing in a file without a grammar leaves nothing behind."""
    tree = DocumentTree("", lambda: "", [], lambda: None)
    tracemalloc.start()
    for number in range(2000):
        tree.edited(Edit(number, "", f"{number:100}"))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 50_000, "of 200 kB that were typed"


def test_the_tree_follows_edits() -> None:
    """Valid code, edited in words and whole lines: the same tree as parsed from scratch."""
    source, buffer = random.Random(6), Buffer(PROGRAM, "utf-32")
    tree = parsed(buffer.text)
    rows = [row for row, line in enumerate(buffer.lines) if line.startswith("        self.")]
    for _ in range(8):
        here = TextPosition(source.choice(rows), 8)
        edit = buffer.replace(here, here, source.choice(["é😀 = 1; ", "x.y; ", "pass; "]))
        tree.change(Change(edit.start, len(edit.removed), edit.text))
        tree.parse()
        assert str(tree.root) == str(parsed(buffer.text).root)


def brackets_of(tree: DocumentTree, text: str = CLOSED) -> str:
    """Return the brackets open at the end that were opened far above."""
    return tree.outside(len(text.encode()) - 4, 200).brackets


def test_a_document_is_parsed_in_a_process_and_again_after_an_edit_that_came_meanwhile() -> None:
    async def scenario() -> None:
        buffer = Buffer(CLOSED)
        tree = DocumentTree("python", lambda: buffer.text, [], lambda: None)
        parsing = asyncio.create_task(tree.refresh())
        await asyncio.sleep(0)
        assert brackets_of(tree, buffer.text) == "", "there is none yet"
        tree.edited(buffer.replace(TextPosition(0, 0), TextPosition(0, 0), "y = [1]\n"))
        await parsing
        assert tree.fresh and tree.parsed == 2
        for _ in range(3):
            assert brackets_of(tree, buffer.text) == "({"
            tree.edited(buffer.replace(TextPosition(1, 0), TextPosition(1, 0), "é = 1\n"))
        tree.close()

    run(scenario())


def test_few_documents_hold_a_tree() -> None:
    """The oldest document's tree is dropped, and rebuilt at its next edit."""

    async def scenario() -> None:
        trees, buffers = [], [Buffer(CLOSED) for _ in range(MAX_TREES + 2)]
        held = [DocumentTree("python", lambda text=buffer.text: text, trees, lambda: None) for buffer in buffers]
        for tree in held:
            await tree.refresh()
        found = [brackets_of(tree) for tree in held]
        assert found == ["", "", *["({"] * MAX_TREES]
        held[0].edited(buffers[0].replace(TextPosition(0, 0), TextPosition(0, 0), ""))
        await held[0].refresh()
        assert brackets_of(held[0]) == "({" and brackets_of(held[2]) == ""
        for tree in held:
            tree.close()

    run(scenario())


def parsing() -> set[Path]:
    """Return the running parsing processes."""
    server = workers._fork_server._process
    assert server is not None
    number = server.pid
    return {Path(f"/proc/{child}") for child in Path(f"/proc/{number}/task/{number}/children").read_text().split()}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a parse ends by its time limit")
def test_a_parse_ends_when_its_document_is_closed() -> None:
    """This one would take five seconds, its limit, as the same parse of a document that stays open does."""

    async def scenario() -> None:
        workers.start_fork_server()

        async def begin() -> tuple[asyncio.Task[object], Path]:
            before = parsing()
            asked = asyncio.create_task(workers.Worker(SERVICE, "java").ask_beside({"text": "a<" * 500_000}, 60))
            await until(lambda: bool(parsing() - before))
            (process,) = parsing() - before
            return asked, process

        closed, its_process = await begin()
        stays, other_process = await begin()
        closed.cancel()
        await until(lambda: not its_process.exists())
        assert other_process.exists()
        stays.cancel()
        await until(lambda: not other_process.exists())

    run(scenario())


def test_windows_hold_64_kib_and_no_lone_surrogates() -> None:
    for piece in ("x = 1\n", "s = '日本語'\n", "😀\ud800\n"):
        text = piece * (200_000 // len(piece))
        buffer = Buffer(text)
        row = len(buffer.lines) // 2
        prompt = build_prompt("u", buffer, TextPosition(row, 2))
        for side in (prompt.prefix, prompt.suffix):
            assert MAX_SIDE // 4 < len(side.encode()) <= MAX_SIDE
        assert prompt.offset + len(prompt.prefix) == buffer.offset(TextPosition(row, 2))
        assert prompt.prefix.startswith(piece[0])


def test_what_is_stable_in_a_growing_text() -> None:
    assert stable_prefix("foo(ba") == "foo("
    assert stable_prefix("foo(bar)\n    ba") == "foo(bar)"
    assert stable_prefix("foo(bar)\n    baz, q") == "foo(bar)\n    baz, "
    assert stable_prefix("= 1") == "= "
    assert not any(stable_prefix(text) for text in ("", "  ", "ab", "\n  ", "a\r", "👩\u200d"))


def test_pieces_of_other_files_come_along_and_stay() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            other, secret = "file:///p/models.py", "file:///p/.env"
            rows = "".join(f"row_{number} = {number}\n" for number in range(100))
            client.open("import os\nfrom sys import path\n" + rows, uri=other)
            client.open("TOKEN=abc\n", uri=secret, language="plaintext")
            client.open("local = 1\n", uri="git:/p/x.py")
            client.open("from models import row_1\nx = \n")
            client.change(2, insertion(60, 0, "edited = 1\n"), uri=other)
            client.change(2, insertion(0, 0, "MORE=1\n"), uri=secret)
            await client.texts(1, 4)
            sent = fake.asked[0].body["snippets"]
            assert [snippet["path"] for snippet in sent] == ["p/models.py"] * 2
            assert sent[1]["text"] == "import os\nfrom sys import path\n"
            assert "edited = 1\n" in sent[0]["text"] and "row_0 " not in sent[0]["text"]
            client.type(2, 1, 4, "z")
            await client.texts(1, 5)
            assert fake.asked[1].body["snippets"] == sent, "typing here changes nothing there"
            client.change(3, insertion(0, 0, "import re\n"), uri=other)
            client.type(3, 1, 5, "z")
            await client.texts(1, 6)
            assert fake.asked[2].body["snippets"] != sent

    run(scenario())


def test_code_in_a_text_has_its_own_languages_cursor() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["x"]
            client.open("# Title\n\n```python\nif a(\n```\ntext ", uri="file:///p/notes.md", language="markdown")
            await client.texts(3, 5, uri="file:///p/notes.md")
            cursor = fake.asked[-1].body["cursor"]
            assert (cursor["context"], cursor["open_brackets"]) == ("arguments", "(")
            assert fake.asked[-1].body["prefix"].startswith("# Title"), "the model sees all of it"
            await client.texts(5, 5, uri="file:///p/notes.md")
            assert fake.asked[-1].body["cursor"]["context"] == "free_text"

    run(scenario())


def test_an_empty_document_is_asked_nothing_about() -> None:
    """A model without a token for the beginning of a text cannot continue an empty one, and would report an error."""

    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("")
            assert await client.texts(0, 0) == [] == await client.texts(0, 0, trigger=1) and not fake.asked
            client.type(2, 0, 0, "x = ")
            assert await client.texts(0, 4) == ["x = 1"]

    run(scenario())


def test_secrets_and_ignored_files_are_never_completed(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("build/\n")

    async def scenario() -> None:
        async with talking(start={"rootUri": tmp_path.as_uri()}) as (client, fake):
            fake.script = ["1"]
            for uri, reason in (
                ("file:///p/.env", ".env may hold secrets, so it is not completed."),
                ((tmp_path / "build" / "a.py").as_uri(), "a.py is excluded by .gitignore."),
            ):
                client.open("x = \n", uri=uri)
                assert await client.texts(0, 4, uri=uri) == []
                status = await client.status()
                assert (status["kind"], status["message"]) == ("Inactive", reason)
            client.open("x = \n")
            assert await client.texts(0, 4) == ["x = 1"]
            assert (await client.status())["kind"] == "Normal"
            client.notify("textDocument/didFocus", {"textDocument": {"uri": "file:///p/.env"}})
            assert (await client.status())["kind"] == "Inactive"
            kinds = [status["kind"] for status in client.heard("didChangeStatus")]
            assert kinds[-3:] == ["Inactive", "Normal", "Inactive"] and len(fake.asked) == 1

    run(scenario())
