"""Build the prompt of a completion, as ids, from a prefix, a suffix and snippets of other files.

The layout of a document is kept while the user types, so that consecutive prompts share a prefix and the model reads
only new text. A prompt depends on no request for another document. The cost is bounded by the token budget, not by the
length of the text. Control tokens that source text spells are encoded as text.
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
PAUSE = 5.0  # seconds without a prompt after which typing counts as paused
OLDEST = 60.0  # maximum seconds to keep snippets while the user types
MAX_DOCUMENTS = 256
MAX_CHARS = 8  # characters of a token; code has 2 to 5, so a text with more would not fit anyway
Snippets = Sequence[tuple[str, str]]  # (path, text)
# Parts of the budget are 1/n. A suffix after the prefix (`psm`) gets less, because it is read again more often.
_SUFFIX_SHARE = {"psm": 8, "spm": 4, "suffix_first": 4}
_SNIPPET_SHARE = 4
PLAIN_NOTES = ("snippets are left out: they need a fill-in-the-middle prompt",)
_SLACK = 8  # 1/8 of the room must be free before a text that was cut is tried whole again
_MIN = 8  # tokens


@dataclass(slots=True)
class Block:
    """Ids of other files' snippets, put before a prompt, and the inputs of these ids; `made` is a time in seconds."""

    path: str = ""
    snippets: tuple[tuple[str, str], ...] = ()
    ids: list[int] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    made: float = 0.0


@dataclass(slots=True)
class Layout:
    """Layout of the last prompt of a document.

    `starts` are the starts of recent prefix windows, most recent first: the character offset in the document and the
    text there, because edits further up move the offset but not the text. `split` is true if prefix and suffix did not
    fit together. `suffix` is the text of the suffix window, and `head` the text of the prefix window before its tail.
    `now` is the time of this prompt and `used` the time of the previous one, in seconds.
    """

    starts: list[tuple[int, str]] = field(default_factory=list)
    split: bool = False
    suffix: str = ""
    head: str = ""
    block: Block = field(default_factory=Block)
    used: float = 0.0
    now: float = 0.0

    def find_starts(self, prefix: str, offset: int) -> list[int]:
        """Return the offsets in `prefix`, which begins at character `offset` of the document, of recent starts."""
        offsets = [_find(head, prefix, max(0, start - offset)) for start, head in self.starts]
        return [place for place in offsets if place >= 0]

    def keep_start(self, start: int, prefix: str, offset: int) -> None:
        """Add the start of a window of `prefix`."""
        place, head = offset + start, prefix[start : start + HEAD]
        others = [known for known in self.starts if known[0] != place and known[1] != head]
        self.starts = [(place, head), *others][:PLACES]

    def keeps_block(self, path: str, snippets: Snippets, room: int) -> bool:
        """Return whether the next prompt reuses the snippets of the last one.

        Snippets that changed while the user keeps typing are not used yet, because they would cost a whole prefill.
        """
        block = self.block
        if block.path != path or len(block.ids) > room or bool(block.snippets) != bool(snippets):
            return False
        typing = self.now - self.used <= PAUSE and self.now - block.made <= OLDEST
        return typing or block.snippets == tuple(snippets)


class Layouts:
    """Layouts of the most recently edited documents; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._layouts: OrderedDict[Owner, Layout] = OrderedDict()

    def of(self, owner: Owner) -> Layout:
        """Return the layout of a document of one client; a new one if the document has no name."""
        if not owner.document:
            return Layout()
        layout = self._layouts.setdefault(owner, Layout())
        layout.now = self.clock()
        self._layouts.move_to_end(owner)
        if len(self._layouts) > MAX_DOCUMENTS:
            self._layouts.popitem(last=False)
        return layout


def _find(head: str, text: str, expected: int) -> int:
    """Return the offset of `head` in a text nearest to `expected`, or -1 if the text lacks it."""
    if not head:
        return -1
    before, after = text.rfind(head, 0, expected + len(head)), text.find(head, expected)
    if min(before, after) < 0:
        return max(before, after)
    return before if expected - before <= after - expected else after


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a text that begins at character `start`; `cut` is true if it is not the whole text."""

    ids: list[int]
    text: str
    start: int
    cut: bool


def prefix_window(
    tokenizer: TextTokenizer, text: str, budget: int, layout: Layout | None = None, offset: int = 0
) -> Window:
    """Return the end of a text, at most `budget` tokens; the text begins at character `offset` of its document.

    The window starts at a line, if possible at the start of a recent window that still fills half of the budget.
    After a full window, the start advances until three quarters of the budget are used. Without a recent window, the
    start is near a multiple of a quarter of the budget.
    """
    layout = Layout() if layout is None else layout
    start, ids = _choose_start(tokenizer, text, budget, layout.find_starts(text, offset), offset)
    layout.keep_start(start, text, offset)
    return Window(ids, text[start:], start, start > 0)


def split_tail(
    tokenizer: TextTokenizer, text: str, budget: int, layout: Layout, *, keep: bool, renew: bool
) -> tuple[list[int], list[int]] | None:
    """Return the ids of a prefix window as head and tail, at most `budget` together, or None if no split fits.

    The suffix stands between head and tail in the prompt, so the tail begins the middle and typing only appends ids.
    The tail begins with the cursor's line, or with the last word of a very long line. With `keep`, the tail begins
    where it did in the last prompt, if the head is the same. A tail has at most MAX_TAIL tokens, with `renew` half as
    many.
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
    """Return the beginning of a text, at most `budget` tokens; the window ends after a line break if possible."""
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
    """Yield possible starts, widest window first; after a `full` window, only starts that free a quarter."""
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
    """Return the first start of a line at or after `least`, or `least` if there is none before `limit`."""
    if least == 0 or text[least - 1] == "\n":
        return least
    start = text.find("\n", least, limit) + 1
    return start or least


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """The ids of a prompt.

    `held` are the bytes that healing removed and that the completion must begin with; `context` is the text of the
    prefix window without them. `continues` is true if the ids end with the prefix. The window begins at character
    `prefix_start` of the prefix. `trimmed` is true if prefix or suffix are not whole. `notes` are clauses for the user.
    """

    ids: list[int]
    context: bytes
    held: bytes
    continues: bool
    prefix_start: int
    trimmed: bool
    notes: tuple[str, ...] = ()


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
    """Return a prompt of at most `budget` ids for a cursor between `prefix` and `suffix`.

    Without a template, the prompt is the prefix, encoded as the model does. Text that does not fit is cut: the suffix
    to a quarter of the budget (an eighth if it follows the prefix), the snippets to a quarter, the prefix to the rest.
    `layout` is read and updated. While the user types, the prompt keeps its snippets, unless `renew` is true. `prefix`
    begins at character `offset` of the document. With `append`, the end of the prefix may stand after the suffix (see
    `split_tail`). Raises RequestError if the budget leaves no room.
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
        what = f"{FIELD} leaves room for {max(0, room)} prompt tokens"
        raise RequestError(Fault("no_room", what, "lower it", "max_tokens"))
    return room


def _windows(
    tokenizer: TextTokenizer, template: FimTemplate, prefix: str, suffix: str, room: int, layout: Layout, offset: int
) -> tuple[Window, Window]:
    """Return the windows of prefix and suffix: whole if both fit, else the suffix cut to its share of the room."""
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
    """Return the ids of markers, prefix and suffix in the order of a template; `tail` begins the middle."""
    middle = [] if template.middle_id is None else [template.middle_id]
    if template.order == "suffix_first":
        return [template.suffix_id, *after, template.prefix_id, *head, *middle, *tail]
    return [template.prefix_id, *head, template.suffix_id, *after, *middle, *tail]


def _block(
    tokenizer: TextTokenizer, template: FimTemplate, path: str, snippets: Snippets, room: int, now: float
) -> Block:
    """Return the block of all snippets, each after a separator and its path; the file's own separator is last."""
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
