"""`fake_wheel.py FOLDER PROGRAM`: write a wheel without dependencies whose one script, `codespec`, runs PROGRAM.

It tests an extension's installation of a wheel without a package index.
"""

from __future__ import annotations

import stat
import sys
import zipfile
from pathlib import Path

NAME = "e2e_server-1"
METADATA = "Metadata-Version: 2.1\nName: e2e-server\nVersion: 1\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: e2e\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make(folder: Path, program: str) -> Path:
    """Write the wheel and return its path."""
    files = {
        f"{NAME}.data/scripts/codespec": f'#!/bin/sh\nexec "{program}" "$@"\n',
        f"{NAME}.dist-info/METADATA": METADATA,
        f"{NAME}.dist-info/WHEEL": WHEEL,
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{NAME}.dist-info/RECORD"))
    wheel = folder / f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, f"{NAME}.dist-info/RECORD": record}.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFREG | (0o755 if "/scripts/" in name else 0o644)) << 16
            archive.writestr(entry, text)
    return wheel


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), sys.argv[2]))
