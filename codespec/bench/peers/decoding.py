"""codespec's engine on some prompts, and which of its steps count: full ones that read no prompt.

Knows engines, steps and seconds; knows no model.
"""

from __future__ import annotations

import time

from codespec.bench.peers.contest import Answer
from codespec.bench.peers.watch import Watch
from codespec.engine.engine import Engine
from codespec.sequence import Sequence


def decode(engine: Engine, watch: Watch, sequences: list[Sequence], count: int) -> Answer:
    """Runs an engine dry, and tells decoding from the rest: steps in which `count` texts write and no prompt is read. A
    batch that empties towards the end says nothing of one that is kept full, and its last text's luck says all.
    """
    whole, counted, tokens, steps = 0.0, 0.0, 0, []
    split = dict.fromkeys(_seconds(engine), 0.0)
    while not all(sequence.finish_reason for sequence in sequences):
        unread, written, before = _unread(sequences), _written(sequences), _seconds(engine)
        began = time.perf_counter()
        engine.step()
        taken = time.perf_counter() - began
        whole += taken
        if len(watch.steps[-1].rounds) == count and _unread(sequences) == unread:
            counted += taken
            tokens += _written(sequences) - written
            steps.append(watch.steps[-1])
            split = {name: split[name] + after - before[name] for name, after in _seconds(engine).items()}
    split["rest"] = counted - sum(split.values())
    rounds = [played for step in steps for played in step.rounds]
    return Answer(
        [tuple(sequence.ids[len(sequence.prompt_ids) :]) for sequence in sequences],
        whole,
        whole - counted,
        _written(sequences) - tokens,
        len(rounds),
        sum(played.drafted for played in rounds),
        sum(played.accepted for played in rounds),
        split,
        steps,
    )


def _unread(sequences: list[Sequence]) -> int:
    """How many have no token yet."""
    return sum(not sequence.num_generated for sequence in sequences)


def _written(sequences: list[Sequence]) -> int:
    """Tokens of all."""
    return sum(sequence.num_generated for sequence in sequences)


def _seconds(engine: Engine) -> dict[str, float]:
    spent = engine.metrics
    return {"draft": spent.draft_s, "retokenize": spent.retokenize_s, "verify": spent.verify_s}
