"""Hypothesis strategies for random code-like text and bytes."""

from __future__ import annotations

from hypothesis import strategies as st

_PIECES = (
    "def f(self, x):\n",
    "    return x != 1",
    "\r\n",
    "\n",
    "\t",
    "        ",
    " ",
    "  ",
    "'",
    "\u2581",
    "self.name",
    "<|fim_prefix|>",
    "<|endoftext|>",
    "</s>",
    "<s>",
    "<unk>",
    "<0x0A>",
    "<0x41>",
    "caf\u00e9",
    "cafe\u0301",
    "\u00a0",
    "\U0001f600",
    "\U0001f469\u200d\U0001f467",
    "\u65e5\u672c",
    "\uff26",
    "\u212b",
    "\x00",
    "\ufeff",
    "0123456789",
)
code_text = st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=6)), max_size=12).map("".join)
loose_bytes = st.one_of(
    st.binary(max_size=24),
    st.tuples(code_text, st.binary(max_size=3)).map(lambda pair: pair[0].encode("utf-8") + pair[1]),
)
