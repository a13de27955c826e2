"""The class that vLLM loads for `{"method": "custom_class", "model": "codespec_vllm.Proposer"}`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from codespec_vllm.drafting import Drafting
from codespec_vllm.parts import LOG, load_proposers, target_tokenizer, time_drafters
from codespec_vllm.settings import read_settings


class Proposer:
    """A proposer for vLLM 0.32 that drafts by suffix lookup and with a small model that has its own tokenizer."""

    def __init__(self, vllm_config: Any) -> None:
        self._settings, self._config = read_settings(), vllm_config
        self._drafting: Drafting | None = None

    def load_model(self, *_: object, **__: object) -> None:
        """Load the tokenizer and the drafter. The arguments, such as vLLM's target, are not used."""
        target, tokens = self._config.model_config, self._config.speculative_config.num_speculative_tokens
        tokenizer = target_tokenizer(str(target.tokenizer))
        proposers = load_proposers(self._settings, tokenizer)
        costs = time_drafters(proposers)
        self._drafting = Drafting(self._settings, tokenizer, proposers, costs, tokens, target.max_model_len)
        LOG.info("codespec drafts with %s, up to %d tokens", " and ".join(each.name for each in proposers), tokens)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[Any],
        token_ids_cpu: NDArray[Any],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Return draft ids for each row.

        `sampled_token_ids` [rows][...] are the last step's tokens, empty for a row in prefill. The first
        `num_tokens_no_spec[i]` of `token_ids_cpu[i]` are the row's ids, including the sampled ones.
        """
        if self._drafting is None:
            return [[] for _ in sampled_token_ids]
        batch = [token_ids_cpu[place, : num_tokens_no_spec[place]] for place in range(len(sampled_token_ids))]
        try:
            return self._drafting.step(batch, [len(sampled) for sampled in sampled_token_ids])
        except Exception:  # an error would end all of vLLM's requests, and drafts only save time
            LOG.exception("codespec stops drafting until the server restarts")
            self._drafting = None
            return [[] for _ in sampled_token_ids]
