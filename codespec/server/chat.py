"""What becomes of a conversation: the target's ids of the prompt that the model's own chat template makes of it.

Only the template writes control tokens. In what people and models said, the characters that such tokens begin with are
hidden behind stand-ins before the template sees them, and put back behind the parser: a text that spells `<|im_end|>`
stays a text. Knows what stands before a template and behind it; knows no dialect, and runs no template (`templates`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from codespec.errors import RequestError
from codespec.text.control_tokens import token_content

if TYPE_CHECKING:
    from codespec.text.tokenizer import TextTokenizer

# Characters that stand for nothing: Unicode's noncharacters, then a plane of private use.
_FREE = (*range(0xFDD0, 0xFDF0), *range(0xF0000, 0xF1000))


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a conversation."""

    role: str
    content: str


def find_chat_template(tokenizer: TextTokenizer) -> str:
    """The source of the model's template, of several the one named `default`; "" where it has none."""
    found = tokenizer.config.get("chat_template")
    if isinstance(found, list):
        named = (entry for entry in found if isinstance(entry, dict) and entry.get("name") == "default")
        found = next(named, {}).get("template")
    return found if isinstance(found, str) else ""


def hide_controls(tokenizer: TextTokenizer, conversation: Sequence[Said]) -> tuple[dict[str, Any], dict[str, str]]:
    """A conversation as the process that runs templates is asked, and the characters that hide others in it. Raises
    RequestError on `messages`.
    """
    stand_ins = find_stand_ins(tokenizer.control_starts, [said.content for said in conversation])
    table = str.maketrans(stand_ins)
    messages = [{"role": said.role, "content": said.content.translate(table)} for said in conversation]
    template, tokens = find_chat_template(tokenizer), _special_tokens(tokenizer)
    return {"template": template, "messages": messages, "tokens": tokens}, stand_ins


def to_ids(tokenizer: TextTokenizer, laid_out: str, stand_ins: Mapping[str, str]) -> tuple[tuple[int, ...], str]:
    """The ids of a conversation up to where the model answers, and their text."""
    ids = tuple(tokenizer.encode_with_specials(laid_out, stand_ins))
    return ids, tokenizer.decode_bytes(ids).decode("utf-8", "replace")


def find_stand_ins(hidden: frozenset[str], texts: Sequence[str]) -> dict[str, str]:
    """For each character to be hidden another one that occurs in none of the texts."""
    taken = set().union(*texts)
    free = [chr(code) for code in _FREE if chr(code) not in taken]
    if len(free) < len(hidden):
        raise RequestError("messages hold too many characters of private use: leave them out.", "messages")
    return dict(zip(sorted(hidden), free, strict=False))


def _special_tokens(tokenizer: TextTokenizer) -> dict[str, str]:
    """The names that templates know special tokens by."""
    named = {name: token_content(value) for name, value in tokenizer.config.items() if name.endswith("_token")}
    return {name: content for name, content in named.items() if content}
