"""An adapter's card: what it was taught, on what, how well it fills in, under whose licence. Formats text only."""

from __future__ import annotations

from collections import Counter
from typing import Any

from codespec.catalogue.entries import find_entry
from codespec.training.adapt import AdaptPosition

_CARD = """---
language: code
library_name: peft
license: {licence}
base_model: {model}
tags: [code, fill-in-the-middle, codespec]
---
# {model} fills in the middle

A LoRA adapter (Hu et al. 2021, peft's layout) that teaches {model}{source}, a causal model without such tokens, to
write the text between a prefix and a suffix. Made by `codespec train adapt`; an adapted work of the model, under the
model's own licence ({licence}).

| | |
|---|---|
| adapter | rank {rank} on all linear layers and four token vectors, {parameters:.1f} M parameters, bfloat16 |
| taught on | {tokens:.2f} M tokens in {steps} steps, {minutes:.0f} minutes of working time{started} |
| recipe | {rows} rows of {length} tokens a step; AdamW, learning rate {rate} falling to nothing; {dtype}; seed {seed} |
| held-out | {scores} |

**Prompts.** Suffix-prefix-middle (four fifths of the samples) and prefix-suffix-middle:
`{prefix}{suffix}` suffix `{middle}` prefix middle `{end}`, and `{prefix}` prefix `{suffix}` suffix `{middle}` middle
`{end}`. Cursor places: the rest of a line, a whole line, two to five lines. A twelfth of the samples is plain text. The
loss counts middles, their ends by half, and a prefix that stands behind its suffix by a quarter.

**Data.** {size:.0f} MB of source in {packages} packages whose licence metadata is plainly permissive ({licences}); by
language: {languages}. Generated files, near-copies, tests and the held-out projects were removed.

**Not good for** what its model is not good for: correct programs, facts, long files, anything where a wrong answer
costs something.
"""


def adapter_card(facts: dict[str, Any], at: AdaptPosition, manifest: dict[str, Any]) -> str:
    """The card's Markdown. `facts` are the run's settings; `manifest` is the corpus manifest."""
    used = [package for package in manifest["packages"] if package["files"]]
    licences = Counter(package["licence"] for package in used)
    prefix, suffix, middle, end = facts["sentinels"]
    last, entry = at.history[-1] if at.history else None, find_entry(facts["model"])
    return _CARD.format(
        **facts,
        licence=entry.licence.lower() if entry else "that of its model",
        tokens=at.tokens / 1e6,
        steps=at.step,
        minutes=at.seconds / 60,
        scores=f"{last['middle']:.3f} nats a token of a middle, {last['end']:.3f} for its end"
        if last
        else "unmeasured",
        prefix=prefix,
        suffix=suffix,
        middle=middle,
        end=end,
        size=manifest["bytes"] / 1e6,
        packages=len(used),
        licences=", ".join(f"{name}: {count}" for name, count in licences.most_common(6)),
        languages=", ".join(
            f"{name} {size / 1e6:.1f} MB"
            for name, size in sorted(manifest["bytes_by_language"].items(), key=lambda item: -item[1])
        ),
    )
