"""Give llama-server the prompts of the cases, with its n-gram speculation, and time its answers.

The prompts are assembled again by the daemon's own code, so both models read the same ids, and both servers may reuse
what they have cached of an earlier prompt.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codespec.api.config import EngineConfig
from codespec.backends.text_tokenizer import load_tokenizer
from codespec.errors import ConfigError
from codespec.store.resolve import resolve
from codespec.text.edit_formats import AnswerReader, edit_formats
from codespec.text.edit_prompt import Change, EditContext, EditPrompt, build_edit_prompt
from codespec_lab.bench.decode.contest import thread_counts
from codespec_lab.bench.decode.llama_cpp import MARGIN, NGRAMS
from codespec_lab.bench.edits.cases import Case
from codespec_lab.bench.edits.score import edits_of
from codespec_lab.bench.llama_server import LlamaServer, LlamaServerError, find_program
from codespec_lab.progress import ProgressBar

FLAGS: Mapping[str, Sequence[str]] = {
    f"n-grams of {key}, drafts of {value}": (
        *("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(key)),
        *("--spec-ngram-simple-size-m", str(value), "--spec-draft-n-max", str(value)),
    )
    for key, value in NGRAMS
}


def race(
    config: EngineConfig, folder: Path, facts: Mapping[str, Any], cases: Sequence[Case], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Add llama-server's times and answers to the rows, and return its version. Raises ConfigError if it fails."""
    model = resolve(config.target)
    if model.form != "gguf" or model.path is None:
        raise ConfigError("--llama-cpp compares GGUF files: name one by --target.")
    form, tokenizer = edit_formats()[facts["edit_format"]], load_tokenizer(model.folder())
    asked = {case.name: case for case in cases}
    prompts = list[EditPrompt | str]()
    for row in rows:
        case = asked[row["case"]]
        prompts.append(
            build_edit_prompt(
                tokenizer, form, _context(case), case.row, most=facts["context"], budget=facts["prompt_budget"]
            )
        )
    longest = max(len(each.ids) + each.max_tokens for each in prompts if isinstance(each, EditPrompt))
    progress = ProgressBar("llama-server", len(FLAGS) * len(rows))
    try:
        program = find_program(folder)
        for name, flags in FLAGS.items():
            threads = config.threads or max(thread_counts())
            with LlamaServer(
                program, model.path, threads=threads, slots=1, room=longest + MARGIN, flags=flags
            ) as server:
                for row, prompt in zip(rows, prompts, strict=True):
                    if isinstance(prompt, EditPrompt):
                        ends = tokenizer.eos_ids
                        row.setdefault("llama_cpp", {})[name] = _answer(server, prompt, asked[row["case"]], ends)
                    progress.advance()
    except LlamaServerError as error:
        raise ConfigError(f"llama-server can't take part: {error}.") from error
    return {"program": program.label, "settings": {name: " ".join(flags) for name, flags in FLAGS.items()}}


def _answer(server: LlamaServer, prompt: EditPrompt, case: Case, ends: frozenset[int]) -> dict[str, Any]:
    begun = time.perf_counter()
    found = server.complete(prompt.ids, prompt.max_tokens, ends, stops=prompt.stops, cache=True)
    reader = AnswerReader(prompt.window)
    hunks = [*reader.feed(found.text), *reader.finish()]
    edits = [
        (prompt.start_row + hunk.start, prompt.start_row + hunk.end, "".join(f"{line}\n" for line in hunk.lines))
        for hunk in hunks
    ]
    answer = [list(hunk) for hunk in edits_of(case.text, edits)]
    return {"ms": (found.ended - begun) * 1000, "tokens": len(found.ids), "answer": answer}


def _context(case: Case) -> EditContext:
    """Return the context that the daemon makes from a case's request."""
    return EditContext(
        path=case.path,
        lines=case.text.split("\n"),
        language=case.language,
        cursor=case.cursor,
        changes=[Change(case.path, *made) for made in case.history],
    )
