"""Build the prompt of a completion from template, budgets and token healing, as ids.

Places prefix, suffix and snippets of other files, sizes each, and reuses the layout of the previous prompt
(`text.layout`). Source text is always encoded as text: marker-like strings in it never become control tokens.
Independent of models and requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from codespec.errors import FIELD, Fault, RequestError
from codespec.text.align import HeldBytes, held_vocabulary, stable_boundary
from codespec.text.fim_templates import FimTemplate
from codespec.text.layout import MAX_CHARS, Block, Layout, Snippets, Window, prefix_window, split_tail, suffix_window
from codespec.text.tokenizer import TextTokenizer

# Divisors of the budget. With `psm`, the suffix is read again after a longer tail or another suffix: a smaller share.
_SUFFIX_SHARE = {"psm": 8, "spm": 4, "suffix_first": 4}
_SNIPPET_SHARE = 4
PLAIN_NOTES = ("snippets are left out: they need a fill-in-the-middle prompt",)
_SLACK = 8  # 1/8 of the room must be free before a split prefix and suffix are tried whole again
_MIN = 8


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Ids to prefill, with the facts that the engine needs.

    `context` is the prefix's text in the prompt without `held`, the bytes that healing held back and that the
    completion must spell first. `continues` is true if the ids end with the prefix, which the completion then
    continues. `prefix_start` is the character of the prefix at which the window begins.
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

    Without a template, the prompt is the plain prefix and equals the model's own encoding of it. Text that
    does not fit is cut: the suffix to a quarter of the budget (an eighth if it follows the prefix), snippets (path,
    text) to a quarter, the prefix to the rest. Updates `layout`, the layout of the document: windows keep their start
    while they fit, and snippets stay while the user keeps typing, unless `renew`. `offset` is the character of the
    document at which `prefix` begins. With `append`, the end of the prefix may stand behind the suffix, so that typing
    appends to any prompt (`split_tail`). Raises RequestError if the budget leaves no room.
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
    if moved and layout.block.snippets != tuple(snippets):  # most of the prompt changes: new ones cost little more
        layout.block = _block(tokenizer, template, path, snippets, room, layout.now)
        before, after = _windows(tokenizer, template, prefix, suffix, room - len(layout.block.ids), layout, offset)
    layout.used = layout.now
    parts = None
    if append and template.order == "psm" and template.middle_id is not None:
        keep = layout.suffix == suffix_before and layout.block.ids == ids_before
        left = room - len(layout.block.ids) - len(after.ids)
        parts = split_tail(tokenizer, before.text, left, layout, keep=keep, renew=renew)
    in_middle = template.order == "spm" or parts is not None  # the end of the prefix is the beginning of the middle
    head, tail = parts or ([], before.ids)
    held = stable_boundary(held_vocabulary(tokenizer), tail) if heal else HeldBytes()
    kept = tail[: len(tail) - held.count]
    body = _arrange(template, head, kept, after.ids) if in_middle else _arrange(template, kept, [], after.ids)
    continues = (in_middle and bool(tail)) or (template.order == "suffix_first" and template.middle_id is None)
    front = [*tokenizer.bos_ids, *layout.block.ids]
    return _prompt([*front, *body], before, held, continues, before.cut or after.cut, layout.block.notes)


def _plain(
    tokenizer: TextTokenizer,
    prefix: str,
    budget: int,
    heal: bool,
    layout: Layout,
    offset: int,
    notes: tuple[str, ...],
) -> TokenPrompt:
    room = _demand_room(budget - len(tokenizer.bos_ids))
    before = prefix_window(tokenizer, prefix, room, layout, offset)
    # Keep one id in the prompt: a forward pass without ids has no logits.
    givable = before.ids if tokenizer.bos_ids else before.ids[1:]
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
    """Return prefix and suffix whole if they fit together, else the suffix cut to its share, the prefix to the rest."""
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
    """Return the prompt's body. `tail` is the end of the prefix, given as the beginning of the middle."""
    middle = [] if template.middle_id is None else [template.middle_id]
    if template.order == "suffix_first":
        return [template.suffix_id, *after, template.prefix_id, *head, *middle, *tail]
    return [template.prefix_id, *head, template.suffix_id, *after, *middle, *tail]


def _block(
    tokenizer: TextTokenizer, template: FimTemplate, path: str, snippets: Snippets, room: int, now: float
) -> Block:
    """Return the ids of all snippets, each after a separator and its path, then the file's own separator and path."""
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
