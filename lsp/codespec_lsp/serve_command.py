"""The command line and the environment that a daemon is started with.

The daemon starts in a folder of its own, where nobody else's files are. So relative paths are made absolute: they count
from the folder that this language server started in. No file is looked at: a name such as `owner/model` never becomes a
folder because one is there.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

from codespec_lsp.daemon_client import DaemonError

LOG_KB = 1000
FILES = ("config", "token-file", "socket")
MODELS = ("target", "drafter")
FOLDERS = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME")  # variables that the daemon reads
NO_FILES = ("", "auto", "none")
_HUB_ID = re.compile(r"[^./~\\:][^/\\:]*/[^/\\]+")  # as the daemon has it


def serve_command(port: int, arguments: Sequence[str]) -> list[str]:
    """How the daemon is started; `-P`: modules in the folder that it runs in are not ours."""
    words = [sys.executable, "-P", "-m", "codespec", "serve", "--port", str(port)]
    return [*words, "--log-kb", str(LOG_KB), *arguments]


def with_absolute_paths(words: Sequence[str]) -> tuple[str, ...]:
    """A command line's words with absolute paths. Raises DaemonError where the working folder is gone."""
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
    """The same for environment variables."""
    known = {name: "socket" for name in FOLDERS}
    known |= {f"CODESPEC_{name.upper()}": name for name in MODELS}
    known |= {f"CODESPEC_SERVE_{name.upper().replace('-', '_')}": name for name in FILES}
    return {name: _absolute(known[name], value) if name in known else value for name, value in environment.items()}


def _is_known(name: str) -> bool:
    return name.startswith("--") and name[2:] in (*FILES, *MODELS)


def is_path(model: str) -> bool:
    """Whether a model is given by its path rather than by a name of the catalogue or `owner/model`."""
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
            f"{value} counts from a folder that is gone ({error.strerror}): give the whole path in the settings."
        ) from error
