"""codespec's text drafter as a proposer for vLLM: `codespec_vllm.Proposer` (see README.md)."""

from codespec_vllm.proposer import Proposer as Proposer
