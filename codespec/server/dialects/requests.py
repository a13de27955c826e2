"""Request parsing shared by the dialects: common fields, prompts with markers, errors with the client's field names.

The tables at the end list the fields that other servers document and this one does not read. A field that would change
the reply is refused by name, unless its value is neutral: the one that changes nothing there either. A field that an
editor always sends is `noted` instead, because a refusal would end that editor's completions. Fields that affect only
speed or memory (`cache_prompt`, `id_slot`, `keep_alive`, `num_gpu`) need no row, nor do unknown ones: clients send both
freely.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Concatenate, NamedTuple, ParamSpec

from aiohttp import web

from codespec.api.limits import MAX_CHOICES, MAX_COUNT, MAX_PREDICTION, MAX_SEED
from codespec.api.types import LIMITS, CompletionRequest, Snippet
from codespec.errors import RequestError
from codespec.exclusions.secrets import is_secret
from codespec.exclusions.secrets import without_secrets as without_secret_lines
from codespec.server.daemon import Loaded
from codespec.server.wire import Fields
from codespec.text.edit_formats import read_edit_prompt
from codespec.text.fim import MAX_CHARS
from codespec.text.fim_templates import MAX_FILES, FimMissing, find_template, split_ready_made

Prompt = str | tuple[int, ...]
Rest = ParamSpec("Rest")
Handler = Callable[Concatenate[web.Request, Rest], Coroutine[Any, Any, web.StreamResponse]]


def with_field_names(names: Mapping[str, str]) -> Callable[[Handler[Rest]], Handler[Rest]]:
    """Rename fields in a handler's errors from CompletionRequest's names to the client's."""

    def wrap(handler: Handler[Rest]) -> Handler[Rest]:
        async def handle(request: web.Request, /, *rest: Rest.args, **named: Rest.kwargs) -> web.StreamResponse:
            try:
                return await handler(request, *rest, **named)
            except RequestError as error:
                if type(error) is not RequestError or error.field not in names:
                    raise
                raise RequestError(replace(error.fault, field=names[error.field])) from error

        return handle

    return wrap


def read_max_tokens(
    fields: Fields, name: str, context: int, notes: list[str], default: int = 64, least: int = -2
) -> int:
    """Return the most tokens to generate, at most half the context; a negative number asks for as many as fit."""
    wanted = fields.whole(name, default, least, MAX_COUNT)
    granted = min(wanted if wanted >= 0 else context, max(1, context // 2))
    if wanted > granted:
        notes.append(f"{fields.label(name)} was cut to {granted}, half of the context: the prompt needs the other half")
    return granted


def read_seed(fields: Fields, name: str = "seed") -> int:
    """Return the seed; for a negative value, a random one."""
    seed = fields.whole(name, 0, -MAX_SEED - 1, MAX_SEED)
    return seed if seed >= 0 else secrets.randbits(32)


def read_choices(fields: Fields, name: str = "n") -> int:
    return fields.whole(name, 1, 1, MAX_CHOICES)


def read_sampling(
    fields: Fields, wanted: Collection[str], names: Mapping[str, str] = MappingProxyType({}), hottest: float = 2.0
) -> dict[str, Any]:
    """Return the wanted fields of SAMPLING that a client sends by these `names` (default: ours)."""
    values = {name: SAMPLING[name](fields, names.get(name, name)) for name in wanted}
    return {"temperature": fields.number("temperature", 0.0, 0.0, hottest), **values}


SAMPLING: dict[str, Callable[[Fields, str], Any]] = {
    "top_k": lambda fields, name: max(0, fields.whole(name, 0, -1, MAX_COUNT)),  # 0 and less: all tokens
    "top_p": lambda fields, name: max(1e-6, fields.number(name, 1.0, *LIMITS["top_p"].bounds)),
    "min_p": lambda fields, name: fields.number(name, 0.0, *LIMITS["min_p"].bounds),
    "repetition_penalty": lambda fields, name: fields.number(name, 1.0, *LIMITS["repetition_penalty"].bounds),
    "seed": read_seed,
    "stop": lambda fields, name: fields.texts(name),
}


def read_openai_sampling(fields: Fields) -> dict[str, Any]:
    return {**read_sampling(fields, SAMPLING), "n": read_choices(fields)}


def read_prediction(fields: Fields) -> str:
    """Read OpenAI's predicted output, a text that the completion will probably repeat; "" if there is none."""
    prediction = fields.part("prediction")
    if prediction is None:
        return ""
    if prediction.text("type") != "content":
        raise RequestError("prediction.type must be content.", "prediction.type")
    return prediction.text_or_parts("content", "", MAX_PREDICTION)


def read_include_usage(fields: Fields) -> bool:
    """Return whether the client requests the usage at the end of an OpenAI stream."""
    options = fields.part("stream_options")
    return options is not None and options.flag("include_usage")


def read_prompt(
    prompt: Prompt, fields: Fields, loaded: Loaded, notes: list[str], name: str = "prompt"
) -> dict[str, Any]:
    """Return prefix, suffix and other files, or token ids, for `make_request`.

    The client sends the texts separately, or in one prompt, the field `name`, with the markers of a known family, or
    both ways at once. A prompt of a next-edit client also has a prediction and stops.
    """
    suffix = fields.text("suffix", "")
    if suffix:
        require_fim(loaded, "suffix")
    if not isinstance(prompt, str):
        if suffix:
            raise RequestError("suffix can't go with a prompt of token ids: send the prompt as text.", "suffix")
        return {"prefix": prompt_text(prompt, loaded), "prompt_ids": prompt}
    edit = None if suffix else read_edit(prompt, loaded)
    if edit is not None:
        return edit
    ready_made = split_ready_made(prompt)
    if ready_made is None or (suffix and suffix.strip() != ready_made.suffix.strip()):
        return {"prefix": prompt, "suffix": suffix}
    require_fim(loaded, name, "send plain text, without markers")
    if ready_made.left_out:
        notes.append(f"the first {ready_made.left_out} other files were left out: at most {MAX_FILES} are read")
    files = without_secrets((Snippet(path, text) for path, text in ready_made.files), notes)
    return {"prefix": ready_made.prefix, "suffix": ready_made.suffix, "snippets": files}


def read_edit(prompt: str, loaded: Loaded) -> dict[str, Any] | None:
    """Return the parts of a next-edit client's prompt, or None for any other prompt.

    Another server parses the control tokens itself. A prompt too long for the context is none.
    """
    found = read_edit_prompt(prompt) if len(prompt) <= loaded.context * MAX_CHARS else None
    if found is None:
        return None
    parts: dict[str, Any] = {"prefix": prompt, "prediction": found.prediction, "stop": found.stops}
    if loaded.mode == "upstream":
        return parts
    ids = found.ids(loaded.tokenizer)
    return None if ids is None else {**parts, "prompt_ids": tuple(ids), "ends_at_control": True}


def make_request(texts: Mapping[str, Any], settings: Mapping[str, Any]) -> CompletionRequest:
    """Return a request from `read_prompt`'s texts and the client's settings: its prediction wins, stops add up."""
    prediction = settings.get("prediction") or texts.get("prediction", "")
    stops = tuple(dict.fromkeys((*settings.get("stop", ()), *texts.get("stop", ()))))
    return CompletionRequest(**{**texts, **settings, "prediction": prediction, "stop": stops})


def prompt_text(prompt: Prompt, loaded: Loaded) -> str:
    """Return a prompt as text. Unknown ids are skipped here; the engine refuses them."""
    if isinstance(prompt, str):
        return prompt
    token_bytes = loaded.tokenizer.token_bytes
    known = (token_bytes[token] for token in prompt if 0 <= token < len(token_bytes))
    return b"".join(known).decode("utf-8", "replace")


def without_secrets(snippets: Iterable[Snippet], notes: list[str]) -> tuple[Snippet, ...]:
    """Return the snippets without secret lines, except those of files whose names suggest secrets."""
    listed = list(snippets)
    kept = tuple(
        replace(snippet, text=without_secret_lines(snippet.text)) for snippet in listed if not is_secret(snippet.path)
    )
    if len(kept) < len(listed):
        notes.append(f"{len(listed) - len(kept)} of {len(listed)} other files may hold secrets and were left out")
    return kept


def missing_fim(loaded: Loaded) -> str:
    """Return why the model can't fill in the middle, or "" if it can."""
    if loaded.no_fim:
        return loaded.no_fim
    template = find_template(loaded.tokenizer)
    return template.reason if isinstance(template, FimMissing) else ""


def require_fim(loaded: Loaded, name: str, fix: str = "leave it out") -> None:
    """Raise RequestError if the model can't fill in the middle, which the field requires."""
    reason = missing_fim(loaded)
    if reason:
        raise RequestError(f"{name} can't be used ({reason}): {fix}.", name)


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
