"""`python -m tools.check_vsix FILE`: report content that must not be in a packed extension.

Reports secrets, paths of the build machine, unexpected files, and more bytes than a gallery accepts. Also checks
the wheel inside the extension.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from codespec.exclusions.secrets import is_secret

MAX_BYTES = 34_000_000
EXPECTED = re.compile(
    r"(\[Content_Types\]\.xml|extension\.vsixmanifest|extension/("
    r"package\.json|readme\.md|changelog\.md|LICENSE(\.txt)?|dist/extension\.js(\.LEGAL\.txt)?|media/[\w-]+\.png|"
    r"walkthrough/[\w-]+\.(md|txt)|server/(codespec(_native|_weights|_upstream)?-[\w.+-]+\.whl|requirements-base\.txt)))",
    re.IGNORECASE,
)
SECRETS = {
    "a private key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{16}"),
    "an access token": re.compile(rb"\b(gh[pousr]_\w{30}|hf_[A-Za-z]{30}|npm_\w{30}|AKIA[A-Z0-9]{16}|pypi-AgE\w{30})"),
    "an address with a password": re.compile(rb"\bhttps?://[^\s/:@\"'`]+:[^\s/@\"'`{}<]+@[\w.-]+\.\w"),
}
HOMES = re.compile(rb"(?<![\w.~])(/(?:home|Users)/[a-z][\w.-]*/|/root/|[A-Z]:\\\\?Users\\)")
# Example paths in pages and tests.
NOBODYS = re.compile(rb"/(?:home|Users)/(?:me|you|user|name|someone)/")


def faults_of(vsix: Path, built_in: Sequence[Path] = ()) -> list[str]:
    """Return one sentence for each fault; `built_in` are folders of the machine that built the extension."""
    faults = []
    size = vsix.stat().st_size
    if size > MAX_BYTES:
        faults.append(f"it has {size / 1e6:.1f} MB, and the limit is {MAX_BYTES / 1e6:.0f} MB")
    here = [str(folder).encode() for folder in built_in if len(folder.parts) > 2]
    for name, data in _files(vsix.read_bytes()):
        if "!" not in name and not EXPECTED.fullmatch(name):
            faults.append(f"{name} is not expected in it")
        if is_secret(name):
            faults.append(f"{name} has the name of a secret file")
        faults += [f"{name} contains {kind}" for kind, pattern in SECRETS.items() if pattern.search(data)]
        faults += [f"{name} contains {found!r}, a path on one machine" for found in _paths(data, here)]
    return faults


def _files(data: bytes, within: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield every file, including those inside a wheel as `wheel!name`."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            inner = archive.read(entry)
            yield within + entry.filename, inner
            if entry.filename.endswith(".whl"):
                yield from _files(inner, f"{within}{entry.filename}!")


def _paths(data: bytes, here: Sequence[bytes]) -> set[str]:
    found = {match[0] for match in HOMES.finditer(data) if not NOBODYS.match(data, match.start())}
    return {path.decode("utf-8", "replace") for path in (*found, *(folder for folder in here if folder in data))}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return exit code 0 if there is no fault, else 1 after printing a line for each."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        print("vsix: name one packed extension: `python -m tools.check_vsix FILE`.", file=sys.stderr)
        return 1
    root = Path(__file__).resolve().parent.parent
    faults = faults_of(Path(words[0]), (root, Path.home(), Path(tempfile.gettempdir()) / "codespec-"))
    for fault in faults:
        print(f"vsix: {fault}: correct its packaging in editors/vscode.", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
