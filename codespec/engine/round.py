"""The stages of a round before and after the target's forward pass: drafts become candidates, and verdicts become text.

The end of a text is decided separately for each committed token and byte, so the text does not depend on the drafts.
"""

from __future__ import annotations

import collections.abc
import math
import time
from typing import TYPE_CHECKING

from codespec.api.types import Completion, DoneEvent, FinishReason, RoundEvent, TextEvent, TokenLogprob
from codespec.sequence import Candidates, Cap, Draft, Sequence, Verdict
from codespec.text.align import complete_utf8_length, retokenize_batch
from codespec.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from codespec.proposers.base import Proposer  # the module loads torch

UNKNOWN = -1  # stands for the id of a token that only another server knows
NO_DRAFT = Candidates()


def first_drafts(
    proposers: collections.abc.Sequence[Proposer],
    sequences: collections.abc.Sequence[Sequence],
    caps: collections.abc.Sequence[Cap],
) -> list[Draft]:
    """Ask the proposers in order and return the first draft for each sequence, or an empty draft if there is none."""
    drafts = [Draft()] * len(sequences)
    for proposer in proposers:
        own = [cap.of(proposer.name) for cap in caps]
        waiting = [i for i, draft in enumerate(drafts) if not draft.text and not draft.ids and own[i].tokens]
        if waiting:
            found = proposer.propose([sequences[i] for i in waiting], [own[i] for i in waiting])
            for i, draft in zip(waiting, found, strict=True):
                drafts[i] = draft
    return drafts


def to_candidates(
    tokenizer: TextTokenizer,
    sequences: collections.abc.Sequence[Sequence],
    drafts: collections.abc.Sequence[Draft],
    caps: collections.abc.Sequence[Cap],
) -> list[Candidates]:
    """Return the drafts in target tokens, cut to their caps and retokenized as one batch."""
    spelled = [i for i, draft in enumerate(drafts) if draft.text and draft.ids is None]
    pairs = [(sequences[i].window(), drafts[i].text) for i in spelled]
    encoded = dict(zip(spelled, retokenize_batch(tokenizer, pairs) if pairs else [], strict=True))
    result = []
    for i, (draft, cap) in enumerate(zip(drafts, caps, strict=True)):
        ids = tuple(draft.ids if draft.ids is not None else encoded.get(i, ()))
        most = cap.of(draft.source).tokens
        reason = "cap" if len(ids) > most else "draft ended"
        ids = ids[:most]
        sizes = [len(tokenizer.token_bytes[token]) for token in ids]
        confidences = draft.confidences[: len(ids)] if draft.ids is not None else shared_out(draft, sizes)
        units, probabilities = len(draft.ends), draft.probabilities[: len(ids)]
        found = Candidates(ids, draft.source, reason, confidences, units, probabilities=probabilities)
        result.append(found if ids else NO_DRAFT)
    return result


def keep_drawn(
    proposed: collections.abc.Sequence[Candidates], trimmed: collections.abc.Sequence[Candidates]
) -> list[Candidates]:
    """Return the trimmed candidates, but sampled drafts untrimmed: trimming by value would bias the distribution."""
    return [whole if whole.probabilities else part for whole, part in zip(proposed, trimmed, strict=True)]


def shared_out(draft: Draft, sizes: collections.abc.Sequence[int]) -> tuple[float, ...]:
    """Return each token's confidence: the product of those of all units that overlap the token. Sizes are in bytes."""
    confidences, first, begin = [], 0, 0
    for size in sizes:
        end = begin + size
        while first < len(draft.ends) and draft.ends[first] <= begin:
            first += 1
        last = first
        while last + 1 < len(draft.ends) and draft.ends[last] < end:
            last += 1
        confidences.append(math.prod(draft.confidences[first : last + 1]))
        begin = end
    return tuple(confidences)


def commit(
    sequence: Sequence, candidates: Candidates, verdict: Verdict, draft: Draft, token_bytes: list[bytes]
) -> Verdict:
    """Append the committed tokens up to the first that ends the text, and emit the text that can no longer change.

    Return the part of the verdict that became text.
    """
    begin, first_byte = len(sequence.ids), len(sequence.generated)
    for token in verdict.committed:
        sequence.finish_reason = _append(sequence, token, token_bytes[token])
        if sequence.finish_reason:
            break
    committed = sequence.ids[begin:]
    logprobs = verdict.logprobs[: len(committed)]
    sequence.logprobs += logprobs
    accepted = min(verdict.accepted, len(committed))
    sequence.stats.count_round(candidates.source, len(candidates.ids), accepted, sequence.outlook.context)
    sequence.stats.committed += len(committed)
    if sequence.listening:
        middle = first_byte + sum(len(token_bytes[token]) for token in committed[:accepted])
        spelled = b"".join(token_bytes[token] for token in candidates.ids) or draft.text
        _emit_round(sequence, candidates, accepted, spelled, (first_byte, middle), logprobs)
    _show(sequence, _certain(sequence))
    return Verdict(accepted, tuple(committed))


def commit_text(sequence: Sequence, text: bytes) -> None:
    """Append a piece of text from an upstream server, which reports no token ids and enforces `max_tokens` itself."""
    begin = len(sequence.generated)
    sequence.finish_reason = "stop" if _append(sequence, UNKNOWN, text) == "stop" else None
    sequence.stats.count_round("", 0, 0)
    sequence.stats.committed += 1
    if sequence.listening:
        _emit_round(sequence, NO_DRAFT, 0, b"", (begin, begin), ())
    _show(sequence, _certain(sequence))


def end_text(sequence: Sequence) -> None:
    """Set the finish reason of a text that the upstream server has ended."""
    sequence.finish_reason = _end_here(sequence, len(sequence.generated))


def conclude(sequence: Sequence, reason: FinishReason) -> None:
    """End the sequence and emit its remaining text; if interrupted, only text that cannot change any more."""
    sequence.finish_reason = reason
    shaped = sequence.ending is not None
    end = len(sequence.generated) if reason == "stop" or (reason == "length" and not shaped) else _certain(sequence)
    _show(sequence, end)
    if sequence.listening:
        sequence.events.append(DoneEvent(sequence.choice, completion_of(sequence)))


def completion_of(sequence: Sequence) -> Completion:
    """Return the Completion of a finished sequence."""
    assert sequence.finish_reason is not None
    ids = tuple(token for token in sequence.ids[len(sequence.prompt_ids) :] if token != UNKNOWN)
    text, logprobs = "".join(sequence.pieces), tuple(sequence.logprobs)
    return Completion(text, ids, sequence.finish_reason, sequence.stats, sequence.choice, logprobs=logprobs)


def _append(sequence: Sequence, token: int, spelled: bytes) -> FinishReason | None:
    """Append a token. Return the finish reason if the token ends the text, else None. A stop also sets `cut`."""
    ending, held, size = sequence.ending, len(sequence.held), len(sequence.generated)
    sequence.ids.append(token)
    sequence.generated += spelled
    sequence.silent = 0 if spelled else sequence.silent + 1
    if token in sequence.eos_ids:
        return _end_here(sequence, size)
    fresh = bytes(sequence.generated[max(held, size) :])
    text = bytes(sequence.generated[held:])
    cuts = [sequence.stops.find(text, len(text) - len(fresh))]
    if ending:
        ending.advance(fresh)
        cuts.append(ending.cut)
        sequence.stats.ended = ending.reason
    found = [cut for cut in cuts if cut is not None]
    if found:
        sequence.cut = held + min(found)
        return "stop"
    return "length" if sequence.remaining == 0 else None


def _end_here(sequence: Sequence, size: int) -> FinishReason:
    """Set `cut` for a text that the model or the server ended after `size` bytes of `generated`."""
    sequence.cut = size
    if sequence.ending:
        sequence.ending.finish()
        sequence.cut = len(sequence.held) + (sequence.ending.cut or 0)
        sequence.stats.ended = sequence.ending.reason
    return "stop"


def _certain(sequence: Sequence) -> int:
    """Return the number of generated bytes that neither later tokens nor `ending` can still change."""
    certain = len(sequence.generated) - sequence.stops.held_back(sequence.generated)
    if sequence.ending:
        certain = min(certain, len(sequence.held) + sequence.ending.certain)
    return certain


def _show(sequence: Sequence, end: int) -> None:
    """Emit the text up to byte `end` of `generated`, or up to the cut if the text has ended."""
    end = end if sequence.cut is None else sequence.cut
    text = sequence.decoder.decode(bytes(sequence.generated[sequence.shown : end]))
    sequence.shown = max(sequence.shown, end)
    if text:
        if not sequence.pieces:
            sequence.stats.first_piece_ms = (time.perf_counter() - sequence.started) * 1000
        sequence.pieces.append(text)
        if sequence.listening:
            sequence.events.append(TextEvent(sequence.choice, text))


def _emit_round(
    sequence: Sequence,
    candidates: Candidates,
    accepted: int,
    draft: bytes,
    bounds: tuple[int, int],
    logprobs: tuple[TokenLogprob, ...],
) -> None:
    """Append a RoundEvent with the accepted part of the text and the target's own part.

    `bounds` are the byte offsets at which the accepted part and the target's own part begin. The event contains no held
    bytes, which are part of the prompt, and no bytes after the cut. A character that spans the accepted part and the
    target's own part belongs to the latter.
    """
    text = bytes(sequence.generated)
    end = len(text) if sequence.cut is None else sequence.cut
    marks = (max(bounds[0], len(sequence.held)), max(bounds[1], len(sequence.held)), end)
    first, middle, end = (complete_utf8_length(text[:mark]) for mark in marks)
    guessed = (text[: bounds[0]] + draft)[first:]
    sequence.events.append(
        RoundEvent(
            choice=sequence.choice,
            source=candidates.source,
            drafted=len(candidates.ids),
            accepted=accepted,
            draft=guessed.decode("utf-8", "replace"),
            accepted_text=text[first : min(middle, end)].decode("utf-8", "replace"),
            target_text=text[middle : max(middle, end)].decode("utf-8", "replace"),
            reason=candidates.reason,
            logprobs=logprobs,
            context=sequence.outlook.context,
            length=len(candidates.ids) + len(candidates.left_out),
        )
    )
