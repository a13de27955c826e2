"""The model card: what was trained, on what, how well it predicts, what it is not for. Formats text only."""

from __future__ import annotations

from collections import Counter
from typing import Any

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
{lessons}| positions | up to {max_positions} are accepted; none beyond {long_length} were seen in training |
| held-out | {bits} bits per byte on unseen standard-library code (asyncio, email, xml, unittest) |
| recipe | {dtype} arithmetic; Muon ({matrix_rate}) for hidden matrices, AdamW ({other_rate}) for the rest; \
warm-up, then linear decay; {tokens_per_step} tokens a step; seed {seed} |

**Data.** {size:.0f} MB of source in {packages} packages whose licence metadata is plainly permissive
({licences}); by language: {languages}.
Generated files, near-copies, tests and the held-out parts were removed, and files whose heads name a
copyleft licence. Packages with other or unclear licences were refused. Names, versions, licences, sizes and
hashes stand in the corpus manifest.

**Prompts.** Half of the samples are plain text, a quarter each prefix-suffix-middle and suffix-prefix-middle:
`<|fim_prefix|>` prefix `<|fim_suffix|>` suffix `<|fim_middle|>` middle `<|endoftext|>`, and
`<|fim_prefix|><|fim_suffix|>` suffix `<|fim_middle|>` prefix middle `<|endoftext|>`;
in front optionally `<|file_sep|>` path and a line break, and before that another file of the project in the same way.

**Not good for**: correct programs, languages that it saw little or nothing of, prose, facts, long contexts, anything
where a wrong answer costs something. It may repeat itself, and may reproduce common snippets of its data. What it can
do on code it never saw is in `docs/starter.json` (`codespec train eval`).
"""

_ROLES = {
    "target": "The target: it decides every token.",
    "drafter": "The drafter: it guesses ahead for the target, as text, with another tokenizer.",
}
_LESSONS = "| distilled | towards the end, half of the samples were {lessons:,} texts that its target wrote |\n"
_TOKENIZERS = {
    "target": "byte-level BPE; a line break and its indent are one token",
    "drafter": "BPE with dummy prefix and byte fallback",
}


def model_card(facts: dict[str, Any], manifest: dict[str, Any]) -> str:
    """The card's Markdown. `facts` are the run's figures; `manifest` is the corpus manifest."""
    used = [package for package in manifest["packages"] if package["files"]]
    licences = Counter(package["licence"] for package in used)
    lessons = _LESSONS.format(lessons=facts["lessons"]) if facts["lessons"] else ""
    return _CARD.format(
        **facts | {"lessons": lessons},
        role=_ROLES.get(facts["name"], ""),
        tokenizer=_TOKENIZERS.get(facts["name"], "BPE"),
        size=manifest["bytes"] / 1e6,
        packages=len(used),
        licences=", ".join(f"{name}: {count}" for name, count in licences.most_common(6)),
        languages=", ".join(
            f"{name} {size / 1e6:.1f} MB"
            for name, size in sorted(manifest["bytes_by_language"].items(), key=lambda item: -item[1])
        ),
    )
