"""Merge a peft adapter into a model with `python -m codespec.backends.torch.merge_adapter BASE ADAPTER FOLDER SHA256`.

The result is a folder in the Hugging Face layout. `store.conversions` runs this module as a separate process, so that
any failure caused by a broken adapter ends in exit code 2 and one sentence on stderr.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from codespec.backends.gguf.convert import convert_to_exit_code, write_json
from codespec.backends.torch.model_check import FAILURES, one_line, read_config
from codespec.errors import ModelError
from codespec.files import read_json
from codespec.store.conversions import FORMAT, SOURCE, adapted_layers, base_of
from codespec.store.disk import check_disk
from codespec.store.model_folder import weight_files

TOKENIZER = (
    *("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json"),
    *("tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"),
)
PROBE = 16  # tokens
TOLERANCE = 1e-3  # relative to the largest logit: merging rounds differently


def merge(base: Path, adapter: Path, folder: Path, sha256: str) -> None:
    """Write the merged model in float32 into an existing `folder`. Raise ModelError if the adapter can't be merged."""
    check_disk(folder, sum(file.stat().st_size for file in base.glob("*.safetensors")) * 2, "The merged model")
    loader, config = AutoModelForCausalLM, read_config(base)
    given: Any = {"config": config, "dtype": torch.float32, "trust_remote_code": False, "use_safetensors": True}
    try:
        network = loader.from_pretrained(base, **given)
        peft: Any = PeftModel.from_pretrained(network, str(adapter), config=_settings(adapter))
        wanted = _logits(peft)
        tied = _untie(network)
        merged = peft.merge_and_unload(safe_merge=True)
        if tied:
            _tie_if_equal(merged)
        if not torch.allclose(_logits(merged), wanted, rtol=0, atol=TOLERANCE * float(wanted.abs().max())):
            what = f"The adapter {adapter} can't be merged without changing its effect"
            raise ModelError(what, "use another adapter")
    except (*FAILURES, SafetensorError) as error:
        raise ModelError(
            f"The adapter {adapter} does not fit its model ({one_line(error)})", "train or download the adapter again"
        ) from error
    source = read_json(base / "config.json").get(SOURCE)
    merged.save_pretrained(folder)
    for name in (*TOKENIZER, "generation_config.json"):
        found = next((place / name for place in (adapter, base) if (place / name).is_file()), None)
        if found is not None:
            shutil.copyfile(found, folder / name)
    config = read_json(folder / "config.json")
    made = {**base_of(base, weight_files(base)), "format": FORMAT, "sha256": sha256, "adapter": adapter.name}
    config[SOURCE] = {**(source or {}), **made}
    write_json(folder / "config.json", config)


def _logits(network: Any) -> torch.Tensor:
    """Return the logits of a few tokens, [1, PROBE, vocabulary], in float32."""
    ids = torch.arange(PROBE)[None] * 7919 % network.get_input_embeddings().weight.shape[0]
    with torch.no_grad():
        logits: torch.Tensor = network.eval()(input_ids=ids).logits
    return logits.float()


def _untie(network: Any) -> bool:
    """Untie the output layer from the embeddings if either layer is adapted; return whether the layers were untied.

    Merging changes a weight in place, so an adapter of one tied layer would also change the other tied layer.
    """
    outer = network.get_output_embeddings(), network.get_input_embeddings()
    head, embeddings = map(_own_layer, outer)
    if head.weight is not embeddings.weight or outer == (head, embeddings):
        return False
    head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    return True


def _own_layer(layer: Any) -> Any:
    """Return the model's original layer inside peft's wrappers."""
    while isinstance(layer, BaseTunerLayer | ModulesToSaveWrapper):
        layer = layer.original_module if isinstance(layer, ModulesToSaveWrapper) else layer.get_base_layer()
    return layer


def _tie_if_equal(merged: Any) -> None:
    """Tie the output layer to the embeddings again, unless the adapter has changed only one of the two."""
    equal = torch.equal(merged.get_output_embeddings().weight, merged.get_input_embeddings().weight)
    merged.config.tie_word_embeddings = equal
    if equal:
        merged.tie_weights()


def _settings(adapter: Path) -> LoraConfig:
    """Return the adapter's settings, with layer names instead of patterns that select layers."""
    settings: LoraConfig = LoraConfig.from_pretrained(str(adapter))
    settings.target_modules = adapted_layers(adapter)
    settings.exclude_modules = settings.layers_to_transform = settings.layers_pattern = None
    return settings


def main(arguments: Sequence[str]) -> int:
    """Run `merge` with BASE, ADAPTER, FOLDER and SHA256. Return 0, or 2 after printing one sentence to stderr."""
    return convert_to_exit_code(merge, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
