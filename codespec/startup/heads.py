"""What only GPUs and heads need at start, with torch."""

from __future__ import annotations

import torch

from codespec.contract.engine_config import EngineConfig
from codespec.errors import ModelError
from codespec.models.heads.checkpoint import LoadedHead, load_head
from codespec.models.heads.drafting import make_runner
from codespec.models.heads.host import Host
from codespec.models.language_model import LanguageModel
from codespec.models.torch_model import TorchModel
from codespec.proposers.base import Proposer
from codespec.proposers.head import make_proposer
from codespec.user_folders import named_path


def load_target_head(target: LanguageModel, config: EngineConfig) -> LoadedHead:
    """Load the configured head and tap the target for it.

    Raises ModelError if it is invalid or belongs to another target, or if the target's layers can't be read.
    """
    if not isinstance(target, TorchModel):
        mend = "set dtype bfloat16, or leave out head"
        raise ModelError(f"A head can't read the layers of a model with dtype {target.spec.dtype}", mend)
    head = load_head(named_path(config.head), Host.of(target), dtype=target.dtype, device=target.device)
    target.tap(head.config.layers)
    return head


def head_proposer(head: LoadedHead, target: LanguageModel, chunk: int) -> Proposer:
    """Return the proposer of a head of `load_target_head`."""
    assert isinstance(target, TorchModel)
    return make_proposer(make_runner(head, target), chunk)


def gpu_memory(target: LanguageModel) -> int:
    """Return the memory of a target's GPU minus its weights, in bytes."""
    assert isinstance(target, TorchModel)
    whole: int = torch.cuda.mem_get_info(target.device)[1]
    return max(0, whole - target.spec.parameters * target.dtype.itemsize)
