"""Model folders for the pair check: a toy tokenizer, a config.json and a few small tensors that are never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from codespec.pair import ModelFacts, Sample, read_facts
from codespec.store.resolve import resolve
from tests.toy_tokenizers import held_out_texts, toy_backend

TEXT = held_out_texts()[1][:24_000]


def write_model(folder: Path, kind: str, *, width: int = 8, **config: Any) -> Path:
    """Write a folder with the toy tokenizer of a kind and 3 × width × width parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = toy_backend(kind)
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "max_position_embeddings": 2048,
        "vocab_size": backend.get_vocab_size(with_added_tokens=True),
        **config,
    }
    (folder / "config.json").write_text(json.dumps(values))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    backend.save(str(folder / "tokenizer.json"))
    tensors = {f"layer.{n}.weight": np.zeros((width, width), np.float32) for n in range(3)}
    save_file(tensors, folder / "model.safetensors")
    return folder


def toy_facts(folder: Path, kind: str, **settings: Any) -> ModelFacts:
    """Return the facts of such a folder."""
    return read_facts(resolve(str(write_model(folder / kind, kind, **settings))))


def toy_sample(text: str = TEXT) -> Sample:
    """Return a sample of one held-out file."""
    return Sample("named files", (("configparser.py", text),))
