"""After an accepted suggestion, the language server sends the request that the daemon has computed in advance."""

from __future__ import annotations

import asyncio

from lsprotocol import types

from codespec.api.types import Completion, CompletionRequest, DoneEvent, Stats, TextEvent
from codespec.engine.job import answers, follow_up
from codespec.server.dialects.codespec import read_request
from codespec.server.wire import Fields
from tools.manners import ForcedClient, Place, new_session, read_places, uri_of

PLACES = read_places()[::3]


async def requests(place: Place) -> tuple[str, list[CompletionRequest]]:
    """Return the suggestion at a place, and the requests before and after it is accepted whole."""
    client = ForcedClient(place.message)
    session, (uri, language) = new_session(client), uri_of(place)
    session.opened({"uri": uri, "languageId": language, "version": 1, "text": place.before + place.after})
    shown, text = "", place.before
    for version in (2, 3):
        row, column = text.count("\n"), len(text.rpartition("\n")[2])
        request = session.receive(uri, types.Position(row, column), explicit=False)
        suggestions = await session.answer(request) if request is not None else []
        if version == 3 or not suggestions:
            break
        here, shown = {"line": row, "character": column}, suggestions[0].shown
        session.changed({"uri": uri, "version": version}, [{"range": {"start": here, "end": here}, "text": shown}])
        text += shown
    await session.close()
    return shown, [read_request(Fields(dict(body)), 8192).request for body in client.requests]


def test_the_next_request_is_the_predicted_one() -> None:
    """Seldom the language server's tree and the daemon's lexer see another context."""
    right = []
    for place in PLACES:
        shown, sent = asyncio.run(requests(place))
        if shown.strip() and len(sent) == 2:
            done = DoneEvent(0, Completion(shown, (), "stop", Stats()))
            job = follow_up(sent[0], [TextEvent(0, shown), done])
            assert job is not None
            job.predict_cursor()
            right.append(answers(job.request, sent[1]))
    assert len(right) >= 40 and sum(right) >= 0.9 * len(right)
