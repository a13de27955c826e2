"""Build the token ids of a completion prompt from a prefix, a suffix and snippets of other files.

The layout of a document's prompts is reused while the user types, so that consecutive prompts begin with the same
tokens and the model reads only new text. A prompt does not depend on requests for other documents. The cost of building
a prompt depends on the token budget, not on the length of the text. Control tokens in source text are encoded as text.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from codespec.api.types import Owner
from codespec.errors import FIELD, Fault, RequestError
from codespec.text.align import HeldBytes, byte_ends, held_vocabulary, stable_boundary
from codespec.text.fim_templates import FimTemplate
from codespec.text.tokenizer import TextTokenizer

HEAD = 128  # characters that identify the start of a window
PLACES = 4  # cached starts of windows in one document
MAX_TAIL = 64  # tokens
TYPING_PAUSE_S = 5.0  # seconds without a prompt after which typing counts as paused
MAX_SNIPPET_AGE_S = 60.0  # maximum seconds to keep snippets while the user types
MAX_DOCUMENTS = 256
MAX_CHARS = 8  # assumed maximum of characters per token; code has 2 to 5
Snippets = Sequence[tuple[str, str]]  # (path, text)
# A suffix gets at most 1/n of the budget. A suffix after the prefix (`psm`) gets less, because it is read more often.
_SUFFIX_SHARE = {"psm": 8, "spm": 4, "suffix_first": 4}
_SNIPPET_SHARE = 4
PLAIN_NOTES = ("snippets are left out: they need a fill-in-the-middle prompt",)
_SLACK = 8  # 1/8 of the room must be free before a text that was cut is tried whole again
_MIN = 8  # tokens


@dataclass(slots=True)
class Block:
    """The token ids of other files' snippets, and the inputs to which these ids belong."""

    path: str = ""
    snippets: tuple[tuple[str, str], ...] = ()
    ids: list[int] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    made: float = 0.0  # time in seconds


@dataclass(slots=True)
class Layout:
    """The layout of a document's last prompt."""

    # Where recent prefix windows start, most recent first: a character offset in the document, and the text at that
    # offset, because edits further up change the offset but not the text.
    starts: list[tuple[int, str]] = field(default_factory=list)
    split: bool = False  # whether the prefix and the suffix did not both fit into the budget
    suffix: str = ""  # text of the suffix window
    head: str = ""  # text of the prefix window before its tail (see `split_tail`)
    block: Block = field(default_factory=Block)
    used: float = 0.0  # time of the previous prompt in seconds
    now: float = 0.0  # time of the current prompt in seconds

    def keep_start(self, start: int, prefix: str, offset: int) -> None:
        """Record `start` as the most recent start of a window of `prefix`."""
        place, head = offset + start, prefix[start : start + HEAD]
        others = [known for known in self.starts if known[0] != place and known[1] != head]
        self.starts = [(place, head), *others][:PLACES]

    def keeps_block(self, path: str, snippets: Snippets, room: int) -> bool:
        """Return whether the next prompt reuses the snippets of the last one."""
        block = self.block
        if block.path != path or len(block.ids) > room or bool(block.snippets) != bool(snippets):
            return False
        # New snippets wait until the user pauses, because the model would have to read the whole prompt again.
        typing = self.now - self.used <= TYPING_PAUSE_S and self.now - block.made <= MAX_SNIPPET_AGE_S
        return typing or block.snippets == tuple(snippets)


class Layouts:
    """The prompt layouts of the most recently edited documents; `clock` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._layouts: OrderedDict[Owner, Layout] = OrderedDict()

    def of(self, owner: Owner) -> Layout:
        """Return the prompt layout of a client's document, or a new layout if the document has no name."""
        if not owner.document:
            return Layout()
        layout = self._layouts.setdefault(owner, Layout())
        layout.now = self.clock()
        self._layouts.move_to_end(owner)
        if len(self._layouts) > MAX_DOCUMENTS:
            self._layouts.popitem(last=False)
        return layout


def _find(head: str, text: str, expected: int) -> int:
    """Return the offset of `head` in a text that is nearest to `expected`, or -1 if `head` does not occur."""
    if not head:
        return -1
    before, after = text.rfind(head, 0, expected + len(head)), text.find(head, expected)
    if min(before, after) < 0:
        return max(before, after)
    return before if expected - before <= after - expected else after


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a text, beginning at character `start`; `cut` is true unless the part is the whole text."""

    ids: list[int]
    text: str
    start: int
    cut: bool


def prefix_window(
    tokenizer: TextTokenizer, text: str, budget: int, layout: Layout | None = None, offset: int = 0
) -> Window:
    """Return the last part of a text, at most `budget` tokens; the text begins at character `offset` of its document.

    The window begins with a whole line, if possible where a recent window began that still fills half of the budget. If
    the last window has become too long, its start advances until three quarters of the budget are used. Without a
    recent window, the start is near a multiple of a quarter of the budget.
    """
    layout = Layout() if layout is None else layout
    recent = (_find(head, text, max(0, start - offset)) for start, head in layout.starts)
    start, ids = _choose_start(tokenizer, text, budget, [place for place in recent if place >= 0], offset)
    layout.keep_start(start, text, offset)
    return Window(ids, text[start:], start, start > 0)


def split_tail(
    tokenizer: TextTokenizer, text: str, budget: int, layout: Layout, *, keep: bool, renew: bool
) -> tuple[list[int], list[int]] | None:
    """Return the ids of the head and the tail of a prefix window, at most `budget` in total, or None if no split fits.

    In the prompt, the suffix is between the head and the tail, so that typing only appends ids at the end. The tail
    begins at the start of the cursor's line, or at the last word of a very long line. If `keep` is true and the head is
    unchanged, the tail begins at the same position as in the last prompt. A tail has at most MAX_TAIL tokens, or half
    as many if `renew` is true.
    """
    most = MAX_TAIL // 2 if renew else MAX_TAIL
    kept = len(layout.head) if keep and text.startswith(layout.head) else 0
    for start in (kept, text.rfind("\n") + 1, text.rfind(" ")):
        if start > 0 and len(text) - start <= most * MAX_CHARS:
            tail = tokenizer.encode_inside(text[start:])
            if len(tail) <= most:
                head = tokenizer.encode(text[:start])
                layout.head = text[:start] if len(head) + len(tail) <= budget else ""
                return (head, tail) if layout.head else None
    layout.head = ""
    return None


def suffix_window(encode: Callable[[str], list[int]], token_bytes: list[bytes], text: str, budget: int) -> Window:
    """Return the first part of a text, at most `budget` tokens; the window ends after a line break if possible."""
    kept = text[: budget * MAX_CHARS]
    ids = encode(kept)
    while len(ids) > budget or (len(kept) < len(text) and not kept.endswith("\n")):
        size = sum(len(token_bytes[number]) for number in ids[:budget])
        shorter = kept.encode("utf-8")[:size].decode("utf-8", errors="ignore")
        if len(shorter) == len(kept):
            shorter = kept[:-1]
        line_end = shorter.rfind("\n") + 1
        if not line_end and len(ids) <= budget:
            break
        kept = shorter[: line_end or len(shorter)]
        ids = encode(kept)
    return Window(ids, kept, 0, len(kept) < len(text))


def _choose_start(
    tokenizer: TextTokenizer, text: str, budget: int, anchors: Sequence[int], offset: int
) -> tuple[int, list[int]]:
    full = False
    for place, anchor in enumerate(anchors):
        ids = tokenizer.encode(text[anchor : anchor + budget * MAX_CHARS + 1])
        fits = len(ids) <= budget and len(text) - anchor <= budget * MAX_CHARS
        if fits and (2 * len(ids) >= budget or anchor + offset == 0):
            return anchor, ids
        full = full or (place == 0 and not fits)
    for start in _starts(tokenizer, text, budget, offset, full):
        ids = tokenizer.encode(text[start:])
        if len(ids) <= budget:
            return start, ids
    start = max(0, len(text) - (budget - 1) // 4)  # a character takes at most four tokens, a dummy prefix one
    return start, tokenizer.encode(text[start:])


def _starts(tokenizer: TextTokenizer, text: str, budget: int, offset: int, full: bool) -> Iterator[int]:
    """Yield possible window starts, longest window first; if `full`, only starts that free a quarter of the budget."""
    clipped = max(0, len(text) - budget * MAX_CHARS)
    if not full and not clipped:
        yield 0
    step = max(1, budget // 4 * tokenizer.typical_chars)
    data = text[clipped:].encode("utf-8")
    ends = byte_ends(tokenizer, tokenizer.spell([data])[0])
    first = -(-(clipped + offset) // step) * step - offset  # the grid is relative to the document
    if full:
        gone = ends[: max(0, len(ends) - budget * 3 // 4)]
        first = clipped + len(data[: gone[-1] if gone else 0].decode("utf-8", errors="ignore"))
    for least in range(first, len(text), step):
        start = _line_start(text, least, least + step)
        skipped = len(text[clipped:start].encode("utf-8"))
        if start and len(ends) - bisect_right(ends, skipped) <= budget:
            yield start


def _line_start(text: str, least: int, limit: int) -> int:
    """Return the start of the first line at or after `least`, or `least` if no line starts before `limit`."""
    if least == 0 or text[least - 1] == "\n":
        return least
    start = text.find("\n", least, limit) + 1
    return start or least


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt in token ids."""

    ids: list[int]
    context: bytes  # text of the prefix window without the held bytes
    held: bytes  # bytes that token healing removed, with which the completion must begin
    continues: bool  # whether the ids end with the prefix
    prefix_start: int  # character of the prefix at which the prefix window begins
    trimmed: bool  # whether the prefix or the suffix was shortened
    notes: tuple[str, ...] = ()  # clauses for the user


def build_prompt(
    tokenizer: TextTokenizer,
    template: FimTemplate | None,
    *,
    prefix: str,
    suffix: str = "",
    path: str = "",
    snippets: Snippets = (),
    budget: int,
    heal: bool = False,
    layout: Layout | None = None,
    offset: int = 0,
    renew: bool = False,
    append: bool = False,
) -> TokenPrompt:
    """Return a prompt of at most `budget` token ids for a cursor between `prefix` and `suffix`.

    Without a template, the prompt contains the prefix only. Text that does not fit is shortened: the suffix to a
    quarter of the budget (an eighth if the suffix follows the prefix), the snippets to a quarter, and the prefix to the
    rest of the budget. `layout` is read and updated. While the user types, each prompt contains the same snippets,
    unless `renew` is true. `prefix` begins at character `offset` of the document. If `append` is true, the end of the
    prefix may be placed after the suffix (see `split_tail`). Raises RequestError if the budget is too small for a
    prompt.
    """
    layout = Layout() if layout is None else layout
    if template is None:
        return _plain(tokenizer, prefix, budget, heal, layout, offset, PLAIN_NOTES if snippets else ())
    room = _demand_room(budget - len(tokenizer.bos_ids) - 3)
    starts, suffix_before, ids_before = layout.starts[:1], layout.suffix, layout.block.ids
    if renew or not layout.keeps_block(path, snippets, room // _SNIPPET_SHARE):
        layout.block = _block(tokenizer, template, path, snippets, room, layout.now)
    before, after = _windows(tokenizer, template, prefix, suffix, room - len(layout.block.ids), layout, offset)
    moved = layout.starts[:1] != starts or (layout.suffix != suffix_before and template.order != "psm")
    if moved and layout.block.snippets != tuple(snippets):  # most ids change anyway, so use the new snippets
        layout.block = _block(tokenizer, template, path, snippets, room, layout.now)
        before, after = _windows(tokenizer, template, prefix, suffix, room - len(layout.block.ids), layout, offset)
    layout.used = layout.now
    parts = None
    if append and template.order == "psm" and template.middle_id is not None:
        keep = layout.suffix == suffix_before and layout.block.ids == ids_before
        left = room - len(layout.block.ids) - len(after.ids)
        parts = split_tail(tokenizer, before.text, left, layout, keep=keep, renew=renew)
    in_middle = template.order == "spm" or parts is not None  # whether the end of the prefix begins the middle
    head, tail = parts or ([], before.ids)
    held = stable_boundary(held_vocabulary(tokenizer), tail) if heal else HeldBytes()
    kept = tail[: len(tail) - held.count]
    body = _arrange(template, head, kept, after.ids) if in_middle else _arrange(template, kept, [], after.ids)
    continues = (in_middle and bool(tail)) or (template.order == "suffix_first" and template.middle_id is None)
    front = [*tokenizer.bos_ids, *layout.block.ids]
    return _prompt([*front, *body], before, held, continues, before.cut or after.cut, layout.block.notes)


def _plain(
    tokenizer: TextTokenizer, prefix: str, budget: int, heal: bool, layout: Layout, offset: int, notes: tuple[str, ...]
) -> TokenPrompt:
    room = _demand_room(budget - len(tokenizer.bos_ids))
    before = prefix_window(tokenizer, prefix, room, layout, offset)
    givable = before.ids if tokenizer.bos_ids else before.ids[1:]  # without any id there are no logits
    held = stable_boundary(held_vocabulary(tokenizer), givable) if heal else HeldBytes()
    ids = [*tokenizer.bos_ids, *before.ids[: len(before.ids) - held.count]]
    return _prompt(ids, before, held, True, before.cut, notes)


def _prompt(
    ids: list[int], before: Window, held: HeldBytes, continues: bool, trimmed: bool, notes: tuple[str, ...]
) -> TokenPrompt:
    text = before.text.encode("utf-8")
    context = text[: max(0, len(text) - len(held.data))]  # the held bytes may include a dummy prefix
    return TokenPrompt(ids, context, held.data, continues, before.start, trimmed, notes)


def _demand_room(room: int) -> int:
    if room < _MIN:
        left, fix = max(0, room), "request fewer output tokens"
        raise RequestError(Fault("no_room", f"{FIELD} leaves room for {left} prompt tokens", fix, "max_tokens"))
    return room


def _windows(
    tokenizer: TextTokenizer, template: FimTemplate, prefix: str, suffix: str, room: int, layout: Layout, offset: int
) -> tuple[Window, Window]:
    """Return the windows of the prefix and the suffix, which are whole if both fit and shortened otherwise."""
    encode = partial(tokenizer.encode_inside, begins=template.suffix_begins)
    if len(prefix) + len(suffix) <= room * MAX_CHARS:
        before, suffix_ids = tokenizer.encode(prefix), encode(suffix)
        if len(before) + len(suffix_ids) <= room - (room // _SLACK if layout.split else 0):
            layout.split, layout.suffix = False, suffix
            layout.keep_start(0, prefix, offset)
            return Window(before, prefix, 0, False), Window(suffix_ids, suffix, 0, False)
    after = suffix_window(encode, tokenizer.token_bytes, suffix, room // _SUFFIX_SHARE[template.order])
    layout.split, layout.suffix = True, after.text
    return prefix_window(tokenizer, prefix, room - len(after.ids), layout, offset), after


def _arrange(template: FimTemplate, head: list[int], tail: list[int], after: list[int]) -> list[int]:
    """Return the ids of the markers, the prefix and the suffix in the order of a template; `tail` comes last."""
    middle = [] if template.middle_id is None else [template.middle_id]
    if template.order == "suffix_first":
        return [template.suffix_id, *after, template.prefix_id, *head, *middle, *tail]
    return [template.prefix_id, *head, template.suffix_id, *after, *middle, *tail]


def _block(
    tokenizer: TextTokenizer, template: FimTemplate, path: str, snippets: Snippets, room: int, now: float
) -> Block:
    """Return a block of the snippets that fit, each after a file separator and a path; the current path is last."""
    ids: list[int] = []
    notes: tuple[str, ...] = ()
    separator = template.separator_id
    if snippets and separator is None:
        notes = ("snippets are left out: the model has no known file separator",)
    elif snippets and separator is not None:
        names = [*(name for name, _ in snippets), path]
        inside = [tokenizer.encode_inside(f"{name}\n") if name else [] for name in names]
        heads = [[separator, *name] for name in inside]
        for place, (_, text) in enumerate(snippets):
            left = room // _SNIPPET_SHARE - len(ids) - len(heads[place]) - len(heads[-1])
            if left < _MIN:
                left_out = len(snippets) - place
                notes = (f"{left_out} of {len(snippets)} snippets are left out: they do not fit",)
                break
            window = suffix_window(tokenizer.encode_inside, tokenizer.token_bytes, text, left)
            ids += [*heads[place], *window.ids]
        ids += heads[-1] if ids else []
    return Block(path, tuple(snippets), ids, notes, now)
