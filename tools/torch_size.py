"""Report how many bytes pip will download for torch and its dependencies.

pip finds the files with the user's own settings and reports them. If the index does not report a length, the size
is estimated from the names.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

UNKNOWN = "about 200 MB for a CPU build, about 3 GB for a CUDA build with its libraries"
_ANSWER_SECONDS = 10


def announce(python: Path, requirement: str, constraints: Path) -> str:
    """Return one line on the download for `requirement`, or "" if nothing is missing."""
    report = _report(python, requirement, constraints)
    if report is None:
        return f"{requirement}: {UNKNOWN}, from your package index"
    return describe(requirement, [item["download_info"]["url"] for item in report["install"]])


def describe(requirement: str, urls: list[str]) -> str:
    """Return the announcement for the files at `urls`, querying their lengths."""
    if not any(_is_torch(url) for url in urls):
        return ""
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(file_size, urls))
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        return f"{requirement} and what it needs: {len(urls)} files, {sum(known) / 1e6:,.0f} MB"
    return f"{requirement} and what it needs: {len(urls)} files, {_estimate(urls)}"


def file_size(url: str) -> int | None:
    """Return the length in bytes of a file or URL, or None if unknown."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        return path.stat().st_size if path.is_file() else None
    try:
        question = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(question, timeout=_ANSWER_SECONDS) as reply:
            length = reply.headers.get("Content-Length")
    except (OSError, ValueError):
        return None
    return int(length) if length else None


def _report(python: Path, requirement: str, constraints: Path) -> dict[str, Any] | None:
    """Return pip's report of what it would install, or None if pip fails."""
    pip: list[str | Path] = [python, "-m", "pip", "install", "-qq", "--dry-run", "--report", "-"]
    done = subprocess.run([*pip, "-c", constraints, requirement], capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _is_torch(url: str) -> bool:
    return Path(unquote(urlsplit(url).path)).name.startswith("torch-")


def _estimate(urls: list[str]) -> str:
    """Return an estimate from the names alone: a CUDA build includes NVIDIA's libraries."""
    if any("nvidia" in url or "cuda" in url for url in urls):
        return "about 3 GB"
    return "about 200 MB"
