"""A suggestion replaced by other typed text is dismissed; after three dismissals at one position the server stays
silent there.
"""

from __future__ import annotations

from codespec_lsp.acceptance import MAX_DISMISSED, MAX_PLACES, Counters, Dismissals
from codespec_lsp.buffer import Edit
from codespec_lsp.prompt import TextAround

from tests.lsp.conversation import URI, replacement, run
from tests.lsp.fake_daemon import talking

HERE = TextAround(URI, "import os\nx = ", "\n")
TIP = len(HERE.prefix)


def dismiss(dismissals: Dismissals, prompt: TextAround = HERE, text: str = "z") -> None:
    """Show a suggestion, then type other text."""
    dismissals.show(prompt, "value", len(prompt.prefix))
    dismissals.edited(prompt.uri, Edit(len(prompt.prefix), "", text))


def made() -> tuple[Dismissals, Counters]:
    counters = Counters()
    return Dismissals(counters), counters


def test_three_in_a_row_are_enough() -> None:
    dismissals, counters = made()
    for count in range(MAX_DISMISSED):
        assert not dismissals.is_quiet(HERE), count
        dismiss(dismissals)
    assert dismissals.is_quiet(HERE) and counters.dismissed == MAX_DISMISSED


def test_another_place_and_another_document_are_not_quiet() -> None:
    dismissals, _ = made()
    for _ in range(MAX_DISMISSED):
        dismiss(dismissals)
    assert not dismissals.is_quiet(TextAround(URI, "import os\ny = ", "\n"))
    assert not dismissals.is_quiet(TextAround(URI, HERE.prefix, ")\n"))
    assert not dismissals.is_quiet(TextAround("file:///b.py", HERE.prefix, HERE.suffix))
    assert dismissals.is_quiet(TextAround(URI, "# one more line above\n" + HERE.prefix, HERE.suffix)), (
        "lines above may move"
    )


def test_typing_along_agrees() -> None:
    dismissals, counters = made()
    for text in ("z", "z", "v", "z", "z"):
        dismiss(dismissals, text=text)
    assert not dismissals.is_quiet(HERE) and counters.dismissed == 4


def test_a_bracket_that_the_editor_closes_agrees() -> None:
    dismissals, counters = made()
    dismissals.show(HERE, "(a, b)", TIP)
    dismissals.edited(URI, Edit(TIP, "", "()"))
    assert counters.dismissed == 0


def test_deleting_and_editing_elsewhere_dismiss_nothing() -> None:
    dismissals, counters = made()
    for edit in (Edit(TIP - 1, " ", ""), Edit(0, "", "z"), Edit(TIP, "\n", "z")):
        dismissals.show(HERE, "value", TIP)
        dismissals.edited(URI, edit)
    assert counters.dismissed == 0


def test_a_suggestion_that_another_one_replaces_was_dismissed() -> None:
    dismissals, counters = made()
    for text in ("val", "value", "other"):
        dismissals.show(HERE, text, TIP)
    assert counters.dismissed == 1, "one that grows is still the same"


def test_asking_forgives_and_closing_forgets() -> None:
    dismissals, _ = made()
    for _ in range(MAX_DISMISSED):
        dismiss(dismissals)
    dismissals.forgive(HERE)
    assert not dismissals.is_quiet(HERE)
    for _ in range(MAX_DISMISSED):
        dismiss(dismissals)
    dismissals.close(URI)
    assert not dismissals.is_quiet(HERE)


def test_what_is_remembered_is_bounded() -> None:
    dismissals, _ = made()
    for _ in range(MAX_DISMISSED):
        dismiss(dismissals)
    for number in range(MAX_PLACES):
        dismiss(dismissals, TextAround(URI, f"x{number} = ", "\n"))
    assert not dismissals.is_quiet(HERE)


def test_the_server_keeps_quiet_until_it_is_asked() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            fake.script = ["value"]
            version = 1
            for _ in range(MAX_DISMISSED):
                assert await client.texts(0, 4) == ["x = value"]
                client.type(version + 1, 0, 4, "7")
                client.change(version + 2, replacement(0, 4, 0, 5, ""))
                version += 2
            asked = len(fake.asked)
            assert await client.texts(0, 4) == [] and len(fake.asked) == asked, "and it asks no daemon"
            counters = (await client.status())["counters"]
            assert (counters["dismissed"], counters["keptQuiet"]) == (3, 1)
            reply = (await client.ask(0, 4, trigger=1)[1])["result"]
            assert reply["items"], "an explicit request is answered"
            assert await client.texts(0, 4) == ["x = value"], "and from then on the others are"

    run(scenario())
