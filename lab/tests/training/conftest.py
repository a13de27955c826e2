"""A tiny corpus from the standard library's held-out parts, and both kinds of tokenizer trained on it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.standard_library import held_out_files
from codespec_lab.training.llama import LlamaShape
from codespec_lab.training.pretrain import Recipe
from codespec_lab.training.run import Budget
from codespec_lab.training.tokenizer_training import train_drafter_tokenizer, train_target_tokenizer
from tokenizers import Tokenizer

VOCABULARY = 512


@pytest.fixture(autouse=True)
def one_thread() -> object:
    """Tiny products are slower on two threads than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    """A dozen real files."""
    files = held_out_files()[:12]
    return [Document("stdlib", inside, "python", path.read_text(encoding="utf-8")) for inside, path in files]


@pytest.fixture(scope="session")
def long_text(documents: Sequence[Document]) -> str:
    """The first 4,000 characters of the longest file."""
    text = max((document.text for document in documents), key=len)[:4000]
    assert len(text) == 4000
    return text


@pytest.fixture(scope="session")
def tokenizers(documents: Sequence[Document]) -> dict[str, Tokenizer]:
    """A small tokenizer of each kind."""
    texts = [document.text for document in documents]
    return {
        "target": train_target_tokenizer(texts, VOCABULARY),
        "drafter": train_drafter_tokenizer(texts, VOCABULARY),
    }


@pytest.fixture(params=["target", "drafter"])
def tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    """Each kind in turn."""
    found: Tokenizer = tokenizers[request.param]
    return found


@pytest.fixture
def shape() -> LlamaShape:
    """Two layers, 64 wide."""
    return LlamaShape(VOCABULARY, hidden_size=64, layers=2, query_heads=2, kv_heads=1, mlp_size=96)


@pytest.fixture
def recipe(shape: LlamaShape) -> Recipe:
    """Eight steps of 256 tokens, the last of them in longer rows."""
    return Recipe(
        "tiny", shape, Budget(steps=8), tokens_per_step=256, length=64, long_length=128, warmup_steps=3,
        checkpoint_seconds=0.0,
    )  # fmt: skip
