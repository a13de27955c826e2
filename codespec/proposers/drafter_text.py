"""What the drafter has read: one sequence in the drafter's own tokens, kept in step with what the target wrote.

Knows the drafter's tokenizer, prompt layout and context length; knows no model. The prompt is laid out in the drafter's
own way (its own fill-in-the-middle markers). When its context is full, the window moves on and everything is read anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from codespec.models.slots import common_prefix
from codespec.sequence import Sequence
from codespec.text.align import complete_utf8_length, resync
from codespec.text.fim import FimTemplate, build_prompt
from codespec.text.layout import Layout
from codespec.text.tokenizer import TextTokenizer

REFILL = 4  # after the window moved, a quarter of the context is free


@dataclass(slots=True, eq=False)
class DrafterText:
    """`head` ids, then `ids` that spell `base` and what was generated from byte `offset` on; `ends` are cumulative
    bytes.

    `cached` of head and ids together are in the drafter's slot. `shared`: ids are the target's own.
    """

    slot: int
    head: list[int] = field(default_factory=list)
    base: bytes = b""
    offset: int = 0
    ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    cached: int = 0
    confirmed: int = 0  # bytes of the text that were right at the last sync, and so stay right
    shared: bool = False

    @property
    def length(self) -> int:
        """Tokens of the drafter's context in use."""
        return len(self.head) + len(self.ids)

    @property
    def pending(self) -> list[int]:
        """Ids that the drafter has not seen; never empty, because the last one's row makes the next guess."""
        self.cached = min(self.cached, self.length - 1)
        return (
            [*self.head, *self.ids][self.cached :]
            if self.cached < len(self.head)
            else self.ids[self.cached - len(self.head) :]
        )

    def append(self, token: int, spelled: bytes) -> None:
        """Goes on with a guessed token."""
        self.ids.append(token)
        self.ends.append((self.ends[-1] if self.ends else 0) + len(spelled))

    def sync(self, tokenizer: TextTokenizer, sequence: Sequence) -> bool:
        """Cuts back to what the target confirmed and reads the rest; False if the text ends inside a character."""
        if self.shared:
            kept = common_prefix(self.ids, sequence.ids)
            self.ids = list(sequence.ids)
            self.cached = min(self.cached, kept)
            return True
        text = self.base + sequence.known[self.offset :]
        if complete_utf8_length(text) < len(text):
            return False
        change = resync(tokenizer, self.ids, self.ends, text, known=self.confirmed)
        del self.ids[change.kept :], self.ends[change.kept :]
        for token in change.new_ids:
            self.append(token, tokenizer.token_bytes[token])
        self.cached = min(self.cached, len(self.head) + change.kept)
        self.confirmed = change.end
        return change.end == len(text) and self.length > 0


def open_text(
    tokenizer: TextTokenizer,
    template: FimTemplate | None,
    sequence: Sequence,
    context: int,
    layout: Layout,
) -> DrafterText:
    """Lays out the drafter's prompt for a sequence, as far as it has got, in at most three quarters of its context.
    It has no slot yet.
    """
    request, known = sequence.request, sequence.known
    prefix = request.prefix.encode()
    surplus = max(0, len(sequence.held) - len(prefix))  # a dummy prefix that was healed away
    before = prefix[: len(prefix) + surplus - len(sequence.held)]
    read = _readable(before + known[surplus:])
    prompt = build_prompt(
        tokenizer,
        template if request.suffix else None,
        prefix=read,
        suffix=request.suffix,
        path=request.path,
        snippets=[(s.path, s.text) for s in request.snippets],
        budget=context - context // REFILL,
        layout=layout,
        offset=request.prefix_offset,
        renew=sequence.only_reads,
    )
    last_special = max((i for i, token in enumerate(prompt.ids) if token in tokenizer.special_ids), default=-1)
    offset = len(read.encode()) - len(before) + surplus
    text = DrafterText(-1, head=list(prompt.ids[: last_special + 1]), offset=offset)
    for token in prompt.ids[last_special + 1 :]:
        text.append(token, tokenizer.token_bytes[token])
    text.base = tokenizer.decode_bytes(text.ids)
    return text


def _readable(data: bytes) -> str:
    """The text up to the first bytes that are no UTF-8; those and what follows are spelled at the first sync."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()
