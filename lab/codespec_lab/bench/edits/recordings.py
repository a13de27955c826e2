"""Read recorded exchanges of next-edit models, as cursortab.nvim keeps them, and replay their answers as drafts.

A file holds one JSON object a line: the recording's model, then requests and responses with their bodies in base64.
Prompts are recognized as the daemon recognizes those of clients. Nothing of a recording is written anywhere.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.api.types import CompletionRequest
from codespec.errors import ConfigError
from codespec.proposers.lookup import PredictionProposer
from codespec.text.edit_formats import read_edit_prompt
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.bench.edits.replay import replay_answer, tokens_a_round

WIDTH = 16  # tokens of a draft


@dataclass(frozen=True, slots=True)
class Exchange:
    """A prompt in a format, the answer that would change nothing, and the one that was given."""

    format: str
    prompt: str
    prediction: str
    answer: str
    changed: bool


def read_exchanges(folder: Path) -> Iterator[Exchange]:
    """Yield the complete answers to next-edit prompts, in the order of the files' names. Raises ConfigError."""
    for file in sorted(folder.rglob("*.ndjson")):
        try:
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            requests = {row["interaction"]: row for row in rows if row["kind"] == "request"}
            pairs = [(requests[row["interaction"]], row) for row in rows if row["kind"] == "response"]
            bodies = [(_body(request), _body(response)) for request, response in pairs]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{file} is no recording of exchanges ({error}): name another folder.") from error
        yield from (found for request, response in bodies if (found := _exchange(request, response)) is not None)


def replay(folder: Path, tokenizer: TextTokenizer) -> dict[str, Any]:
    """Return the tokens a round of the recorded answers by format, spelled by a tokenizer that may not be theirs."""
    end = min(tokenizer.model_eos_ids)
    found: dict[str, Any] = {}
    groups: dict[tuple[str, bool], list[Exchange]] = {}
    for exchange in read_exchanges(folder):
        groups.setdefault((exchange.format, exchange.changed), []).append(exchange)
    for (name, changed), exchanges in sorted(groups.items()):
        proposer, replays = PredictionProposer(), []
        for each in exchanges:
            request = CompletionRequest(prefix=each.prompt, prediction=each.prediction)
            replays.append(replay_answer(proposer, tokenizer, request, each.answer, end, WIDTH))
        kind = "changed" if changed else "unchanged"
        figures = {"answers": len(replays), "tokens": sum(each.tokens for each in replays)}
        found.setdefault(name, {})[kind] = {**figures, "tokens_a_round": tokens_a_round(replays)}
    if not found:
        raise ConfigError(f"{folder} has no answers of Sweep or Zeta models: name the folder with the recordings.")
    return found


def _body(row: Mapping[str, Any]) -> Any:
    """Return the JSON value of a body; None for one that is not JSON text."""
    try:
        return json.loads(base64.b64decode(row.get("body_b64", "")))
    except ValueError:
        return None


def _exchange(request: Any, response: Any) -> Exchange | None:
    """Return a complete answer to a prompt in a known format, or None."""
    prompt = request.get("prompt") if isinstance(request, dict) else None
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(prompt, str) or not choices or choices[0].get("finish_reason") != "stop":
        return None
    read = read_edit_prompt(prompt)
    if read is None:
        return None
    answer, same = choices[0]["text"], read.prediction
    for stop in read.stops:
        same = same.partition(stop)[0]
    return Exchange(read.form.name, prompt, read.prediction, answer, answer.rstrip("\n") != same.rstrip("\n"))
