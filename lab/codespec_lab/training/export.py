"""Write a trained model as a Hugging Face folder with its card, and load weights back.

A model can also begin from the layers of a model with another tokenizer. A token's vector is then the mean of the other
model's vectors of the tokens that spell it: the trained layers are kept, and only the token vectors are learned anew.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig

from codespec.errors import TrainingError
from codespec_lab.corpus.documents import write_atomically
from codespec_lab.training.llama import TinyLlama
from codespec_lab.training.tokenizer_training import (
    END,
    FIM_PAD,
    SPECIALS,
    load_tokenizer,
    save_tokenizer,
    without_dummy_prefix,
)

_CARD = """---
language: code
library_name: transformers
tags: [code, fill-in-the-middle, codespec]
---
# codespec starter pair: {name}

{role} A Llama-family model of {parameters:.2f} M parameters, trained {begun} by `codespec train`
({device}). It exists so that codespec works in its first minute; it is **not** a good programmer.

| | |
|---|---|
| shape | {layers} layers, width {hidden_size}, {query_heads} query and {kv_heads} KV heads of {head_size}, \
MLP {mlp_size}, tied embeddings |
| vocabulary | {vocab_size} ({tokenizer}) |
| trained on | {tokens:.1f} M tokens in {minutes:.0f} minutes of working time; rows of {length} tokens, \
the last {long_share:.0%} of the time {long_length} |
{distilled_line}| positions | up to {max_positions} are accepted; none beyond {long_length} were seen in training |
| held-out | {bits} bits per byte on unseen standard-library code (asyncio, email, xml, unittest) |
| recipe | {dtype} arithmetic; Muon ({matrix_rate}) for hidden matrices, AdamW ({other_rate}) for the rest; \
warm-up, then linear decay; {tokens_per_step} tokens a step; seed {seed} |

**Data.** {size:.0f} MB of source in {packages} packages whose licence metadata is plainly permissive
({licences}); by language: {languages}.
Generated files, near-copies, tests and the held-out parts were removed, and files that name a copyleft licence at
their top. Packages with other or unclear licences were refused. Names, versions, licences, sizes and hashes are in the
corpus manifest.

**Prompts.** Half of the samples are plain text, a quarter each prefix-suffix-middle and suffix-prefix-middle:
`<|fim_prefix|>` prefix `<|fim_suffix|>` suffix `<|fim_middle|>` middle `<|endoftext|>`, and
`<|fim_prefix|><|fim_suffix|>` suffix `<|fim_middle|>` prefix middle `<|endoftext|>`;
before them optionally `<|file_sep|>`, the path and a line break, and before that another file of the project in the
same way.

**Not good for**: correct programs, languages that it saw little or nothing of, prose, facts, long contexts, anything
where a wrong answer costs something. It may repeat itself, and may reproduce common snippets of its data. What it can
do on code it never saw is in `docs/starter.json` (`codespec train eval`).
"""

_ROLES = {
    "target": "The target: it decides every token.",
    "drafter": "The drafter: it guesses ahead for the target, as text, with another tokenizer.",
    "qwen-drafter": "A drafter for Qwen2.5-Coder: its tokens are those of Qwen's that code "
    "uses most, so it needs one step where a drafter with short tokens needs two or three.",
}
_DISTILLED = "| distilled | towards the end, half of the samples were {distilled:,} texts that its target wrote |\n"
_TOKENIZERS = {
    "target": "byte-level BPE; a line break and its indent are one token",
    "drafter": "BPE with dummy prefix and byte fallback",
    "qwen-drafter": "Qwen2.5's byte-level BPE, cut to what the data uses most; Apache-2.0",
}
VECTORS = "model.embed_tokens.weight"


def model_card(facts: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Return the card as Markdown from the run's `facts` and the corpus `manifest`."""
    return _CARD.format(
        **facts,
        **data_facts(manifest),
        distilled_line=_DISTILLED.format(**facts) if facts["distilled"] else "",
        role=_ROLES.get(facts["name"], ""),
        tokenizer=_TOKENIZERS.get(facts["name"], "BPE"),
    )


def data_facts(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the card's facts about the data: megabytes, packages, their licences, and megabytes by language."""
    used = [package for package in manifest["packages"] if package["files"]]
    licences = Counter(package["licence"] for package in used).most_common(6)
    languages = sorted(manifest["bytes_by_language"].items(), key=lambda item: -item[1])
    return {
        "size": manifest["bytes"] / 1e6,
        "packages": len(used),
        "licences": ", ".join(f"{name}: {count}" for name, count in licences),
        "languages": ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in languages),
    }


def export_model(model: TinyLlama, tokenizer: Tokenizer, folder: Path, card: str) -> None:
    """Write config, tokenizer, bfloat16 weights and card into `folder`. Raise TrainingError if the disk is full."""
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
    """Load the weights that `export_model` wrote. Raise TrainingError if they are missing or have another shape."""
    try:
        weights = load_file(folder / "model.safetensors")
        model.load_state_dict({name: value.float() for name, value in weights.items()})
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"{folder} has no weights that can be read ({error}): give another folder.") from error
    except RuntimeError as error:
        raise TrainingError(f"The weights of {folder} have another shape: give a folder of the same pair.") from error


@torch.no_grad()
def take_layers(model: TinyLlama, tokenizer: Tokenizer, folder: Path) -> None:
    """Fill `model`, which uses `tokenizer`, from the donor in `folder`. Raise TrainingError if layer sizes differ."""
    spelling = load_tokenizer(folder)
    donor = TinyLlama(replace(model.shape, vocab_size=spelling.get_vocab_size()))
    load_weights(donor, folder)
    weights = donor.state_dict()
    vectors = weights[VECTORS]
    inside = without_dummy_prefix(spelling)
    rows = [_ids(token, tokenizer, inside) for token in range(model.shape.vocab_size)]
    weights[VECTORS] = torch.stack([vectors[ids].mean(dim=0) for ids in rows])
    model.load_state_dict(weights)


def _ids(token: int, tokenizer: Tokenizer, spelling: Tokenizer) -> list[int]:
    """Return the donor's tokens that spell a token within a line, or all of its tokens if none do."""
    name = tokenizer.id_to_token(token)
    special = spelling.token_to_id(name) if name in SPECIALS else None
    if special is not None:
        return [special]
    ids: list[int] = spelling.encode(tokenizer.decode([token]), add_special_tokens=False).ids
    return ids or list(range(spelling.get_vocab_size()))
