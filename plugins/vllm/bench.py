"""Compare vLLM's decoding without drafts, with its own methods and with codespec's, on the same prompts in turn.

    python plugins/vllm/bench.py --vllm PYTHON [--prompts FILE] [--held-out FILE] [--json docs/vllm.json]

Runs in codespec's own environment, with the laboratory. Each contestant is a process of PYTHON, an interpreter with
vLLM, codespec and codespec_vllm (README.md). `seconds` is the whole time. `decode` begins when every text of a batch
has a token, so it excludes the prompts. With drafts, texts end at different steps, and no new text takes the place of
one that has ended. `text_ratio` therefore compares the time of each text after its first token. Texts are greedy. The
bench counts the texts that differ from plain vLLM's in a batch of the same size, and plain vLLM's own differences
between batch sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve()
OFF, OURS = "off", "codespec"
MAX = 8  # texts at once
LINE = (
    "c{size} {name}: {text_ratio:.2f} × off by text, {ratio:.2f} by batch ({tokens_per_second:.1f} tok/s), "
    "{differ} of {texts} differ"
)


def contestants(tokens: int, drafter: Path) -> dict[str, dict[str, Any] | None]:
    """Return each contestant's speculative_config."""
    ngram = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    model = {"method": "draft_model", "model": str(drafter), "use_heterogeneous_vocab": True}
    own = {"method": "custom_class", "model": "codespec_vllm.Proposer"}
    found = {"vllm ngram": ngram, "vllm draft model": model, OURS: own}
    return {OFF: None, **{name: {**config, "num_speculative_tokens": tokens} for name, config in found.items()}}


class Child:
    """A process with one contestant's engine. If it does not start, `failed` is the last error in its log."""

    def __init__(self, python: Path, settings: dict[str, Any], log: Path) -> None:
        self._log = log.open("wb")
        words = [str(python), str(HERE), "--child", json.dumps(settings)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
        self.failed = "" if self.answer() else _reason(log)

    def ask(self, prompts: Sequence[Sequence[int]], tokens: int) -> dict[str, Any]:
        """Decode prompts as one batch."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}).encode() + b"\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self.answer())
        return found

    def answer(self) -> bytes:
        """Return the next line of its answers."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def _reason(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
    return lines[-1][-300:] if lines else "it ended without a message"


def child(settings: dict[str, Any]) -> None:
    """Answer requests, one JSON object a line, with an engine in this process."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM's own output goes to standard error
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM

    llm = LLM(
        model=settings["folder"],
        dtype=settings["dtype"],
        max_model_len=2048,
        max_num_seqs=MAX,
        enable_prefix_caching=False,
        enforce_eager=settings["eager"],
        speculative_config=settings["speculative"],
        disable_log_stats=False,
    )
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        before, found = counts(llm), decode(llm.llm_engine, json.loads(line))
        more = {name: value - before.get(name, 0) for name, value in counts(llm).items()}
        print(json.dumps({**found, **more}), file=answers, flush=True)


def counts(llm: Any) -> dict[str, int]:
    """Return vLLM's own counts of draft tokens."""
    names = {"vllm:spec_decode_num_draft_tokens": "drafted", "vllm:spec_decode_num_accepted_tokens": "accepted"}
    return {names[metric.name]: int(metric.value) for metric in llm.get_metrics() if metric.name in names}


def decode(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return the texts as ids, and the times of the whole batch, of its decoding and of single texts."""
    import time

    from vllm import SamplingParams

    began = time.perf_counter()
    for number, ids in enumerate(request["prompts"]):
        sampling = SamplingParams(temperature=0.0, max_tokens=request["tokens"], detokenize=False)
        engine.add_request(str(number), {"prompt_token_ids": ids}, sampling)
    texts: dict[str, list[int]] = {}
    first: dict[str, tuple[float, int]] = {}
    mark, early, by_text, by_text_tokens = 0.0, 0, 0.0, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            name, ids, now = output.request_id, list(output.outputs[0].token_ids), time.perf_counter()
            texts[name], (since, had) = ids, first.setdefault(name, (now, len(ids)))
            if output.finished:
                by_text, by_text_tokens = by_text + now - since, by_text_tokens + len(ids) - had
        if not mark and len(texts) == len(request["prompts"]):
            mark, early = time.perf_counter(), sum(map(len, texts.values()))
    ended = time.perf_counter()
    late = sum(map(len, texts.values())) - early
    found = [texts[str(number)] for number in range(len(texts))]
    own = {"text_seconds": by_text, "text_tokens": by_text_tokens}
    return {"texts": found, "seconds": ended - began, "decode": ended - mark, "tokens": late, **own}


def write_bfloat16(source: Path, folder: Path) -> Path:
    """Return a bfloat16 copy of a float32 folder, created once, so that several engines fit in memory."""
    from safetensors.torch import load_file, save_file
    from torch import bfloat16

    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for file in source.glob("*.json"):
            text = file.read_text(encoding="utf-8")
            (folder / file.name).write_text(text.replace('"float32"', '"bfloat16"'), encoding="utf-8")
        weights = load_file(source / "model.safetensors")
        save_file({name: tensor.to(bfloat16) for name, tensor in weights.items()}, folder / "model.safetensors")
    return folder


def read_prompts(args: argparse.Namespace, tokenizer: Any) -> dict[str, list[list[int]]]:
    """Return the prompts in target ids, by kind."""
    from codespec_lab.bench.sites import held_out_sites, prompt_sites

    kinds = {"places": held_out_sites(args.held_out, args.places)[0]}
    random.Random(0).shuffle(kinds["places"])
    if args.prompts:
        kinds["prompts"] = prompt_sites(args.prompts, args.places)
    return {
        kind: [tokenizer.encode(site.prefix)[-args.prompt_tokens :] for site in sites if site.prefix.strip()][
            : args.places
        ]
        for kind, sites in kinds.items()
    }


def compare(
    children: dict[str, Child], prompts: list[list[int]], tokens: int, size: int, alone: list[list[int]]
) -> list[dict[str, Any]]:
    """Return a row for each contestant in batches of `size`. All contestants decode a batch before the next one.

    Plain texts are compared with `alone`. If it is empty, plain vLLM's texts are stored in it.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in children}
    for turn, at in enumerate(range(0, len(prompts) - size + 1, size)):
        names = list(children)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(children[name].ask(prompts[at : at + size], tokens))
    texts = {name: [text for one in ones for text in one["texts"]] for name, ones in found.items()}
    alone.extend([] if alone else texts[OFF])
    rows = []
    for name, ones in found.items():
        pairs = [(a, b) for a, b in zip(ones, found[OFF], strict=True) if a["tokens"] and b["tokens"]]
        ratios = [a["tokens"] / a["decode"] / (b["tokens"] / b["decode"]) for a, b in pairs]
        keys = ("seconds", "drafted", "accepted", "text_seconds", "text_tokens")
        sums = {key: sum(one.get(key, 0) for one in ones) for key in keys}
        rate = sum(one["tokens"] for one in ones) / sum(one["decode"] for one in ones)
        differ = sum(a != b for a, b in zip(texts[name], alone if name == OFF else texts[OFF], strict=False))
        row = {"size": size, "name": name, "tokens_per_second": rate, "median_ratio": median(ratios), **sums}
        rows.append({**row, "texts": len(texts[name]), "differ": differ})
    plain = next(row for row in rows if row["name"] == OFF)
    for row in rows:
        row["ratio"] = row["tokens_per_second"] / plain["tokens_per_second"]
        row["text_ratio"] = _rate(row) / _rate(plain)
    return rows


def _rate(row: dict[str, Any]) -> float:
    """Return the tokens per second of a text."""
    return float(row["text_tokens"] / row["text_seconds"])


def parse() -> argparse.Namespace:
    """Return the command line's values."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--vllm", type=Path, help="Python with vLLM, codespec and codespec_vllm")
    parser.add_argument("--target", default="qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", type=Path, help="one JSON object a line, with `prompt`")
    parser.add_argument("--held-out", type=Path)
    parser.add_argument("--places", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompt-tokens", type=int, default=512, help="use the last tokens of longer prompts")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 8], help="texts at once")
    parser.add_argument("--draft-tokens", type=int, default=8)
    parser.add_argument("--only", help="contestants besides off, separated by commas")
    parser.add_argument("--compile", action="store_true", help="let vLLM compile the target")
    parser.add_argument("--out", type=Path, default=Path(".out/vllm"), help="folder for logs and weights")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def start(args: argparse.Namespace, folder: Path, drafter: Path) -> tuple[dict[str, Child], dict[str, str]]:
    """Return the contestants that started, and the error of each other."""
    children: dict[str, Child] = {}
    absent: dict[str, str] = {}
    for name, speculative in contestants(args.draft_tokens, drafter).items():
        if args.only and name != OFF and name not in args.only.split(","):
            continue
        settings = {"folder": str(folder), "dtype": args.dtype, "eager": not args.compile, "speculative": speculative}
        one = Child(args.vllm, settings, args.out / f"vllm-{name.replace(' ', '-')}.log")
        if one.failed:
            absent[name] = one.failed
        else:
            children[name] = one
        print(name, one.failed or "is ready", flush=True)
    return children, absent


def main() -> None:
    """Start the contestants, compare them, and print and write the rows."""
    args = parse()
    if args.child:
        return child(json.loads(args.child))
    from codespec.api.config import SHIPPED
    from codespec.backends.text_tokenizer import load_tokenizer
    from codespec.store.machine import processor
    from codespec.store.resolve import resolve

    args.out.mkdir(parents=True, exist_ok=True)
    folder = resolve(args.target).folder("float32")
    if args.dtype == "bfloat16":
        folder = write_bfloat16(folder, args.out / f"{folder.name[:12]}-bfloat16")
    kinds = read_prompts(args, load_tokenizer(folder))
    children, absent = start(args, folder, SHIPPED / "qwen-drafter")
    facts = {
        "processor": processor().name,
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "target": args.target,
        "dtype": args.dtype,
    }
    report: dict[str, Any] = {**facts, "tokens": args.tokens, "draft_tokens": args.draft_tokens, "absent": absent}
    for kind, prompts in kinds.items():
        for one in children.values():
            one.ask(prompts[-1:], args.tokens)  # warm up
        report[kind], alone = [], list[list[int]]()
        for size in args.sizes:
            rows = compare(children, prompts, args.tokens, size, alone)
            report[kind] += rows
            for row in rows:
                print(kind, LINE.format(**row), flush=True)
            if args.json:
                args.json.write_text(json.dumps(report, indent=1) + "\n")
    for one in children.values():
        one.stop()


if __name__ == "__main__":
    main()
