"""The fields that other servers document and this one does not read, by dialect.

A field that would change the reply is refused by name, unless its value is neutral: the one that changes nothing there
either. A field that an editor always sends is `noted` instead, because a refusal would end that editor's completions.
Fields that affect only speed or memory (`cache_prompt`, `id_slot`, `keep_alive`, `num_gpu`) need no row, nor do unknown
ones: clients send both freely.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from codespec.server.wire import Fields


class Unread(NamedTuple):
    """Why a field is not read, and the values that change nothing. With `noted`, other values only get a note."""

    why: str
    neutral: tuple[Any, ...] = ()
    noted: bool = False


PENALTY = "the engine has only repeat_penalty"
SAMPLER = "the engine has no such sampler"
FREE = "the engine writes free text"
TEXT = "only text is completed"
AS_IT_IS = "the prompt is continued as it is"
MAX_LIKELY = {  # samplers of llama.cpp, in Ollama's options too
    "frequency_penalty": Unread(PENALTY, (0,)),
    "presence_penalty": Unread(PENALTY, (0,)),
    "mirostat": Unread(SAMPLER, (0,)),
    "typical_p": Unread(SAMPLER, (1,)),
    "tfs_z": Unread(SAMPLER, (1,)),
}
LLAMA_CPP: Mapping[str, Unread] = {
    **MAX_LIKELY,
    "dry_multiplier": Unread(SAMPLER, (0,)),
    "xtc_probability": Unread(SAMPLER, (0,)),
    "top_n_sigma": Unread(SAMPLER, (-1, 0)),
    "dynatemp_range": Unread(SAMPLER, (0,)),
    "adaptive_target": Unread(SAMPLER, (-1,)),
    "min_keep": Unread(SAMPLER, (0, 1)),
    "logit_bias": Unread("the engine has no token biases", ([], {})),
    "ignore_eos": Unread("a text ends where the model ends it", (False,)),
    "grammar": Unread(FREE, ("",)),
    "json_schema": Unread(FREE),
    "lora": Unread("the daemon serves one model, with its adapter merged", ([], "")),
    "image_data": Unread(TEXT, ([],)),
    "post_sampling_probs": Unread("probabilities are the model's", (False,)),
    "samplers": Unread("top_k, top_p, min_p and temperature apply in the engine's order", ([], ""), noted=True),
    "return_progress": Unread("a prompt's progress is not sent", (False,), noted=True),
    "timings_per_token": Unread("timings come at the end", (False,), noted=True),
}
INFILL: Mapping[str, Unread] = {**LLAMA_CPP, "n_probs": Unread("/completion has them", (0,))}
OLLAMA: Mapping[str, Unread] = {
    "images": Unread(TEXT, ([],)),
    "format": Unread(TEXT, ("",)),
    "logprobs": Unread("/v1/completions has them", (False,)),
    "top_logprobs": Unread("/v1/completions has them", (0,)),
    "system": Unread(AS_IT_IS, ("",)),
    "template": Unread(AS_IT_IS, ("",)),
    "context": Unread(AS_IT_IS, ([],)),
    "think": Unread(AS_IT_IS, (False, "")),
}
OLLAMA_OPTIONS: Mapping[str, Unread] = {
    **MAX_LIKELY,
    "penalize_newline": Unread("repeat_penalty counts all tokens", (True,)),
    "num_ctx": Unread("the daemon's context serves all requests", noted=True),
}
MISTRAL: Mapping[str, Unread] = {"min_tokens": Unread("a text ends where the model ends it", (0,))}
OPENAI: Mapping[str, Unread] = {
    "frequency_penalty": Unread("the engine has only repetition_penalty", (0,)),
    "presence_penalty": Unread("the engine has only repetition_penalty", (0,)),
    "logit_bias": Unread("the engine has no token biases", ({},)),
}
CHAT: Mapping[str, Unread] = {
    **OPENAI,
    "tools": Unread("no tools are called", ([],)),
    "functions": Unread("no tools are called", ([],)),
    "response_format": Unread("answers are plain text", ({"type": "text"},)),
}


def refuse_unread(fields: Fields, rows: Mapping[str, Unread]) -> list[str]:
    """Return notes for the fields that are not read. Raise RequestError for the first that would change the reply."""
    notes = []
    for name, row in rows.items():
        if not row.noted:
            fields.refuse_unless(name, row.neutral, row.why)
        elif fields.differs(name, row.neutral):
            notes.append(f"{fields.label(name)} is not used: {row.why}")
    return notes


def refuse_window(fields: Fields, penalty: str) -> None:
    """Refuse `repeat_last_n` if it limits a repetition penalty that is in force."""
    if fields.differs(penalty, (1,)):
        fields.refuse_unless("repeat_last_n", (-1,), f"{penalty} counts all tokens")
