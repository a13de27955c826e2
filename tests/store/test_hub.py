"""Pull from a hub: real processes, the real client, and a small hub on loopback that serves a tiny model."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.processes import ENGINE, fork, start, start_python, user_environment
from tests.store.conftest import REPOSITORY, WEIGHTS, Command, Start, sentence
from tests.store.small_hub import COMMIT, SmallHub

FOLDER = "tiny-people--tiny-coder"
BLOCK = 10 << 20  # block size of the hub client, which drops a partial block with the connection
TAKEN = {"config.json", "generation_config.json", WEIGHTS, "tokenizer.json", "LICENSE", "README.md"}


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


def visible(home: Path) -> list[str]:
    return sorted(path.name for path in home.glob("*") if not path.name.startswith("."))


def test_whole(hub: SmallHub, models: Command, home: Path, tiny_files: dict[str, bytes]) -> None:
    done = models("pull", REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"{REPOSITORY}: {home / FOLDER}"
    assert "\r" not in done.stderr and f"from {REPOSITORY}@{COMMIT}" in done.stderr
    assert {path.name for path in (home / FOLDER).iterdir()} == {*TAKEN, "codespec_model.json"}
    assert all((home / FOLDER / name).read_bytes() == tiny_files[name] for name in TAKEN)
    manifest = json.loads((home / FOLDER / "codespec_model.json").read_text())
    assert (manifest["licence"], manifest["source"]) == ("tiny-1.0", f"{REPOSITORY}@{COMMIT}")
    assert manifest["sha256"].keys() == TAKEN
    assert list((home / ".part").iterdir()) == []
    # User statistics would include the torch version.
    assert hub.agents and not any("torch/" in agent for agent in hub.agents)


def test_again_asks_for_nothing(hub: SmallHub, models: Command) -> None:
    models("pull", REPOSITORY)
    hub.requests.clear()
    again = models("pull", REPOSITORY)
    assert again.returncode == 0 and "has been pulled already" in again.stderr and hub.requests == []


def test_interrupted_then_resumed(hub: SmallHub, models: Command, home: Path, tiny_files: dict[str, bytes]) -> None:
    hub.cut[WEIGHTS] = 15_000_000
    message = sentence(models("pull", REPOSITORY))
    assert "503" in message and "to resume the download" in message
    assert visible(home) == []
    hub.cut.clear()
    hub.broken = False
    assert "partly" in models("list").stdout
    done = models("pull", REPOSITORY)
    assert done.returncode == 0, done.stderr
    # The client's own retries fail; the second pull resumes and fetches only the rest.
    assert hub.asked_for(WEIGHTS) == [0, BLOCK]
    assert (home / FOLDER / WEIGHTS).read_bytes() == tiny_files[WEIGHTS]
    assert [len(hub.asked_for(name)) for name in sorted(TAKEN - {WEIGHTS})] == [1] * 5


def test_a_part_longer_than_the_file_begins_again(
    hub: SmallHub, models: Command, home: Path, tiny_files: dict[str, bytes]
) -> None:
    hub.cut[WEIGHTS] = 15_000_000
    models("pull", REPOSITORY)
    (part,) = home.glob(f".part/*/{WEIGHTS}*")
    part.write_bytes(tiny_files[WEIGHTS] + b"more")
    hub.cut.clear()
    hub.broken = False
    done = models("pull", REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert hub.asked_for(WEIGHTS) == [0, 0] and (home / FOLDER / WEIGHTS).read_bytes() == tiny_files[WEIGHTS]


def test_killed_leaves_nothing_half(hub: SmallHub, models: Command, begin: Start, home: Path) -> None:
    hub.hold[WEIGHTS] = 15_000_000
    process = begin("pull", REPOSITORY)
    assert hub.held.wait(60)
    wait_until(lambda: any(path.stat().st_size >= BLOCK for path in home.glob(f".part/*/{WEIGHTS}*")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    hub.hold.clear()
    hub.go.set()
    assert visible(home) == []
    assert models("pull", REPOSITORY).returncode == 0
    assert hub.asked_for(WEIGHTS) == [0, BLOCK] and visible(home) == [FOLDER]


def test_two_at_once_download_once(hub: SmallHub, begin: Start, home: Path) -> None:
    hub.hold[WEIGHTS] = 15_000_000
    first = begin("pull", REPOSITORY)
    assert hub.held.wait(60)
    second = begin("pull", REPOSITORY)
    assert second.stderr is not None
    assert (
        second.stderr.readline().decode()
        == f"codespec: another process is pulling or removing {REPOSITORY}: waiting for it\n"
    )
    hub.go.set()
    assert [process.communicate(timeout=60) and process.returncode for process in (first, second)] == [0, 0]
    assert hub.asked_for(WEIGHTS) == [0] and visible(home) == [FOLDER]


@pytest.mark.parametrize("file", [WEIGHTS, "tokenizer.json"])
def test_wrong_hash(file: str, hub: SmallHub, models: Command, home: Path) -> None:
    hub.lies[file] = ("ab" * 32) if file == WEIGHTS else ("ab" * 20)
    message = sentence(models("pull", REPOSITORY))
    assert f"{file} of {REPOSITORY}" in message and "abababababababab" in message and "was deleted" in message
    assert visible(home) == [] and not list(home.rglob(f"{file}*"))


@pytest.mark.parametrize("name", ["", "../../tiny", "ab" * 30])
def test_a_hash_that_is_none(name: str, hub: SmallHub, models: Command) -> None:
    hub.lies["config.json"] = name
    assert "config.json of tiny-people/tiny-coder can't be verified" in sentence(models("pull", REPOSITORY))


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((404, "RepoNotFound"), ["has no model", "check the name"]),
        ((401, ""), ["denied access", "401", "hf auth login"]),
        ((401, "GatedRepo"), ["require a login", "accept the licence on the model's page", "hf auth login"]),
        ((403, "GatedRepo"), ["require a login", "hf auth login"]),
        ((500, ""), ["returned HTTP 500", "later"]),
    ],
)
def test_refused(refusal: tuple[int, str], words: list[str], hub: SmallHub, models: Command, home: Path) -> None:
    hub.refusal = refusal
    message = sentence(models("pull", REPOSITORY))
    assert all(word in message for word in words), message
    assert visible(home) == [] and not (home / ".part").exists()


def test_gated_files(hub: SmallHub, models: Command) -> None:
    hub.gated = True
    assert "require a login: accept the licence" in sentence(models("pull", REPOSITORY))


def test_another_name_than_it_has(models: Command) -> None:
    assert "has no model tiny-people/other" in sentence(models("pull", "tiny-people/other"))


def test_no_network(models: Command) -> None:
    message = sentence(models("pull", REPOSITORY, HF_ENDPOINT="http://127.0.0.1:9"))
    assert "There is no network here" in message


def test_offline_by_wish(hub: SmallHub, models: Command) -> None:
    message = sentence(models("pull", REPOSITORY, HF_HUB_OFFLINE="1"))
    assert "HF_HUB_OFFLINE is set" in message and hub.requests == [] and hub.agents == set()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"pytorch_model.bin": b"x"}, "pickled"),
        ({"tiny.Q4_0.gguf": b"x"}, "codespec models pull FILE.gguf"),
        ({"README.md": b"x"}, "no model*.safetensors"),
        ({"model/a.safetensors": b"x", "config.json": b"{}", "tokenizer.json": b"{}"}, "no model*.safetensors"),
        ({WEIGHTS: b"x", "config.json": b"{}"}, "lacks tokenizer.json"),
    ],
)
def test_nothing_to_use(files: dict[str, bytes], words: str, hub: SmallHub, models: Command) -> None:
    hub.files = files
    assert words in sentence(models("pull", REPOSITORY))
    assert hub.requests == []


def test_no_name_leads_out_of_the_folder(hub: SmallHub, models: Command, home: Path) -> None:
    names = ["../evil.json", "..\\evil.json", "/etc/evil.json", "deep/evil.json", ".evil.json", "codespec_model.json"]
    hub.more = [{"rfilename": name, "size": 2, "blobId": "ab" * 20} for name in names]
    done = models("pull", REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert not list(home.parent.parent.rglob("*evil*")) and not [name for name, _ in hub.requests if name in names]


def test_removed(hub: SmallHub, models: Command, home: Path) -> None:
    models("pull", REPOSITORY)
    done = models("remove", REPOSITORY)
    assert (done.returncode, done.stdout) == (0, f"removed {REPOSITORY}: 22 MB freed\n") and visible(home) == []


def test_a_part_is_removed(hub: SmallHub, models: Command, home: Path) -> None:
    hub.cut[WEIGHTS] = 15_000_000
    sentence(models("pull", REPOSITORY))
    done = models("remove", REPOSITORY)
    assert done.returncode == 0 and "freed" in done.stdout, done
    assert list((home / ".part").iterdir()) == []


def test_a_bar_on_a_terminal(hub: SmallHub) -> None:
    """tqdm draws on a terminal, which a pseudo-terminal simulates."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    environment = user_environment(HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0")
    process = start("models", "pull", REPOSITORY, env=environment, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while block := os.read(ours, 65536):
            seen += block
    except OSError:  # the other end has closed
        pass
    assert process.wait() == 0 and b"model.safetensors: 100%" in seen
    os.close(ours)


def test_a_revision(hub: SmallHub, home: Path) -> None:
    code = f"""
from codespec.store.download import HubSource
from codespec.store.pull import pull
pull([HubSource({REPOSITORY!r}, "tiny", "MIT", "refs/pr/3")], print)
"""
    environment = user_environment(HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0")
    process = start_python("-c", code, env=environment)
    assert process.communicate() and process.returncode == 0
    assert hub.revisions == ["refs/pr/3"]
    assert json.loads((home / "tiny" / "codespec_model.json").read_text())["licence"] == "MIT"


def test_a_model_for_edits_is_one_file_of_its_repository(hub: SmallHub, models: Command, home: Path) -> None:
    """The hub states the size that the catalogue doesn't pin, and the pinned hash decides."""
    name, file = "sweep-next-edit-0.5b", "sweep-next-edit-0.5b.q8_0.gguf"
    hub.repository, hub.files = "sweepai/sweep-next-edit-0.5B", {"README.md": b"", file: b"GGUF" + bytes(70_000)}
    message = sentence(models("pull", name))
    assert f"{file} of {hub.repository} was deleted because it has the wrong SHA-256" in message
    assert hub.asked_for(file) == [0] and hub.asked_for("README.md") == [] and visible(home) == []
    del hub.files[file]
    assert f"{hub.repository} no longer has {file}" in sentence(models("pull", name))


def test_a_pinned_file_arrives_without_a_pinned_size(hub: SmallHub, home: Path) -> None:
    data = b"GGUF" + bytes(70_000)
    hub.files = {"edits.gguf": data}
    file = f"ModelFile('edits.gguf', 0, '{hashlib.sha256(data).hexdigest()}')"
    code = "from codespec.store.catalogue import ModelFile; from codespec.store.download import HubSource; "
    code += "from codespec.store.pull import pull; "
    code += f"print(pull([HubSource({REPOSITORY!r}, 'edits', 'MIT', file={file})], print).bytes)"
    process = start_python("-c", code, env=user_environment(HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0"))
    out, _ = process.communicate()
    assert process.returncode == 0 and out.split()[-1] == b"70004"
    assert (home / "edits" / "edits.gguf").read_bytes() == data


def test_what_was_pulled_completes(models: Command, tmp_path: Path) -> None:
    assert models("pull", REPOSITORY).returncode == 0
    file = tmp_path / "a.py"
    file.write_text("def add(a, b):\n    return \n")
    words = [f"{file}:2:12", "--target", REPOSITORY, "--drafter", "none", "--max-tokens", "4", "--json"]
    done = fork("complete", *words, modules=ENGINE)  # the test environment forbids hub requests
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finish_reason"] in ("length", "stop", "shape")
