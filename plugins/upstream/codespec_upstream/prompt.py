"""Lay out a prompt for a server whose tokenizer is unknown, from bytes and the markers of a model family.

`codespec.text.fim` arranges prompts in token ids. Here each byte and each marker has an id, so prompts get the same
layout as those for a model on this machine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codespec.api.types import CompletionRequest, Owner, fills_in
from codespec.text.fim import Layouts, build_prompt
from codespec.text.fim_templates import FimMissing, family_tokens, find_template
from codespec.text.tokenizer import TextTokenizer

BYTES_PER_TOKEN = 3.0  # a low estimate for code
MARGIN = 0.9  # factor for measured bytes per token, because another part of a document may have fewer
MIN_COUNTED = 64  # tokens; shorter prompts tell too little about the bytes per token
MAX_DOCUMENTS = 256  # documents whose bytes per token are remembered
ANY = "piped"  # a family without file separators, for servers that take a `suffix` and get no markers


class ByteTokenizer(TextTokenizer):
    """A vocabulary of 256 bytes and a family's markers, which is not read from a file as other tokenizers are."""

    typical_chars = 1

    def __init__(self, markers: Sequence[str] = ()) -> None:
        self.config = {}
        self.vocab = {marker: 256 + place for place, marker in enumerate(markers)}
        self.special_ids = frozenset(self.vocab.values())
        self.token_bytes = [bytes([byte]) for byte in range(256)] + [b""] * len(markers)
        self.vocab_size = len(self.token_bytes)
        self.model_eos_ids = frozenset[int]()
        self.bos_ids = ()
        self.dummy_prefix = False

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of a text as ids."""
        return list(text.encode("utf-8"))

    def encode_inside(self, text: str, *, begins: bool = False) -> list[int]:
        """Return the UTF-8 bytes of a text as ids."""
        return self.encode(text)

    def spell(self, pieces: Sequence[bytes]) -> list[list[int]]:
        """Return the bytes of each piece as ids."""
        return [list(piece) for piece in pieces]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt for the server. `suffix` is "" unless the server supports that field. `notes` are for the client."""

    text: str
    suffix: str = ""
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """The number of bytes in the text and the suffix."""
        return len(self.text.encode()) + len(self.suffix.encode())


class PromptBuilder:
    """Builds the prompts for one model.

    `family` is the model family ("": unknown). If `by_suffix` is true, the server takes prefix and suffix separately.
    `context` limits the tokens of prompt and completion together, and `budget` limits those of an editor's prompt.
    """

    def __init__(self, family: str, by_suffix: bool, context: int, budget: int) -> None:
        markers = family_tokens(ANY if by_suffix else family) if by_suffix or family else ()
        self.tokenizer = ByteTokenizer(markers)
        self.context = context
        self.budget = budget
        self._by_suffix = by_suffix
        self._spelling = [bytes((byte,)) for byte in range(256)] + [marker.encode() for marker in markers]
        self._template = find_template(self.tokenizer)
        known = {*markers, *(family_tokens(family) if family else ())}
        self._markers = sorted(known, key=len, reverse=True)
        self._layouts = Layouts()
        self._density: OrderedDict[Owner, float] = OrderedDict()  # bytes per token

    def learn(self, owner: Owner, nbytes: int, tokens: int) -> None:
        """Learn the bytes per token of a document from a prompt whose tokens the server has counted."""
        if owner.document and tokens >= MIN_COUNTED:
            self._density[owner] = nbytes / tokens
            self._density.move_to_end(owner)
            if len(self._density) > MAX_DOCUMENTS:
                self._density.popitem(last=False)

    def build(self, request: CompletionRequest, counted: float = 0.0) -> Prompt:
        """Build the prompt of a request, and update the layout of the request's document. Raises RequestError.

        `counted` is the number of bytes per token in this prompt's text (0: use the number learned for the document).
        """
        density = min(BYTES_PER_TOKEN, MARGIN * (counted or self._density.get(request.owner, BYTES_PER_TOKEN / MARGIN)))
        fills = fills_in(request) and not isinstance(self._template, FimMissing)
        built = build_prompt(
            self.tokenizer,
            self._template if fills and not isinstance(self._template, FimMissing) else None,
            prefix=self._as_text(request.prefix),
            suffix=self._as_text(request.suffix),
            path=request.path,
            snippets=[(snippet.path, self._as_text(snippet.text)) for snippet in request.snippets],
            budget=int(self._room(request) * density),
            layout=self._layouts.of(request.owner),
            offset=request.prefix_offset,
            renew=request.max_tokens == 0,
        )
        notes = list(built.notes)
        if built.trimmed:
            notes.append(f"only about {self._room(request)} tokens near the cursor were sent upstream")
        if request.suffix and not fills:
            notes.append("the upstream server can't fill in: the text after the cursor was not used")
        if fills and self._by_suffix:
            before, behind = self._parts(built.ids)
            return Prompt(before, behind, tuple(notes))
        return Prompt(self._spelled(built.ids), notes=tuple(notes))

    def _room(self, request: CompletionRequest) -> int:
        room = max(self.context // 4, self.context - request.max_tokens)
        return room if request.shape == "raw" else min(room, self.budget)

    def _as_text(self, text: str) -> str:
        """Insert a space into each marker in a text, which the server would otherwise read as a control token."""
        for marker in self._markers:
            if marker in text:
                text = text.replace(marker, f"{marker[0]} {marker[1:]}")
        return text

    def _parts(self, ids: Sequence[int]) -> tuple[str, str]:
        """Return the prefix and the suffix of a prompt, which begin after the first and the second of three markers."""
        first, second, last = (place for place, number in enumerate(ids) if number >= 256)
        return self._spelled(ids[first + 1 : second]), self._spelled(ids[second + 1 : last])

    def _spelled(self, ids: Iterable[int]) -> str:
        return b"".join(map(self._spelling.__getitem__, ids)).decode()
