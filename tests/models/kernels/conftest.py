"""These tests run Triton's kernels in its interpreter, which must be chosen before Triton is imported: a process of
their own collects them (tests/models/test_kernels.py), any other leaves them out.
"""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
