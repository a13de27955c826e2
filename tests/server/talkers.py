"""A tiny random model with a chat template, and a tokenizer without fill-in-the-middle markers."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer

from codespec.text.tokenizer import TextTokenizer
from tests.pairs import build, network_for, wrapped
from tests.toy_tokenizers import MARKERS, toy_backend

TURNS = ("<|im_start|>", "<|im_end|>")
TEMPLATE = """
{%- if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
    {%- if message['role'] == 'system' and not loop.first %}
        {{- raise_exception('the system speaks first') }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
CONFIG = {"chat_template": TEMPLATE, "eos_token": {"content": "<|im_end|>"}, "add_bos_token": False}


@cache
def chat_backend() -> Tokenizer:
    """Return the qwen-like toy tokenizer with turn markers."""
    backend = Tokenizer.from_str(toy_backend("qwen").to_str())
    backend.add_special_tokens(list(TURNS))
    return backend


@cache
def chat_tokenizer() -> TextTokenizer:
    """Return a text tokenizer that ends generation at the end of a turn."""
    backend = chat_backend()
    return TextTokenizer.from_backend(backend, eos_ids=frozenset({backend.token_to_id("<|im_end|>")}), config=CONFIG)


@cache
def without_fim() -> TextTokenizer:
    """Return the gpt2-like toy tokenizer with FIM markers spelled as in no known family."""
    text = toy_backend("gpt2").to_str()
    for name in MARKERS[1:4]:
        text = text.replace(json.dumps(name), json.dumps(name.replace("fim", "gap")))
    return TextTokenizer.from_backend(Tokenizer.from_str(text))


def engine_of(tokenizer: TextTokenizer, **settings: Any) -> Any:
    """Return a plain engine of a tiny llama with this tokenizer."""
    return build(wrapped(network_for("llama", tokenizer, seed=4), tokenizer, "llama"), max_batch=4, **settings)
