"""A proposer for vLLM that drafts with codespec's lookup and drafter: `codespec_vllm.Proposer` (see README.md)."""

from codespec_vllm.proposer import Proposer as Proposer
