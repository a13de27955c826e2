"""Files whose text is never taken as context, by their paths. Knows DESIGN.md's list; reads no file."""

from __future__ import annotations

import re
from fnmatch import translate

GLOBS = (
    *(".env*", "*.pem", "*.key", "*.crt", "*.cert", "*.p12", "*.pfx", "id_rsa*", "id_ed25519*", ".npmrc", ".pypirc"),
    *(".netrc", "secrets.*", "credentials*", "*.kdbx", ".dev.vars"),
)
_SECRET = re.compile("|".join(translate(glob) for glob in GLOBS), re.IGNORECASE)


def is_secret(path: str) -> bool:
    """Whether a path's last part (of a URI as well) is one that secrets are kept under."""
    return bool(_SECRET.fullmatch(re.split(r"[/\\]", path)[-1]))
