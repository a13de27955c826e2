"""Names what a measurement depends on, so that what was kept of it is read only where it still holds.

Knows this machine, torch and its threads; what else counts is the caller's business.
"""

from __future__ import annotations

import hashlib
import json
import platform

import torch

from codespec import __version__
from codespec.models.processor import processor


def fingerprint(*facts: object) -> str:
    """Of this machine and of `facts`, plain values or what `str` tells apart: 24 hexadecimal digits."""
    machine = [__version__, platform.node(), processor().label, torch.__version__, torch.get_num_threads()]
    spelled = json.dumps([*machine, *facts], sort_keys=True, default=str)
    return hashlib.blake2b(spelled.encode(), digest_size=12).hexdigest()
