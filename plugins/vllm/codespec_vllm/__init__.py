"""codespec's text drafter as a proposer for vLLM: `codespec_vllm.Proposer` (see README.md)."""

from __future__ import annotations

from codespec_vllm.proposer import Proposer

__all__ = ["Proposer"]
