"""Token ids of `llama.cpp`'s own tokenizer for many texts, as digests that need no `llama.cpp` to compare.

`python -m tests.backends.gguf.llama_cpp_ids [REAL.gguf]`, in a Python with `xllamacpp` and `gguf`, writes
tests/text/llama_cpp_ids.json. For each tokenizer family it writes a small model as a GGUF file, serves it, and
tokenizes every text of `texts()` without special tokens. Four characters of a digest stand for a text's ids. The
vocabulary is learned without any pre-tokenization, so that its merges cross every boundary a tokenizer may draw, and a
misplaced boundary changes the ids.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

FIXTURE = Path(__file__).parents[2] / "text" / "llama_cpp_ids.json"
DIGITS = 4  # of a digest
# One name per family; SentencePiece with and without the space before a text, and with Gemma's own tokens, which the
# converter declares user-defined (all of one score) if tokenizer_config.json lists them, else normal (all of another).
BYTE_LEVEL = ("gpt-2", "smollm", "qwen2", "llama-bpe", "dbrx", "seed-coder", "tekken", "deepseek-coder", "default")
BYTE_LEVEL += ("gpt-4o", "qwen35", "minicpm5")
PIECES = ("spm", "spm-bare", "spm-declared", "spm-listed")
MERGES, RUNS, STRINGS = 420, 12, 850
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|fim_prefix|>")
OWN = "@@own@@"  # a user-defined token, which is text
TAGS = ("<p>", "</p>", "</div>", "<h1>", "</h1>")
UNMADE = "\u0120main"  # a word that no merge produces

_CODE = (
    'def area(r: float = 1.50) -> float:\n    """The area, isn\'t it?"""\n    return 3.14159 * r ** 2  # π r²\n\n\n',
    "for (let i = 0; i < 100; ++i) {\n\tconsole.log(`row ${i}: ${rows[i]?.name ?? 'none'}`);\n}\n",
    "interface A<T extends object> { readonly id: number; get(key: keyof T): Promise<T | undefined>; }\r\n",
    '#include <stdio.h>\nint main(void) {\n\tprintf("%d\\n", 0xFF + 0b1010 + 1\'000);\n\treturn 0;\n}\n',
    'fn main() -> Result<(), Box<dyn Error>> {\n    let v: Vec<u64> = (0..10).collect();\n    println!("{v:?}");\n}\n',
    "func (s *Server) Run(ctx context.Context) error {\n\tif err := s.init(); err != nil {\n\t\treturn err\n\t}\n}\n",
    'public static void main(String[] args) { System.out.println(args.length == 0 ? "" : args[0]); }\r\n\r\n',
    "SELECT COUNT(*), name FROM \"users\" WHERE id >= 42 AND name LIKE '%son' GROUP BY name; -- it's done\n",
    '#!/bin/sh\nfor f in *.txt; do\n  [ -f "$f" ] && echo "${f%.txt}" | tr a-z A-Z >> /tmp/out.$$\ndone\n',
    "<div class=\"a b\"><!-- 1 &lt; 2 --><p>It's We'LL they'Re I'M</p></div>\n{\"k\": [1, 2.5e-10, null, true]}\n",
    "template<typename T> auto operator<=>(const T& a, const T& b) { return a < b ? -1 : a > b; } // C++20\n",
    'def self.call(env) = [200, {"Content-Type" => "text/plain"}, ["ok #{env[:x]&.y}"]]\n',
)
_WORDS = (
    "caf\u00e9 cafe\u0301 na\u00efve \u0130stanbul Stra\u00dfe \ufb01 \u00b2\u00bd \u2167 \u0664\u0662 \uff11\uff12",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f\U0001f600\U0001f600 \U0001d400",
    "\u65e5\u672c\u8a9e\u306e\u30b3\u30fc\u30c9\u3002\u4e2d\u6587\uff0c\u6ce8\u91ca\uff1a12\u3000\ud55c\uad6d\uc5b4",
    "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u05e2\u05d1\u05e8\u05d9\u05ea \u0627\u0644\u0639"
    " \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
    "a\u00a0b\u2009c\u202fd\u3000e\ufefff\u200bg\u0085h\u2028i\u1680j\x1ck\x0bl\x0cm\x7fn",
    "<|im_start|>user<|im_end|> <s> </s> <unk> <|fim_prefix|>x<|endoftext|> <0x41> [INST] \u2581\u2581a",
    "getHTTPResponseCodeForURLv2_andAlsoAVeryLongIdentifierThatNoVocabularyHolds1234567890abcdefABCDEF",
    "don't DON'T we'll WE'LL I'm I'd they've 'tis '\u017f it's's ''''s 're'Ve'LL",
    "=== != !== <=> -> => :: ... ?. ?? && || << >> **= //= /* */ <!-- --> #{ ${ }} {{ }} ))); \\n\\t",
    f"x{OWN}y {OWN} {OWN}{OWN}",
)
_ALPHABET = "abcdeXYZ  \t\n\r01289._-'\"(){}[]<>=+/$#@|\u00e9\u0301\u00df\u65e5\u3000\u00a0\U0001f600\u0664"


@cache
def texts() -> tuple[str, ...]:
    """Return the fixed list of texts: code, words, white space, single characters, random strings."""
    runs = [blank * count for blank in (" ", "\t", "\n", "\r\n", " \n", "\t ") for count in (1, 2, 3, 7, 33)]
    blanks = [start + run + end for run in runs for start, end in (("", ""), ("a", "b"), ("1", "2"), ("(", "."))]
    digits = ["7" * count for count in range(1, 9)] + ["0x1F600", "3.14159e-10", "1_000_000", "v2.0.1-rc3", "a1b22c333"]
    characters = [chr(code) for code in range(1, 128)] + [chr(code) for code in range(0x80, 0x180, 3)]
    dice = random.Random(19)
    strings = ["".join(dice.choices(_ALPHABET, k=dice.randint(1, 24))) for _ in range(STRINGS)]
    return (*_CODE, "".join(_CODE), *_WORDS, *blanks, *digits, *characters, *strings)


def digests(ids: Sequence[Sequence[int]]) -> str:
    """Return four characters per text's ids, concatenated."""
    raw = (hashlib.sha256(json.dumps(list(one)).encode()).digest()[:3] for one in ids)
    return "".join(base64.b64encode(data).decode() for data in raw)


def split_digests(joined: str) -> list[str]:
    """Split concatenated digests into one string per text."""
    return [joined[at : at + DIGITS] for at in range(0, len(joined), DIGITS)]


@cache
def _learned() -> tuple[tuple[bytes, bytes], ...]:
    """Learn merges by frequency over all non-random texts, without pre-tokenization."""
    symbols = [bytes([byte]) for byte in "\0".join(texts()[: -STRINGS + 200]).encode()]
    merges, named = [], {name.encode() for name in (*CONTROL, OWN)}
    for _ in range(MERGES):
        pairs = Counter(pairwise(symbols))
        allowed = (pair for pair in pairs if b"\0" not in pair and b"".join(pair) not in named)
        pair = max(allowed, key=lambda one: (pairs[one], one))
        merges.append(pair)
        symbols = _merge(symbols, pair)
    return tuple(merges)


def _merge(symbols: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    merged: list[bytes] = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged


def write_vocabulary(file: Path, family: str, *, whole: bool = False) -> None:
    """Write a GGUF file with the small vocabulary of one family, and with weights if `whole`."""
    writer = start(file)
    size = add_pieces(writer, family) if family in PIECES else add_byte_level(writer, family)
    if whole:
        add_weights(writer, size)
    finish(writer)


def start(file: Path, name: str = "llama") -> Any:
    """Return a writer with the sizes of a model that is never run."""
    writer = import_module("gguf").GGUFWriter(str(file), name)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    return writer


def finish(writer: Any) -> None:
    """Write everything the writer holds."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_byte_level(writer: Any, pre: str) -> int:
    """Add a byte-level vocabulary with the pre-tokenizer `pre`; return its size."""
    spelling = _byte_spelling()
    words = ["".join(spelling[byte] for byte in left + right) for left, right in _learned()]
    tokens = [*CONTROL, OWN, "[unused9]", *dict.fromkeys([*spelling.values(), *words, UNMADE])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL) + [4, 5] + [1] * (len(tokens) - len(CONTROL) - 2))
    halves = [["".join(spelling[byte] for byte in half) for half in pair] for pair in _learned()]
    writer.add_token_merges([" ".join(pair) for pair in halves])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    return len(tokens)


def add_pieces(writer: Any, family: str) -> int:
    """Add a SentencePiece vocabulary with decreasing scores, runs of spaces last; return its size."""
    gemma = _GEMMA.get(family)
    whole = [(left + right).replace(b" ", "\u2581".encode()) for left, right in _learned()]
    words = [word.decode() for word in whole if _is_text(word)]
    letters = sorted({letter for word in words for letter in word} | set(_ALPHABET.replace(" ", "")))
    runs = [letter * count for letter in ("\u2581\n" if gemma else "\u2581") for count in range(2, RUNS + 1)]
    words = [word for word in dict.fromkeys(words) if len(word) > 1 and word not in (*runs, *TAGS)]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    own = [] if family == "spm" else [OWN]
    letters = [letter for letter in letters if letter != "\u2581"]
    tags = TAGS if gemma else ()
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *own, *words, *tags, *runs, "\u2581", *letters]
    kinds = [2, 3, 3, *[6] * 256, *[4] * len(own), *[1] * (len(tokens) - 259 - len(own))]
    ranks = [float(-number) for number in range(len(tokens))]
    scores = [-1e9 if token in runs else rank for token, rank in zip(tokens, ranks, strict=True)]
    if gemma:
        for token in (*runs, *tags):
            place = tokens.index(token)
            kinds[place], scores[place] = gemma
            tokens[place] = token.replace("\u2581", " ") if gemma[0] == 4 else token
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_add_space_prefix(family == "spm")
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    return len(tokens)


_GEMMA = {"spm-declared": (4, -1000.0), "spm-listed": (1, 0.0)}  # type and score of Gemma's own tokens


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().isprintable() and not data.decode().isspace()
    except UnicodeDecodeError:
        return False


def _byte_spelling() -> dict[int, str]:
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = [byte for byte in range(256) if byte not in itself]
    return {byte: chr(byte) if byte in itself else chr(256 + moved.index(byte)) for byte in range(256)}


def _theirs(file: Path) -> list[list[int]]:
    cpp = import_module("xllamacpp")
    settings = cpp.CommonParams()
    settings.model.path, settings.n_ctx, settings.warmup, settings.port = str(file), 64, False, 0
    server = cpp.Server(settings)  # runs until it is deleted
    return [_tokenize(server.listening_address, text) for text in texts()]


def _tokenize(address: str, text: str) -> list[int]:
    body = json.dumps({"content": text, "add_special": False, "parse_special": False}).encode()
    with urlopen(Request(f"{address}/tokenize", body, {"Content-Type": "application/json"}), timeout=60) as answer:
        ids: list[int] = json.load(answer)["tokens"]
    return ids


def add_weights(writer: Any, size: int) -> None:
    """Add weights of zeros that fit `start` and a vocabulary of `size` tokens: llama.cpp serves whole models only."""
    layer = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (size, 8), "output": (size, 8), "output_norm": (8,)}
    shapes |= {"blk.0.attn_norm": (8,), "blk.0.ffn_norm": (8,)} | {f"blk.0.{name}": (8, 8) for name in layer}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))


def main(real: Sequence[str]) -> None:
    """Write the fixture, including the ids of any real model files given."""
    found: dict[str, Any] = {"made by": "python -m tests.backends.gguf.llama_cpp_ids REAL.gguf; see there"}
    found["xllamacpp"] = import_module("xllamacpp").__version__
    present = json.loads(FIXTURE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        for family in (*BYTE_LEVEL, *PIECES):
            file = Path(folder) / f"{family}.gguf"
            write_vocabulary(file, family, whole=True)
            found[family] = digests(_theirs(file))
    found |= {name: ids for name, ids in present.items() if name.endswith(".gguf")}  # those of earlier runs
    for name in real:
        found[Path(name).name] = digests(_theirs(Path(name)))
    FIXTURE.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
