"""What becomes of a conversation: the target's ids of the prompt that the model's own chat template makes of it.

Only the template writes control tokens. In what people and models said, the characters that such tokens begin with are
hidden behind stand-ins before the template sees them, and put back behind the parser: a text that spells `<|im_end|>`
stays a text. Knows templates; knows no dialect. Runs on the engine's thread, like everything that encodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from codespec.errors import RequestError
from codespec.server.wire import clip
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
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else ""


def to_prompt(tokenizer: TextTokenizer, conversation: Sequence[Said]) -> tuple[tuple[int, ...], str]:
    """The ids of a conversation up to where the model answers, and their text. Raises RequestError on `messages`."""
    stand_ins = find_stand_ins(tokenizer.control_starts, [said.content for said in conversation])
    table = str.maketrans(stand_ins)
    messages = [{"role": said.role, "content": said.content.translate(table)} for said in conversation]
    rendered = _render(find_chat_template(tokenizer), messages, _special_tokens(tokenizer))
    ids = tuple(tokenizer.encode_with_specials(rendered, stand_ins))
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


def _render(template: str, messages: list[dict[str, str]], tokens: dict[str, Any]) -> str:
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered: Any = render_jinja_template(  # a pair, whatever its annotation says
            conversations=[messages], chat_template=template, add_generation_prompt=True, **tokens
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        said = f"messages can't be laid out by the model's chat template ({clip(str(error), 200)})"
        raise RequestError(f"{said}: change their roles or order.", "messages") from error
    return str(rendered[0][0])
