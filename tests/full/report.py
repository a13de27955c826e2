"""Write the numbers of the large runs: one JSON file each under docs/, with date, commit, processor and versions."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from codespec.store.machine import processor

ROOT = Path(__file__).parents[2]


def write_report(name: str, command: str, rows: Any) -> Path:
    """Write docs/NAME.json and return its path."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    file = ROOT / "docs" / f"{name}.json"
    file.parent.mkdir(exist_ok=True)
    head = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip(),
        "processor": processor().label,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    file.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
    return file
