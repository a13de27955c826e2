"""Paths among what a started daemon is told. It begins in a folder of its own, where nobody else's files are, and what
the user wrote counts from the folder that this language server began in.

Knows flags and variables; looks at no file: a name such as `owner/model` never becomes a folder because one is there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from codespec_lsp.daemon_client import DaemonError

FILES = ("config", "token-file", "socket")
MODELS = ("target", "drafter")
PLACES = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME")  # folders that the daemon looks for too
NO_FILES = ("", "auto", "none")
_HUB_ID = re.compile(r"[^./~\\:][^/\\:]*/[^/\\]+")  # as the daemon has it


def with_whole_paths(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line. Raises DaemonError where the folder that they count from is gone."""
    found: list[str] = []
    flag = ""
    for word in words:
        name, equals, value = word.partition("=")
        if flag:
            found.append(_whole(flag, word))
            flag = ""
        elif equals and _is_known(name):
            found.append(f"{name}={_whole(name[2:], value)}")
        else:
            found.append(word)
            flag = name[2:] if _is_known(name) else ""
    return tuple(found)


def with_whole_places(environment: Mapping[str, str]) -> dict[str, str]:
    """The same for variables."""
    known = {name: "socket" for name in PLACES}
    known |= {f"CODESPEC_{name.upper()}": name for name in MODELS}
    known |= {f"CODESPEC_SERVE_{name.upper().replace('-', '_')}": name for name in FILES}
    return {name: _whole(known[name], value) if name in known else value for name, value in environment.items()}


def _is_known(name: str) -> bool:
    return name.startswith("--") and name[2:] in (*FILES, *MODELS)


def is_path(model: str) -> bool:
    """Whether a model is given by its place rather than by a name of the catalogue or `owner/model`."""
    if model.startswith(".") or model.lower().endswith(".gguf"):
        return True
    return ("/" in model or "\\" in model) and not _HUB_ID.fullmatch(model)


def _whole(flag: str, value: str) -> str:
    named = not is_path(value) if flag in MODELS else value in NO_FILES
    if named or os.path.isabs(value) or value.startswith("~"):
        return value
    try:
        return os.path.abspath(value)
    except OSError as error:
        raise DaemonError(
            f"{value} counts from a folder that is gone ({error.strerror}): give the whole path in the settings."
        ) from error
