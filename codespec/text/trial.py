"""Whether a tokenizer's own regular expressions end in time: tried on short texts by a process that can be ended.

Knows pre-tokenizers and which texts expressions stumble over; knows no vocabulary. The library's expressions backtrack,
with the interpreter's lock and beyond any signal, so one that never ends would take the whole process with it:
`python -m codespec.text.trial` reads a pre-tokenizer from its input and ends with 0 once it has split all texts.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from codespec.bounded_json import parse_json
from codespec.errors import TokenizerError

SECONDS = 10.0  # real ones take some hundredths beside the start of the process
SHORT, LONG = 40, 4096  # characters of one kind in a row: exponential time shows in few of them, cubic time in many
MOST_CHARACTERS = 32  # of the expressions themselves, which are tried too
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_LETTERS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Those of the starter pair, Qwen 2 and Llama 3, of which most models are made, also as GGUF files' readers spell them:
# they need no trial.
KNOWN = frozenset(
    {
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+[ \t]*|[ \t]+(?!\S)|[ \t]+|\s+",
        *(words + number + _MARKS for words in (_WORDS, _LETTERS) for number in (r"|\p{N}", r"|\p{N}{1,3}")),
    }
)
END = "\u2028!"  # what fits no run, so that an expression has to go back
_USUAL = "aA0 \n\t._-(\"'=/é中\u0301\U0001f600"


def try_out(pre_tokenizer: Any) -> None:
    """Raises TokenizerError for a pre-tokenizer that does not split short texts in time, or fails on one."""
    if KNOWN.issuperset(_expressions(pre_tokenizer)):
        return
    command = [sys.executable, "-P", "-m", "codespec.text.trial"]
    try:
        done = subprocess.run(
            command, input=json.dumps(pre_tokenizer).encode(), capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TokenizerError(
            f"the tokenizer's regular expression does not end within {SECONDS:.0f} s on a short text: "
            "use the files of another model"
        ) from error
    if done.returncode:
        raise TokenizerError("the tokenizer's regular expression fails on a short text: use the files of another model")


def texts(pre_tokenizer: Any) -> Iterator[str]:
    """Runs of one and of two characters, of the usual ones and of those that the expressions name."""
    named = "".join(dict.fromkeys(character for one in _expressions(pre_tokenizer) for character in one))
    characters = [*dict.fromkeys(_USUAL + named[:MOST_CHARACTERS])]
    end = END + named[:MOST_CHARACTERS]  # an expression is not tried where a character that it demands is missing
    for place, character in enumerate(characters):
        for other in ("", characters[place - 1], "a"):
            yield (character + other) * SHORT + end
        yield character * LONG + end


def _expressions(part: Any) -> Iterator[str]:
    """The regular expressions in a pre-tokenizer."""
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
    """Splits all texts by the pre-tokenizer on the input."""
    if hasattr(signal, "alarm"):
        signal.alarm(2 * int(SECONDS))  # should whoever waits for it be gone
    from tokenizers import Tokenizer

    pre_tokenizer = parse_json(sys.stdin.buffer.read())
    model = {"type": "BPE", "vocab": {}, "merges": []}
    tokenizer: Any = Tokenizer.from_str(json.dumps({"version": "1.0", "model": model, "pre_tokenizer": pre_tokenizer}))
    for text in texts(pre_tokenizer):
        tokenizer.pre_tokenizer.pre_tokenize_str(text)


if __name__ == "__main__":
    main()
