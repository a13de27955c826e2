"""The model card of a trained head."""

from __future__ import annotations

from codespec_lab.training.heads.run import HeadRun

_CARD = """---
language: code
library_name: safetensors
base_model: {target}
tags: [code, speculative-decoding, {kind}, codespec]
---
# {title} head for {target}

Guesses the next tokens of {target} from its hidden states; {target} checks every guess, so no text depends on this
head. Made by `codespec train head`. It works with the target whose fingerprint is in config.json and with no other.

| | |
|---|---|
| shape | {layers} layer(s), width {width}, {heads} query and {kv_heads} KV heads of {head_size}, MLP {mlp} |
| reads | the outputs of the target's layers {read} (from 0) |
| vocabulary | the {vocabulary:,} tokens that the target writes most often; token vectors and output rows are its own |
| parameters | {parameters:.1f} M, bfloat16 |
| trained on | {texts:,} texts, {tokens:.2f} M tokens in {steps:,} steps, {minutes:.0f} minutes |
| recipe | {recipe}; Muon ({matrix_rate}) for matrices, AdamW ({other_rate}) for the rest; {dtype}; seed {seed} |
| held-out | {scores} |

**Data.** Prompts are places in permissively licensed source; what was learned is what the target writes and thinks
likely there.
"""


def head_card(run: HeadRun, target: str, texts: int) -> str:
    """Return the card as Markdown; `texts` is the number of training texts."""
    config, recipe, state = run.config, run.recipe, run.state
    eagle = config.kind == "eagle3"
    how = f"unrolled over {recipe.unroll} draft steps" if eagle else f"blocks of {config.block}"
    scores = "unmeasured"
    if state.history:
        last = state.history[-1]
        scores = f"{last['right_a_draft']:.2f} tokens right a draft of {recipe.unroll if eagle else config.block - 1}"
    return _CARD.format(
        target=target,
        kind=config.kind,
        title="EAGLE-3" if eagle else "DFlash",
        layers=config.draft_layers,
        width=config.hidden_size,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_size=config.head_size,
        mlp=config.mlp_size,
        read=", ".join(map(str, config.layers)),
        vocabulary=config.draft_vocab,
        parameters=sum(p.numel() for p in run.head.parameters()) / 1e6,
        texts=texts,
        tokens=state.tokens / 1e6,
        steps=state.step,
        minutes=state.seconds / 60,
        recipe=how,
        matrix_rate=recipe.matrix_rate,
        other_rate=recipe.other_rate,
        dtype=recipe.dtype,
        seed=recipe.seed,
        scores=scores,
    )
