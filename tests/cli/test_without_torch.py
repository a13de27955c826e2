"""The starter pair, and GGUF files of the native kernels, run without torch and transformers: they never load them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.gguf.files import write_model
from tests.cli.processes import fork
from tests.cli.test_light import ABSENT

WITHOUT = ABSENT.format(blocked=("torch", "transformers", "safetensors", "peft"))


@pytest.mark.parametrize("speculation", ["--no-speculation", "--local"])
def test_complete_writes_the_same_text_with_and_without_speculation(speculation: str, source: Path) -> None:
    done = fork("complete", f"{source}:1:1", "--local", speculation, before=WITHOUT)
    assert (done.returncode, done.stdout) == (0, fork("complete", f"{source}:1:1", "--local", before=WITHOUT).stdout)


def test_doctor_tries_the_engine() -> None:
    done = fork("doctor", before=WITHOUT)
    assert done.returncode == 0 and "24 tokens twice, equal" in done.stdout
    assert "exact mode holds by construction: native" in done.stdout


def test_a_conversation_is_rendered() -> None:
    """By the process that renders chat templates; it needs jinja2 alone."""
    asked = '{"template": "{{ messages[0].content }}!", "messages": [{"content": "hello"}], "tokens": {}}'
    words = [sys.executable, "-c", f"{WITHOUT}\nfrom codespec.server.chat_template_process import main\nmain()"]
    done = subprocess.run(words, input=f"{asked}\n", capture_output=True, text=True)
    assert done.stdout.splitlines() == ["{}", '{"text": "hello!"}'], done.stderr


def test_a_gguf_file(tmp_path: Path, source: Path) -> None:
    file = write_model(tmp_path / "m.gguf", "qwen2", "Q8_0")
    for words in (("complete", f"{source}:2:1", "--local"), ("doctor",)):
        done = fork(*words, "--target", str(file), before=WITHOUT)
        assert done.returncode == 0, done.stderr + done.stdout
