"""A process that holds a part of a model: loads it and repeats what the first process does with its own. Knows no
engine; writes nothing.
"""

from __future__ import annotations

import json
import sys

from codespec.bounded_json import parse_json
from codespec.config import EngineConfig
from codespec.errors import CodespecError, ConfigError
from codespec.models.language_model import LanguageModel
from codespec.models.loader import find_device, load_model
from codespec.models.team import STOP, Team, closed_on_failure, join_team, start_team

COMMAND = ("-m", "codespec.models.follower")
CALLS = ("forward", "allocate", "admit", "fork", "capture", "use")  # of LanguageModel


def load_split(config: EngineConfig) -> LanguageModel:
    """The target, of which this process holds a share; the others are started and end with this one. ConfigError for a
    target that is to be padded.
    """
    if config.target_shape != "own":
        raise ConfigError("A target that several processes hold can't be padded: leave out target_shape.")
    device, exact = find_device(config.device).type, config.mode == "exact"
    told = {"name": config.target, "dtype": config.dtype, "exact": exact}
    team = start_team(config.tensor_parallel, device, COMMAND, json.dumps(told).encode())
    with closed_on_failure(team):
        return load_model(config.target, device=device, dtype=config.dtype, exact=exact, team=team)


def follow(team: Team, name: str, device: str, dtype: str, exact: bool) -> None:
    """Loads a share and serves until the first process stops."""
    model = load_model(name, device=device, dtype=dtype, exact=exact, team=team)
    while True:
        call, arguments = team.listen()
        if call == STOP:
            break
        assert call in CALLS, call
        getattr(model, call)(*arguments)
    team.close()


def main(arguments: list[str]) -> None:
    """Rank, size, meeting place and device as arguments; the model's settings as a line of JSON on the input."""
    rank, size, meeting, device = arguments
    settings = parse_json(sys.stdin.readline().encode())
    try:
        follow(join_team(int(rank), int(size), meeting, device), device=device, **settings)
    except CodespecError as error:
        raise SystemExit(f"codespec, process {rank} of {size}: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
