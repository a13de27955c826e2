"""A tensor-parallel worker: loads its share of a model and repeats the first process's calls on it."""

from __future__ import annotations

import json
import sys

from codespec.bounded_json import parse_json
from codespec.contract.engine_config import EngineConfig
from codespec.errors import CodespecError, ConfigError
from codespec.models.language_model import LanguageModel
from codespec.models.loader import find_device, load_model
from codespec.models.parallel.group import STOP, TensorParallelGroup, join_group, start_group

COMMAND = ("-m", "codespec.models.parallel.worker")
CALLS = ("forward", "allocate", "admit", "fork", "capture", "use")  # of LanguageModel


def load_split(config: EngineConfig) -> LanguageModel:
    """Start the workers and load this process's share of the target. The workers exit with this process.

    Raise ConfigError if `target_shape` pads the target.
    """
    if config.target_shape != "own":
        raise ConfigError("A target that is split over processes can't be padded", "leave out target_shape")
    device, exact = find_device(config.device).type, config.mode == "exact"
    settings = {"name": config.target, "dtype": config.dtype, "exact": exact}
    group = start_group(config.tensor_parallel, device, COMMAND, json.dumps(settings).encode())
    try:
        return load_model(config.target, device=device, dtype=config.dtype, exact=exact, tp_group=group)
    except BaseException:  # the workers would wait for calls
        group.close()
        raise


def serve(group: TensorParallelGroup, name: str, device: str, dtype: str, exact: bool) -> None:
    """Load a share and repeat calls until the first process stops."""
    model = load_model(name, device=device, dtype=dtype, exact=exact, tp_group=group)
    while True:
        call, arguments = group.listen()
        if call == STOP:
            break
        assert call in CALLS, call
        getattr(model, call)(*arguments)
    group.close()


def main(arguments: list[str]) -> None:
    """Serve with rank, size, rendezvous file and device as arguments; the model's settings are a JSON line on stdin."""
    rank, size, rendezvous, device = arguments
    settings = parse_json(sys.stdin.readline().encode())
    try:
        serve(join_group(int(rank), int(size), rendezvous, device), device=device, **settings)
    except CodespecError as error:
        raise SystemExit(f"codespec, process {rank} of {size}: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
