"""Check that a tokenizer's regular expressions terminate, by splitting short texts in a process that can be killed.

The library's expressions backtrack while holding the interpreter's lock and ignore signals, so one that never ends
would hang the whole process. `python -m codespec.text.trial` reads a pre-tokenizer from stdin and exits with 0
after splitting all texts.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from codespec.errors import TokenizerError
from codespec.files import parse_json

SECONDS = 10.0  # real ones take some hundredths of a second, plus the process start
SHORT, LONG = 40, 4096  # run lengths: exponential time shows in short runs, cubic time in long ones
MAX_CHARACTERS = 32  # characters named by the expressions, which are tried too
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_LETTERS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Expressions of the starter pair, Qwen 2 and Llama 3, on which most models are based, also as GGUF readers spell them.
# They need no trial.
KNOWN = frozenset(
    {
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+[ \t]*|[ \t]+(?!\S)|[ \t]+|\s+",
        *(words + number + _MARKS for words in (_WORDS, _LETTERS) for number in (r"|\p{N}", r"|\p{N}{1,3}")),
    }
)
END = "\u2028!"  # matches no run, so the expression has to backtrack
_USUAL = "aA0 \n\t._-(\"'=/é中\u0301\U0001f600"


def try_out(pre_tokenizer: Any) -> None:
    """Raise TokenizerError if a pre-tokenizer fails on short texts or does not split them in time."""
    if KNOWN.issuperset(_expressions(pre_tokenizer)):
        return
    command = [sys.executable, "-P", "-m", "codespec.text.trial"]
    try:
        done = subprocess.run(
            command, input=json.dumps(pre_tokenizer).encode(), capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TokenizerError(
            f"the tokenizer's regular expression does not end within {SECONDS:.0f} s on a short text",
            "use the files of another model",
        ) from error
    if done.returncode:
        raise TokenizerError(
            "the tokenizer's regular expression fails on a short text", "use the files of another model"
        )


def texts(pre_tokenizer: Any) -> Iterator[str]:
    """Yield runs of one and of two characters, from the usual ones and those that the expressions name."""
    named = "".join(dict.fromkeys(character for expression in _expressions(pre_tokenizer) for character in expression))
    characters = [*dict.fromkeys(_USUAL + named[:MAX_CHARACTERS])]
    end = END + named[:MAX_CHARACTERS]  # a match is not attempted if a required character is missing
    for place, character in enumerate(characters):
        for other in ("", characters[place - 1], "a"):
            yield (character + other) * SHORT + end
        yield character * LONG + end


def _expressions(part: Any) -> Iterator[str]:
    """Yield the regular expressions of a pre-tokenizer."""
    if isinstance(part, Mapping):
        pattern = part.get("pattern")
        if isinstance(pattern, Mapping) and isinstance(pattern.get("Regex"), str):
            yield pattern["Regex"]
        for inner in part.values():
            yield from _expressions(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _expressions(inner)


def main() -> None:
    """Split all texts with the pre-tokenizer read from stdin."""
    if hasattr(signal, "alarm"):
        signal.alarm(2 * int(SECONDS))  # in case the parent process is gone
    from tokenizers import Tokenizer

    pre_tokenizer = parse_json(sys.stdin.buffer.read())
    model = {"type": "BPE", "vocab": {}, "merges": []}
    tokenizer: Any = Tokenizer.from_str(json.dumps({"version": "1.0", "model": model, "pre_tokenizer": pre_tokenizer}))
    for text in texts(pre_tokenizer):
        tokenizer.pre_tokenizer.pre_tokenize_str(text)


if __name__ == "__main__":
    main()
