"""A tiny random model with a chat template, and one that cannot fill in. Knows how they are made; checks nothing."""

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
    """The qwen-like toy tokenizer with tokens for turns."""
    backend = Tokenizer.from_str(toy_backend("qwen").to_str())
    backend.add_special_tokens(list(TURNS))
    return backend


@cache
def chat_tokenizer() -> TextTokenizer:
    """Ends generation at the end of a turn."""
    backend = chat_backend()
    return TextTokenizer.from_backend(backend, eos_ids=frozenset({backend.token_to_id("<|im_end|>")}), config=CONFIG)


@cache
def without_fim() -> TextTokenizer:
    """The gpt2-like toy tokenizer, its fill-in markers spelled as no family does."""
    text = toy_backend("gpt2").to_str()
    for name in MARKERS[1:4]:
        text = text.replace(json.dumps(name), json.dumps(name.replace("fim", "gap")))
    return TextTokenizer.from_backend(Tokenizer.from_str(text))


def engine_of(tokenizer: TextTokenizer, **settings: Any) -> Any:
    """A plain engine of a tiny llama with this tokenizer."""
    return build(wrapped(network_for("llama", tokenizer, seed=4), tokenizer, "llama"), max_batch=4, **settings)
