"""Lay out a prompt for a server with an unknown tokenizer, as bytes and the markers of a model family.

`text.fim` sizes and arranges prompts in token ids. Here an id is a byte or a marker, so prompts get the same layout as
for a model on this machine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codespec.api.types import CompletionRequest, Owner, fills_in
from codespec.text.fim import Layouts, build_prompt
from codespec.text.fim_templates import FimMissing, family_tokens, find_template
from codespec.text.tokenizer import TextTokenizer

BYTES_PER_TOKEN = 3.0  # of code, a low estimate
MARGIN = 0.9  # of the bytes per token that were counted: the next part of a document may have fewer
MIN_COUNTED = 64  # tokens of a prompt from which bytes per token are learned
MAX_DOCUMENTS = 256  # documents whose bytes per token are kept
ANY = "piped"  # a family without file separators, for servers with `suffix`, which get the prompt without markers


class ByteTokenizer(TextTokenizer):
    """A vocabulary of 256 bytes and a family's markers. It is not read from a file, as the base's constructor does."""

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
        """Return the bytes of a text."""
        return list(text.encode("utf-8"))

    def encode_inside(self, text: str, *, begins: bool = False) -> list[int]:
        """Return the bytes of a text."""
        return self.encode(text)

    def spell(self, pieces: Sequence[bytes]) -> list[list[int]]:
        """Return the bytes of each piece."""
        return [list(piece) for piece in pieces]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt for the server. `suffix` is "" unless the server supports it. `notes` are for the client."""

    text: str
    suffix: str = ""
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the text and the suffix."""
        return len(self.text.encode()) + len(self.suffix.encode())


class PromptBuilder:
    """Builds the prompts for one model.

    `family` is the model family ("": unknown). With `by_suffix`, the server accepts prefix and suffix separately.
    `context` limits the tokens of prompt and completion together, `budget` those of an editor's prompt.
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
        """Return the prompt of a request, and update the layout of its document. Raises RequestError.

        `counted` are the bytes per token of this prompt's text, if a server has counted them; 0: those of its document.
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
        """Insert a space into each marker in a text; otherwise the server would read it as a control token."""
        for marker in self._markers:
            if marker in text:
                text = text.replace(marker, f"{marker[0]} {marker[1:]}")
        return text

    def _parts(self, ids: Sequence[int]) -> tuple[str, str]:
        """Return prefix and suffix of a prompt, which three markers separate."""
        first, second, last = (place for place, number in enumerate(ids) if number >= 256)
        return self._spelled(ids[first + 1 : second]), self._spelled(ids[second + 1 : last])

    def _spelled(self, ids: Iterable[int]) -> str:
        return b"".join(map(self._spelling.__getitem__, ids)).decode()
