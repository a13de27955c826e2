"""Fuzz the real commands with damaged model folders, GGUF files and adapters: expect one error sentence or a working
model.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.processes import user_environment
from tests.full.fuzzing import NESTED, Finding, damaged, scratched, turns

SECONDS = 600
MEMORY = 1 << 30  # bytes that a command may use beyond its peak for an intact folder
WEIGHTS = "model.safetensors"
JSONS = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
SIZES = [0, 1, 3, 2**16, 2**31, 2**62, 10**30, -1, 1e9, 0.5]


def with_json(file: Path, chance: random.Random) -> None:
    """Replace some values of a JSON file, preferably a configuration's sizes."""
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError):
        return
    numbers = [name for name, inner in value.items() if isinstance(inner, int)] if isinstance(value, dict) else []
    if numbers and chance.random() < 0.5:
        value[chance.choice(numbers)] = chance.choice(SIZES)
    else:
        value = damaged(value, chance, chance.choice([1, 1, 2, 6]))
    text = json.dumps(value)
    file.write_text(text if chance.random() < 0.95 else text.replace("{", '{"a":' + NESTED + ",", 1))


def with_header(file: Path, chance: random.Random) -> None:
    """Damage the header of a safetensors file."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    try:  # an earlier damage may have taken the header
        header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    except ValueError:
        return
    if not isinstance(header, dict):
        return
    for name in chance.sample(sorted(header), k=min(2, len(header))):
        entry = header[name]
        if isinstance(entry, dict) and isinstance(entry.get("shape"), list) and chance.random() < 0.7:
            entry["shape"] = [chance.choice([*SIZES, size]) for size in entry["shape"]]
        else:
            header[name] = damaged(entry, chance)
    spelled = json.dumps(header).encode()
    length = len(spelled) if chance.random() < 0.8 else chance.choice([2**63, 2**40, 0, 7])
    file.write_bytes(length.to_bytes(8, "little") + spelled + rest)


def with_bytes(file: Path, chance: random.Random) -> None:
    """Scratch, cut or empty a file, or replace it with something that is not a regular file."""
    what = chance.random()
    if what < 0.6:
        file.write_bytes(scratched(file.read_bytes(), chance))
    elif what < 0.8:
        data = file.read_bytes()
        file.write_bytes(data[: chance.randrange(len(data) + 1)])
    else:
        file.unlink()
        chance.choice([lambda: None, file.mkdir, lambda: os.mkfifo(file), lambda: file.symlink_to("/dev/zero")])()


Damage = Callable[[Path, random.Random], None]


class Fuzzer:
    """Damages copies of a folder, a GGUF file and an adapter of that folder."""

    def __init__(self, folder: Path, gguf: Path, adapter: Path, home: Path, chance: random.Random) -> None:
        self.folder, self.gguf, self.adapter, self.home, self.chance = folder, gguf, adapter, home, chance
        self.source = home / "a.py"
        self.source.write_text("def f(x):\n    return x\n" * 20)
        self.codes: dict[int, int] = {}

    def run(self) -> None:
        """Fuzz until the time is over. Raise Finding."""
        sound = {heavy: self.peak(self.command(self.folder, heavy))[3] for heavy in (False, True)}
        for _ in turns():
            place, heavy = self.damaged()
            try:
                code, out, err, peak = self.peak(self.command(place, heavy))
                self.judge(code, out, err, peak - sound[heavy])
            except (AssertionError, subprocess.TimeoutExpired) as error:
                raise Finding(f"{type(error).__name__}: {error}", self.pack(place)) from error
            self.codes[code] = self.codes.get(code, 0) + 1

    def damaged(self) -> tuple[Path, bool]:
        """Return a damaged copy, and whether to try the command that loads it."""
        chance = self.chance
        shutil.rmtree(self.home / "damaged", ignore_errors=True)
        place = self.home / "damaged"
        kind = chance.random()
        if kind < 0.1:
            place.mkdir()
            file = Path(shutil.copy(self.gguf, place / "m.gguf"))
            with_bytes(file, chance)
            return file, False
        if kind < 0.15:  # each starts two processes that load torch
            shutil.copytree(self.adapter, place)
            with_json(place / "adapter_config.json", chance)
            if chance.random() < 0.3:
                with_header(place / "adapter_model.safetensors", chance)
            return place, False
        shutil.copytree(self.folder, place)
        for _ in range(chance.choice([1, 1, 2])):
            what = chance.random()
            files = sorted(file for file in place.iterdir() if file.is_file() and not file.is_symlink())
            if what < 0.6:
                with_json(place / chance.choice(JSONS), chance)
            elif what < 0.8 and (place / WEIGHTS).is_file() and not (place / WEIGHTS).is_symlink():
                with_header(place / WEIGHTS, chance)
            elif files:
                with_bytes(chance.choice(files), chance)
        return place, chance.random() < 0.1

    def command(self, place: Path, heavy: bool) -> list[str]:
        """Return a command line that reads the copy, or, if `heavy`, loads it."""
        if heavy:
            words = ["complete", f"{self.source}:2:5", "--drafter", "none", "--max-tokens", "4", "--policy", "fixed"]
        else:
            words = ["check", "--drafter", str(self.folder), "--files", str(self.source)]
        return [sys.executable, "-m", "codespec", *words, "--target", str(place)]

    def peak(self, command: list[str]) -> tuple[int, str, str, int]:
        """Run the command; return its exit code, both streams, and the peak memory of it and its children in bytes."""
        homes = dict.fromkeys(("XDG_STATE_HOME", "XDG_CACHE_HOME"), str(self.home / "homes"))
        tell = "import resource,subprocess,sys;c=subprocess.run(sys.argv[1:]).returncode;"
        tell += "print('PEAK',resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,file=sys.stderr);sys.exit(c%256)"
        process = subprocess.Popen(
            [sys.executable, "-c", tell, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=user_environment(**homes),
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # this test's processes only
            process.communicate()
            raise
        message, _, peak = err.decode("utf-8", "replace").rpartition("PEAK ")
        return process.returncode, out.decode("utf-8", "replace"), message, int(peak) << 10

    def judge(self, code: int, out: str, err: str, grown: int) -> None:
        """Assert that the command works or prints one error sentence."""
        assert grown < MEMORY, f"{grown >> 20} MB more than for a sound folder"
        assert code in (0, 2), f"exit code {code}: {err[-2000:]}"
        lines = err.splitlines()
        for words in ("Traceback", "please report", "panicked"):
            assert words not in err + out, err[-2000:]
        assert all(line.startswith("codespec: ") for line in lines), err[-2000:]
        assert code == 0 or (lines and lines[-1].endswith(".")), err

    def pack(self, place: Path) -> dict[str, Any]:
        """Return the damage in printable size: each file that differs from the intact one."""
        found: dict[str, Any] = {}
        for file in [place] if place.is_file() else sorted(place.iterdir()):
            sound = next((f / file.name for f in (self.folder, self.adapter) if (f / file.name).is_file()), None)
            if not file.is_file() or file.stat().st_size > 1 << 24:
                found[file.name] = "no plain file"
            elif sound is None or sound.read_bytes() != file.read_bytes():
                kept = self.home / f"finding-{file.name}"
                shutil.copy(file, kept)
                data = file.read_bytes()
                found[file.name] = f"{kept}" if len(data) > 4096 else base64.b64encode(data).decode()
        return found
