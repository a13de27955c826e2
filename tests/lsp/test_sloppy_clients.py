"""Old and careless clients: each field of a message that the server reads is absent, null or of another type.

The message is accepted or rejected with an error, and a suggestion never refers to another text than the client's.
"""

from __future__ import annotations

from typing import Any

import pytest
from codespec_lsp.protocol import DOCUMENTS, EDITS, READERS, Misread
from lsprotocol import types
from lsprotocol.converters import get_converter

from tests.lsp.conversation import Editor, insertion, question, run
from tests.lsp.fake_daemon import FakeDaemon, talking
from tests.lsp.protocol_samples import Variant, params_of, sample, variants
from tests.lsp.test_process_hostile import on_a_server

CONVERTER = get_converter()
PLAIN = {
    types.INITIALIZED,
    types.SHUTDOWN,
    types.SET_TRACE,
    types.CANCEL_REQUEST,
    types.WINDOW_WORK_DONE_PROGRESS_CANCEL,
}
METHODS = [method for method in READERS if method not in (*PLAIN, *EDITS)]  # lsprotocol does not know EDITS
VALUES = {"uri": "file:///a.py", "line": 0, "character": 0, "rangeLength": 0, "version": 2, "text": "long"}
VALUES |= {"rootPath": "/srv", "positionEncodings": ["utf-8"], "languageId": "python"}


def whole_of(method: str) -> Any:
    return sample(params_of(method), VALUES)


def read(method: str, params: Any) -> Any:
    """Return what the server reads of a message, checked with lsprotocol, or the error's text if it is rejected."""
    try:
        found = READERS[method](params)
    except Misread as error:
        return str(error)
    if method not in DOCUMENTS:
        CONVERTER.structure(found, params_of(method))
    return found


@pytest.mark.parametrize("method", METHODS)
def test_what_is_optional_may_be_absent_or_null(method: str) -> None:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for variant in variants(params_of(method), whole_of(method)):
        if variant.kind in ("absent", "null"):
            found.setdefault(variant.path, {})[variant.kind] = got = read(method, variant.params)
            contradicts = variant.path[-1] == "range"  # a rangeLength without a range
            assert not variant.optional or contradicts or not isinstance(got, str), f"{variant}: {got}"
    for path, both in found.items():
        assert both["absent"] == both["null"], path


@pytest.mark.parametrize("method", METHODS)
def test_other_forms_mean_the_same(method: str) -> None:
    whole = read(method, whole_of(method))
    for variant in variants(params_of(method), whole_of(method)):
        if variant.kind in ("pair", "float"):
            assert read(method, variant.params) == whole, variant
        if variant.kind == "huge":
            assert not isinstance(read(method, variant.params), str), variant


@pytest.mark.parametrize("method", METHODS)
def test_nonsense_is_refused_by_its_name_or_not_read(method: str) -> None:
    whole = read(method, whole_of(method))
    for variant in variants(params_of(method), whole_of(method)):
        if variant.kind == "nonsense" and (got := read(method, variant.params)) != whole:
            names = ".".join(str(name) for name in variant.path)
            assert not isinstance(got, str) or names in got, f"{variant}: {got}"


def changes() -> list[Variant]:
    method = types.TEXT_DOCUMENT_DID_CHANGE
    return list(variants(params_of(method), whole_of(method)))


async def change_and_ask(client: Editor, fake: FakeDaemon, variant: Variant) -> None:
    """Run one document's life with a change that has an odd field."""
    client.open("x = \n")
    client.notify("textDocument/didChange", variant.params)
    known = await client.texts(0, 8) or None
    if known is None:
        status = await client.status()
        assert status["kind"] == "Inactive", variant
        assert "could not be read" in status["message"] and client.heard("window/showMessage"), variant
        assert not [asked for asked in [*fake.asked, *fake.warmed] if "long" in asked.body["prefix"]]
        client.type(3, 0, 0, "more")
        assert await client.texts(0, 8) == [], "a piece of it does not bring the text back"
        client.change(4, {"text": "longx = \n"})
        assert await client.texts(0, 8) == ["longx = 1"], "the whole text does"
    else:
        to_the_end = "range" in variant.path and variant.kind == "huge"
        expected = "long" if to_the_end else "longx = "
        assert (known, fake.asked[-1].body["prefix"]) == ([f"{expected}1"], expected), variant
        assert "could not be read" not in str(client.told), variant
    client.notify("textDocument/didClose", {"textDocument": {"uri": VALUES["uri"]}})
    client.told.clear()
    fake.asked.clear()


def test_a_change_that_is_odd_is_made_or_refused_aloud_and_nothing_drifts() -> None:
    async def scenario(client: Editor, fake: FakeDaemon) -> None:
        for variant in changes():
            await change_and_ask(client, fake, variant)

    assert len(changes()) > 40
    on_a_server(scenario, seconds=300)


@pytest.mark.parametrize("version", [None, "absent", 2**31, -(2**40), "3", 1.0])
def test_versions_do_not_matter(version: Any) -> None:
    """Even if the same version is repeated: no suggestion for an older text."""

    async def scenario() -> None:
        async with talking() as (client, fake):
            item = {"uri": "file:///a.py", "languageId": "python", "version": version, "text": "x = \n"}
            identifier = {"uri": item["uri"], "version": version}
            if version == "absent":
                del item["version"], identifier["version"]
            client.notify("textDocument/didOpen", {"textDocument": item})
            _, stale = client.ask(0, 4)
            await fake.question()
            client.notify(
                "textDocument/didChange", {"textDocument": identifier, "contentChanges": [insertion(0, 0, "yy")]}
            )
            assert (await stale)["error"]["code"] == -32801
            fake.script = ["1"]
            assert await client.texts(0, 6) == ["yyx = 1"]

    run(scenario())


def test_a_change_that_names_no_document_may_be_of_any() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            for uri in ("file:///a.py", "file:///b.py"):
                client.open("x = \n", uri=uri)
            client.notify("textDocument/didChange", {"contentChanges": [insertion(0, 0, "yy")]})
            for uri in ("file:///a.py", "file:///b.py"):
                assert await client.texts(0, 4, uri=uri) == []
            client.open("x = \n", uri="file:///a.py")
            assert await client.texts(0, 4) == ["x = 1"]
            assert fake.asked[-1].body["snippets"] == [], "nor is what is not known sent along"

    run(scenario())


def test_a_document_without_a_language_has_that_of_its_name() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.notify("textDocument/didOpen", {"textDocument": {"uri": "file:///a.py", "text": "x = \n"}})
            assert await client.texts(0, 4) == ["x = 1"]

    run(scenario())


@pytest.mark.parametrize(("kind", "asked_for"), [(0, True), (1, True), (2, False), (None, False)])
def test_who_asked_in_every_form(kind: int | None, asked_for: bool) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("x = \n")
            context = {"triggerKind": kind} if kind is not None else None
            await client.request("textDocument/inlineCompletion", {**question(0, 4), "context": context})
            assert (fake.asked[0].body["trigger"] == "invoked") == asked_for

    run(scenario())


def test_the_root_of_an_old_client_is_a_path(tmp_path: Any) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / ".codespecignore").write_text("a/\n")

    async def scenario() -> None:
        async with talking(start={"rootPath": str(tmp_path)}) as (client, _):
            client.open("x = \n", uri=(tmp_path / "a" / "b.py").as_uri())
            assert await client.texts(0, 4, uri=(tmp_path / "a" / "b.py").as_uri()) == []
            assert "excluded by .codespecignore" in (await client.status())["message"]

    run(scenario())
