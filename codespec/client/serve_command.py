"""Build the command line and the environment for starting a daemon.

The daemon runs in its own folder, which has no untrusted files. So relative paths are made absolute, based on the
language server's working folder. The file system is not checked: `owner/model` stays a model name even if a folder with
that path exists.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

from codespec.errors import DaemonError

LOG_KB = 1000
FILES = ("config", "token-file", "upstream-token-file", "socket", "keys", "metrics-token-file", "audit-log")
MODELS = ("target", "drafter")
FOLDERS = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME")  # variables that the daemon reads
NO_FILES = ("", "auto", "none")
_HUB_ID = re.compile(r"[^./~\\:][^/\\:]*/[^/\\]+")  # the same as in the daemon


def serve_command(port: int, arguments: Sequence[str]) -> list[str]:
    """Return the command that starts the daemon. `-P` prevents imports from its working folder."""
    words = [sys.executable, "-P", "-m", "codespec", "serve", "--port", str(port)]
    return [*words, "--log-kb", str(LOG_KB), *arguments]


def with_absolute_paths(words: Sequence[str]) -> tuple[str, ...]:
    """Make the paths in a command line absolute. Raises DaemonError if the working folder is gone."""
    found: list[str] = []
    flag = ""
    for word in words:
        name, equals, value = word.partition("=")
        if flag:
            found.append(_absolute(flag, word))
            flag = ""
        elif equals and _is_known(name):
            found.append(f"{name}={_absolute(name[2:], value)}")
        else:
            found.append(word)
            flag = name[2:] if _is_known(name) else ""
    return tuple(found)


def absolute_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Make the paths in environment variables absolute. Raises DaemonError if the working folder is gone."""
    known = {name: "socket" for name in FOLDERS}
    known |= {f"CODESPEC_{name.upper()}": name for name in MODELS}
    known |= {f"CODESPEC_SERVE_{name.upper().replace('-', '_')}": name for name in FILES}
    return {name: _absolute(known[name], value) if name in known else value for name, value in environment.items()}


def _is_known(name: str) -> bool:
    return name.startswith("--") and name[2:] in (*FILES, *MODELS)


def is_path(model: str) -> bool:
    """Return whether a model is given by its path rather than by a catalogue name or `owner/model`."""
    if model.startswith(".") or model.lower().endswith(".gguf"):
        return True
    return ("/" in model or "\\" in model) and not _HUB_ID.fullmatch(model)


def _absolute(flag: str, value: str) -> str:
    named = not is_path(value) if flag in MODELS else value in NO_FILES
    if named or os.path.isabs(value) or value.startswith("~"):
        return value
    try:
        return os.path.abspath(value)
    except OSError as error:
        raise DaemonError(
            f"{value} counts from a folder that is gone ({error.strerror})", "give the whole path in the settings"
        ) from error
