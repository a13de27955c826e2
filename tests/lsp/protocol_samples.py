"""LSP messages generated from lsprotocol's metadata, and malformed variants as old or careless clients send them.

Each variant has one field absent, null, of another type, or nonsense.
"""

from __future__ import annotations

import copy
import enum
import types as python_types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs
from lsprotocol import types

Path = tuple[str | int, ...]
HUGE = 2**32 + 1


@dataclass(frozen=True)
class Variant:
    """A message with one field changed; `optional` if the protocol lets that field be absent."""

    path: Path
    kind: str  # absent, null, pair, float, huge, nonsense
    optional: bool
    params: Any

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))} {self.kind}"


def params_of(method: str) -> type:
    """Return lsprotocol's class of a method's parameters."""
    hint = get_type_hints(types.METHOD_TO_TYPES[method][0], vars(types))["params"]
    return next(each for each in (*get_args(hint), hint) if attrs.has(each))


def sample(hint: Any, values: Mapping[str, Any], name: str = "") -> Any:
    """Return a JSON value with every field of a class; `values` gives leaves by name."""
    if name in values:
        return copy.deepcopy(values[name])
    if attrs.has(hint):
        hints = get_type_hints(hint, vars(types))
        return {camel(each.name): sample(hints[each.name], values, camel(each.name)) for each in attrs.fields(hint)}
    origin = get_origin(hint)
    if origin in (Union, python_types.UnionType):
        return sample(next(each for each in get_args(hint) if each is not type(None)), values)
    if origin is not None and issubclass(origin, Mapping):
        return {}
    if origin is not None and issubclass(origin, Sequence):
        return [sample(get_args(hint)[0], values)]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint)).value
    return {bool: True, int: 1, float: 1.0, str: "x"}.get(hint, "x")


def variants(hint: Any, whole: Any) -> Iterator[Variant]:
    """Yield the message with each of its fields changed in each way that fits its type."""
    for path, inner, optional in _fields(hint, whole, ()):
        value = _at(whole, path)
        ways: dict[str, Any] = {"null": None, "nonsense": [{"odd": []}]}
        if inner is types.Range:
            ways["pair"] = [value["start"], value["end"]]
        if isinstance(value, int) and not isinstance(value, bool):
            ways |= {"float": float(value), "huge": HUGE}
        yield Variant(path, "absent", optional, _changed(whole, path))
        for kind, other in ways.items():
            yield Variant(path, kind, optional, _changed(whole, path, other))


def _fields(hint: Any, value: Any, path: Path) -> Iterator[tuple[Path, Any, bool]]:
    hint = _without_none(hint)
    if attrs.has(hint) and isinstance(value, dict):
        hints = get_type_hints(hint, vars(types))
        for field in attrs.fields(hint):
            here = (*path, camel(field.name))
            yield here, _without_none(hints[field.name]), type(None) in get_args(hints[field.name])
            yield from _fields(hints[field.name], value[camel(field.name)], here)
    elif isinstance(value, list) and value and get_args(hint):
        yield from _fields(get_args(hint)[0], value[0], (*path, 0))


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, python_types.UnionType):
        return next(each for each in get_args(hint) if each is not type(None))
    return hint


def _at(value: Any, path: Path) -> Any:
    for name in path:
        value = value[name]
    return value


def _changed(whole: Any, path: Path, *other: Any) -> Any:
    """Return the message with another value at the path, or without the field if there is no value."""
    params = copy.deepcopy(whole)
    above = _at(params, path[:-1])
    if other:
        above[path[-1]] = other[0]
    else:
        del above[path[-1]]
    return params


def camel(name: str) -> str:
    """Return a field's name in the protocol's spelling."""
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(part.title() for part in rest)
