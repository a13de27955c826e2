"""A tokenizer cut to what a corpus uses: the same tokens where they are kept, shorter ones elsewhere, any text; and a
model that begins with the layers of one with other tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from codespec_lab.training.export import VECTORS, load_weights, take_layers
from codespec_lab.training.llama import TinyLlama
from codespec_lab.training.pair import SHAPES
from codespec_lab.training.tokenizer_training import (
    SPECIALS,
    keep_most_used,
    load_tokenizer,
    train_target_tokenizer,
    without_dummy_prefix,
)
from tokenizers import Tokenizer, models

from codespec.api.config import SHIPPED
from codespec.errors import TrainingError

TEXTS = [f"def area_{n}(width, height):\n    return width * height + {n}\n" for n in range(40)] + ["rare: zygote\n"]
STRANGE = "ü\u0301 日本\x00\r\n\t" + "\U0001f600"


@pytest.fixture(scope="module")
def whole() -> Tokenizer:
    return train_target_tokenizer([*TEXTS, *["zygote zygotes zygotic"] * 60], 420)


def test_keeps_what_is_used_most(whole: Tokenizer) -> None:
    cut = keep_most_used(whole, TEXTS, 320)
    assert cut.get_vocab_size() == 320 and [cut.token_to_id(token) for token in SPECIALS] == list(range(len(SPECIALS)))
    used = Counter(token for text in TEXTS for token in whole.encode(text).tokens)
    kept = cut.get_vocab()
    assert all(token in kept for token, _ in used.most_common(20))
    assert cut.encode(TEXTS[0]).tokens == whole.encode(TEXTS[0]).tokens
    assert "zygot" not in kept, "it occurs once, the others forty times"


def test_spells_every_text(whole: Tokenizer) -> None:
    cut = keep_most_used(whole, TEXTS, 320)
    for text in (*TEXTS, "zygotic zygotes", STRANGE):
        assert cut.decode(cut.encode(text).ids, skip_special_tokens=False) == text


def test_holds_every_part_of_a_token(whole: Tokenizer) -> None:
    model = json.loads(keep_most_used(whole, TEXTS, 320).to_str())["model"]
    assert all(part in model["vocab"] for merge in model["merges"] for part in merge)
    assert {left + right for left, right in model["merges"]} <= model["vocab"].keys()


def test_the_same_each_time(whole: Tokenizer) -> None:
    assert keep_most_used(whole, TEXTS, 320).to_str() == keep_most_used(whole, list(reversed(TEXTS)), 320).to_str()


def test_too_few_tokens(whole: Tokenizer) -> None:
    with pytest.raises(TrainingError, match="fewer than the required 400"):
        keep_most_used(whole, TEXTS[:2], 400)


def test_no_bpe() -> None:
    with pytest.raises(TrainingError, match="Only a byte-level BPE"):
        keep_most_used(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), TEXTS, 10)


def test_a_model_takes_the_layers_of_one_with_other_tokens(whole: Tokenizer) -> None:
    cut = keep_most_used(whole, TEXTS, 320)
    folder = SHIPPED / "drafter"
    shape = replace(SHAPES["drafter"], vocab_size=320)
    model, donor = TinyLlama(shape), TinyLlama(SHAPES["drafter"])
    load_weights(donor, folder)
    take_layers(model, cut, folder)
    taken, given = model.state_dict(), donor.state_dict()
    assert all(torch.equal(taken[name], given[name]) for name in given if name != VECTORS)
    spelling, vectors = load_tokenizer(folder), given[VECTORS]
    for token in cut.encode(TEXTS[0]).ids:
        ids = without_dummy_prefix(spelling).encode(cut.decode([token])).ids
        assert torch.allclose(taken[VECTORS][token], vectors[ids].mean(dim=0))
    end, theirs = cut.token_to_id("<|endoftext|>"), spelling.token_to_id("<|endoftext|>")
    assert torch.equal(taken[VECTORS][end], vectors[theirs])
    with pytest.raises(TrainingError, match="another shape"):
        take_layers(TinyLlama(replace(shape, hidden_size=64)), cut, folder)
