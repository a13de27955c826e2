"""Whether a file's text may be taken as context, by its path. Knows the list of names; reads no file."""

from __future__ import annotations

import re
from fnmatch import translate

from codespec.config import SECRET_FILES

_SECRET = re.compile("|".join(translate(glob) for glob in SECRET_FILES), re.IGNORECASE)


def is_secret(path: str) -> bool:
    """Whether a path's last part (of a URI as well) is one that secrets are kept under."""
    return bool(_SECRET.fullmatch(re.split(r"[/\\]", path)[-1]))
