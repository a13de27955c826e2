"""Run `openvino-genai` in a separate process: read settings and then requests from standard input, one JSON object a
line, and answer each with a line on standard output. Does not import codespec.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Load the model, report its version, and decode until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the library's own output goes to standard error
    genai: Any = importlib.import_module("openvino_genai")
    settings = json.loads(sys.stdin.readline())
    pipeline = load(genai, settings)
    print(json.dumps({"version": genai.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(decode(genai, pipeline, settings, json.loads(line))), file=answers, flush=True)


def load(genai: Any, settings: dict[str, Any]) -> Any:
    """Return the pipeline: plain, with prompt lookup, or with a draft model."""
    threads = {"INFERENCE_NUM_THREADS": settings["threads"]}
    options: dict[str, Any] = {"prompt_lookup": True} if settings["ngram"] else {}
    if settings["drafter"]:
        options["draft_model"] = genai.draft_model(settings["drafter"], "CPU", **threads)
    return genai.LLMPipeline(settings["folder"], "CPU", **threads, **options)


def decode(genai: Any, pipeline: Any, settings: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Decode one text. Return its ids, the seconds and ids of each round, and the total seconds."""
    numpy: Any = importlib.import_module("numpy")
    openvino: Any = importlib.import_module("openvino")
    config = genai.GenerationConfig()
    config.max_new_tokens, config.apply_chat_template = request["tokens"], False
    config.stop_token_ids = set(request["ends"])
    if request["temperature"] > 0.0:
        config.do_sample, config.temperature, config.rng_seed = True, request["temperature"], request["seed"]
        config.top_p, config.top_k = 1.0, 1 << 30
    if settings["draft_tokens"]:
        config.num_assistant_tokens = settings["draft_tokens"]
    if settings["ngram"]:
        config.max_ngram_size = settings["ngram"]
    rounds: list[tuple[float, list[int]]] = []

    class Streamer(genai.StreamerBase):  # type: ignore[misc]
        def write(self, tokens: Any) -> Any:
            rounds.append((time.perf_counter() - began, [tokens] if isinstance(tokens, int) else list(tokens)))
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    ids = openvino.Tensor(numpy.array([request["ids"]], dtype=numpy.int64))
    began = time.perf_counter()
    found = pipeline.generate(ids, config, Streamer())
    return {"ids": list(found.tokens[0]), "rounds": rounds, "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    main()
