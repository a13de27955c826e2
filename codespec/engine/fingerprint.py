"""Fingerprint everything that a measurement depends on, so that a cached result is used only where it is valid.

Covers the machine, torch and its threads; the caller adds the rest.
"""

from __future__ import annotations

import hashlib
import json
import platform

import torch

from codespec import __version__
from codespec.models.processor import processor


def fingerprint(*facts: object) -> str:
    """Return 24 hexadecimal digits for this machine and `facts` (plain values, or objects distinct by `str`)."""
    machine = [__version__, platform.node(), processor().label, torch.__version__, torch.get_num_threads()]
    spelled = json.dumps([*machine, *facts], sort_keys=True, default=str)
    return hashlib.blake2b(spelled.encode(), digest_size=12).hexdigest()
