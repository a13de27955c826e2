"""Check a completion request, whoever answers it. Knows no model."""

from __future__ import annotations

from codespec.contract.limits import MOST_CHOICES, MOST_LOGPROBS, MOST_PREDICTION
from codespec.contract.types import CompletionRequest
from codespec.errors import FIELD, Fault, RequestError

MIN_PROMPT = 16  # tokens of the context that a completion leaves for its prompt


def check_request(request: CompletionRequest, context: int) -> None:
    """Raise RequestError for the first invalid field."""
    texts = (("prefix", request.prefix), ("suffix", request.suffix), ("prediction", request.prediction))
    for name, text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            what = f"{FIELD} holds a lone surrogate at character {error.start}"
            raise RequestError(Fault("invalid_text", what, "send valid text", name)) from error
    demand(len(request.prediction) <= MOST_PREDICTION, "prediction", f"at most {MOST_PREDICTION} characters long")
    room = context - MIN_PROMPT
    demand(0 <= request.max_tokens <= room, "max_tokens", f"between 0 and {room} for a context of {context}")
    demand(0.0 <= request.temperature <= 100.0, "temperature", "between 0 and 100")
    demand(request.top_k >= 0, "top_k", "0 (off) or more")
    demand(0.0 < request.top_p <= 1.0, "top_p", "above 0 and at most 1")
    demand(0.0 <= request.min_p <= 1.0, "min_p", "between 0 and 1")
    demand(0.01 <= request.repetition_penalty <= 100.0, "repetition_penalty", "between 0.01 and 100")
    demand(1 <= request.n <= MOST_CHOICES, "n", f"between 1 and {MOST_CHOICES}")
    demand(all(request.stop), "stop", "a list of non-empty texts")
    demand(request.shape in ("raw", "auto", "line", "block"), "shape", "raw, auto, line or block")
    demand(request.deadline_ms is None or request.deadline_ms > 0, "deadline_ms", "above 0")
    demand(request.logprobs is None or 0 <= request.logprobs <= MOST_LOGPROBS, "logprobs", f"0 to {MOST_LOGPROBS}")
    demand(request.rule in ("match", "rejection"), "rule", "match or rejection")
    demand(request.rule == "match" or not request.heal, "rule", "match if heal is set")
    plain = not (request.suffix or request.snippets or request.heal) and request.shape == "raw"
    demand(plain or not request.prompt_ids, "prompt_ids", "alone: shape raw, without suffix, snippets and heal")


def demand(holds: bool, field: str, range_: str) -> None:
    """Raise RequestError for a field unless it `holds` its range."""
    if not holds:
        raise RequestError(Fault("invalid_field", f"{FIELD} must be {range_}", field=field))
