"""Decide which files are excluded by git's rules or by .codespecignore files.

If git is installed and accepts the repository, git decides which files are ignored (see `git_ignore`). Without git, and
for .codespecignore files, the pathspec library matches the patterns. The language server and the selection of training
data use the same rules. Ignore files are read within size limits and cached until they change. To bound the matching
time, a pattern whose literal parts are not in the path is skipped, and a pattern whose stars could match the path in
too many ways is treated as matching.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pathspec.patterns.gitignore.base import GitIgnorePatternError
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from codespec.exclusions.git_ignore import GIT_TIMEOUT_S, GitIgnore, state_of, unfollowable
from codespec.files import NotUtf8, Unreadable, decode_text, read_regular, without_mark

GITIGNORE, CODESPECIGNORE = ".gitignore", ".codespecignore"
MAX_IGNORE_BYTES = 256 << 10  # in all ignore files that apply to one file
MAX_FOLDERS = 100  # depth of a file below the repository's folder
MAX_KEPT_BYTES = 4 * MAX_IGNORE_BYTES  # in all cached ignore files
MAX_WAYS = 1_000_000  # in which the stars of one file's patterns could match a path
MAX_CLASSES = 2000  # patterns of one file that have a [class] or a backslash
_LITERAL = re.compile(r"[^*?/!]+")
_STARS = re.compile(r"\*+")
_CLASS = re.compile(r"\[:(\w+):\]")
_MANY_STARS = re.compile(r"(?<![^/!])\*{3,}(?![^/])")
_ESCAPED = re.compile(r"\[([!^]?)([^\]\\]*\\.(?:[^\]\\]|\\.)*)\]")
# The POSIX classes, which pathspec doesn't support, as ranges that neither begin with `!` nor contain `]`.
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \t",
    "cntrl": "\0-\x1f\x7f",
    "digit": "0-9",
    "graph": '"-~!',
    "lower": "a-z",
    "print": " -~",
    "punct": ":-@[^-`{-~!-.",
    "space": " \t-\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
_EXCLUDES_FILE = re.compile(r"^\s*excludesfile\s*=\s*\"?([^\"\n]+?)\"?\s*$", re.MULTILINE | re.IGNORECASE)


class Pattern:
    """One line of an ignore file, which matches paths relative to the folder of the ignore file."""

    def __init__(self, line: str) -> None:
        body = line.rstrip(" ")
        self.negated = body.startswith("!")
        self._line = line
        self._folders_only = body.endswith("/")
        self._open_end = body.rstrip("/").endswith("**") or body.strip("!/") == "*"
        self.has_classes = "[" in body or "\\" in body
        self._literals = [] if self.has_classes else _LITERAL.findall(body)
        self._stars = len(_STARS.findall(body)) + ("/" not in body.strip("/"))

    @cached_property
    def _regex(self) -> re.Pattern[str] | None:
        """The regular expression, or None for a comment or a pattern that matches nothing."""
        ours = contextlib.suppress(GitIgnorePatternError, re.error, RecursionError, OverflowError)
        with ours, warnings.catch_warnings(action="ignore"):  # re warns about brackets in a class
            text = _CLASS.sub(lambda name: _CLASSES.get(name[1], name[0]), self._line)
            text = _ESCAPED.sub(_unescaped, _MANY_STARS.sub("**", text.replace("\\/", "/")))
            compiled = GitIgnoreSpecPattern(text)
            return compiled.regex if compiled.include is not None else None
        return None

    def ways(self, path: str) -> int:
        """Return an upper bound for the number of ways in which the stars can match a path (0: no match)."""
        at = 0
        for literal in self._literals:
            at = path.find(literal, at) + len(literal)
            if at < len(literal):
                return 0
        return math.comb(len(path) + self._stars, self._stars)

    def match(self, path: str, is_folder: bool) -> bool:
        """Return whether the pattern matches a `/`-separated path itself, not only a parent folder."""
        if self._regex is None or (self._folders_only and not is_folder):
            return False
        text = path + "/" if self._folders_only else path
        found = self._regex.search(text)
        if found is None or self._open_end:
            return found is not None
        return found.groupdict().get("ps_d") is None or found.end() == len(text)


def _unescaped(found: re.Match[str]) -> str:
    """Return a character class without unsupported backslashes. An escaped `]` is moved to the front of the class."""
    start, body = found.groups()
    front = "]" if "\\]" in body else ""
    rest = re.sub(r"\\(.)", lambda each: each[1].strip("]"), body)
    return f"[{start}{front}{rest}]"


class Patterns:
    """The patterns of one ignore file."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._patterns = [Pattern(line) for line in lines if line.strip(" /") and not line.startswith("#")]
        if sum(pattern.has_classes for pattern in self._patterns) > MAX_CLASSES:
            raise Unreadable(f"more than {MAX_CLASSES} patterns with a [class] or a backslash")

    def __len__(self) -> int:
        return len(self._patterns)

    def match(self, path: str, is_folder: bool) -> Pattern | None:
        """Return the last pattern that matches a `/`-separated path, or None."""
        ways = 0
        for pattern in reversed(self._patterns):
            more = pattern.ways(path)
            ways += more
            if more and (ways > MAX_WAYS or pattern.match(path, is_folder)):
                return pattern
        return None


@dataclass(frozen=True, slots=True)
class IgnoreFile:
    """A parsed ignore file."""

    path: Path
    folder: Path  # to which the patterns are relative
    seen: tuple[int, ...]  # value of `state_of` before the read
    size: int
    patterns: Patterns


class IgnoreFiles:
    """Finds the ignore file that excludes a file. Parsed ignore files are cached until they change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[Path, IgnoreFile] = {}
        self._git = GitIgnore()

    def close(self) -> None:
        self._git.close()

    def reason(self, file: Path, roots: Collection[Path]) -> str:
        """Return a sentence that says why a file is excluded, or "" if the file is not excluded. Blocks.

        Ignore files are read from the file's folder up to the root of its repository, else up to the workspace folder
        in `roots`, else from the file's folder only. A file with several paths through symbolic links is excluded if
        any of the paths is excluded.
        """
        around = {*roots, *map(_resolved, roots)}
        for place in _places(file):
            reason = self.reason_below(repository_of(place, around) or place.parent, place)
            if reason:
                return reason
        return ""

    def reason_below(self, top: Path, file: Path) -> str:
        """Like `reason`, but use the ignore files from `top` down to the file, on a path without symbolic links."""
        folders = [parent for parent in file.parents if parent.is_relative_to(top)]
        if len(folders) > MAX_FOLDERS:
            return f"{file.name} lies in more than {MAX_FOLDERS} folders, so it is not completed."
        try:
            source = self._git.source(top, file) if os.path.lexists(top / ".git") else None
            if source is None:
                gits = [(folder / GITIGNORE, folder) for folder in folders]
                source = self._named_by([*gits, *((each, top) for each in _outer_files(top))], file, folders)
            name = source or self._named_by([(folder / CODESPECIGNORE, folder) for folder in folders], file, folders)
        except TimeoutError:
            slow = f"git took more than {GIT_TIMEOUT_S:g} s"
            return f"{file.name} is not completed, because {slow}: check the disk of {top}."
        except Unreadable as error:
            return f"{file.name} is not completed, because {error}: fix or remove it."
        shown = Path(name).name if Path(name).name in (GITIGNORE, CODESPECIGNORE) else name
        return f"{file.name} is excluded by {shown}." if name else ""

    def _named_by(self, places: Sequence[tuple[Path, Path]], file: Path, folders: Sequence[Path]) -> str:
        """Return the path of the ignore file that excludes the file or one of its folders, or "". Raises Unreadable."""
        # The outermost folder is checked first, because a file in an excluded folder can't be re-included.
        files = list[IgnoreFile]()
        for path, folder in places:
            files += self._find(path, folder, MAX_IGNORE_BYTES - sum(each.size for each in files))
        for path in [*reversed(folders[:-1]), file] if files else ():
            for each in files:
                if each.folder in path.parents:
                    pattern = each.patterns.match(path.relative_to(each.folder).as_posix(), path != file)
                    if pattern is not None and not pattern.negated:
                        return str(each.path)
                    if pattern is not None:
                        break
        return ""

    def _find(self, path: Path, folder: Path, most: int) -> list[IgnoreFile]:
        """Return the ignore file at a path as a list, or [] if there is no file. Raises Unreadable."""
        seen = state_of(path)
        if seen is None:
            return []
        known = self._read.get(path)
        try:
            if known is None or (known.seen, known.folder) != (seen, folder):
                data = read_regular(path, MAX_IGNORE_BYTES)
                known = IgnoreFile(path, folder, seen, len(data), Patterns(_lines(data)))
                with self._lock:
                    if sum(each.size for each in self._read.values()) + len(data) > MAX_KEPT_BYTES:
                        self._read.clear()
                    self._read[path] = known
            if known.size > most:
                raise Unreadable(f"with the other ignore files, longer than {MAX_IGNORE_BYTES >> 10} KiB")
        except OSError as error:
            raise unfollowable(path, error) from error
        return [known]


def _lines(data: bytes) -> list[str]:
    """Split an ignore file into lines. Raises Unreadable for the byte-order mark of UTF-16 or UTF-32."""
    try:
        text = without_mark(data).decode("utf-8", "surrogateescape")  # like the names of files
    except NotUtf8 as error:  # for example UTF-16 by PowerShell, in which no pattern would match
        raise Unreadable(str(error)) from error
    return [line.removesuffix("\r") for line in text.split("\n")]


def _places(file: Path) -> list[Path]:
    """Return a file's outermost linked parent (or the file), its path in the resolved folder, and its resolved path."""
    link = next((each for each in reversed(file.parents) if os.path.islink(each)), file)
    folder = _resolved(file.parent)
    return list(dict.fromkeys([link, folder / file.name, _resolved(file)]))


def _resolved(path: Path) -> Path:
    with contextlib.suppress(OSError, ValueError):  # for an invalid name
        return Path(os.path.realpath(path))
    return path


def _outer_files(top: Path) -> Iterator[Path]:
    """Yield the ignore files outside the working tree that git would use."""
    folder = top / ".git"
    if not os.path.lexists(folder):
        return
    with contextlib.suppress(OSError, ValueError):  # not a linked worktree
        folder = top / decode_text(read_regular(folder, 4096)).removeprefix("gitdir:").strip()
        folder = folder / decode_text(read_regular(folder / "commondir", 4096)).strip()
    yield folder / "info" / "exclude"
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "git"
    named = list[str]()
    for config in (folder / "config", Path.home() / ".gitconfig", home / "config"):
        with contextlib.suppress(OSError, ValueError):
            named += _EXCLUDES_FILE.findall(decode_text(read_regular(config, MAX_IGNORE_BYTES)))
    yield top / os.path.expanduser(named[0]) if named else home / "ignore"


def repository_of(file: Path, roots: Collection[Path]) -> Path | None:
    """Return the file's repository, else the outermost parent folder in `roots`, else None. Reads the disk."""
    repository = next((parent for parent in file.parents if os.path.exists(parent / ".git")), None)
    if repository is not None:
        return repository
    around = [root for root in roots if file.is_relative_to(root)]
    return min(around, key=lambda root: len(root.parts)) if around else None
