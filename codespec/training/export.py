"""Writes a trained model as a Hugging Face folder, and reads one; knows files, not how it was trained."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig

from codespec.errors import TrainingError
from codespec.training.checkpoint import write_atomically
from codespec.training.llama import TinyLlama
from codespec.training.vocabularies import END, FIM_PAD, save_tokenizer


def export_model(model: TinyLlama, tokenizer: Tokenizer, folder: Path, card: str) -> None:
    """Write config, tokenizer, bfloat16 weights and model card into `folder`. TrainingError if it cannot."""
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(FIM_PAD)
    shape = model.shape
    config = LlamaConfig(
        **shape.to_config(),
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    weights = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in model.state_dict().items()
    }
    write_atomically(folder / "model.safetensors", save(weights, metadata={"format": "pt"}))
    config.save_pretrained(folder)
    GenerationConfig(eos_token_id=end, pad_token_id=pad).save_pretrained(folder)
    save_tokenizer(tokenizer, folder, shape.max_positions)
    write_atomically(folder / "README.md", card.encode())


def load_weights(model: TinyLlama, folder: Path) -> None:
    """Gives a model the weights that `export_model` wrote. TrainingError where there are none, or of another shape."""
    try:
        weights = load_file(folder / "model.safetensors")
        model.load_state_dict({name: value.float() for name, value in weights.items()})
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"{folder} has no weights that can be read ({error}): give another folder.") from error
    except RuntimeError as error:
        raise TrainingError(f"The weights of {folder} have another shape: give a folder of the same pair.") from error
