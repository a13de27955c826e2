"""OpenVINO GenAI's contestants with a stand-in for the package, in a real process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from codespec_lab.bench.decode.contest import PeerError, Task, Workload
from codespec_lab.bench.decode.openvino_genai import FAMILY, PACKAGE, OpenVinoFamily
from codespec_lab.bench.peer_packages import PeerPackage
from codespec_lab.bench.sites import PROMPTS, Site

from codespec.errors import ConfigError

FAKE = '''
"""Counts upwards, two ids a round where something is drafted."""
import os, sys, types

__version__ = "0"
StreamingStatus = types.SimpleNamespace(RUNNING=0)
StreamerBase = object
GenerationConfig = types.SimpleNamespace
draft_model = lambda folder, device, **_: folder
print("a line that is no answer")


class LLMPipeline:
    def __init__(self, folder, device, INFERENCE_NUM_THREADS, **options):
        self.drafts = bool(options)
        if os.environ.get("FAKE") == "no load":
            raise RuntimeError("no model there")

    def generate(self, ids, config, streamer):
        if os.environ.get("FAKE") == "crash":
            os._exit(3)
        if os.environ.get("FAKE") == "fatal":
            print("Fatal Python error: it is broken\\n\\nCurrent thread 0x1:\\n  <no Python frame>", file=sys.stderr)
            os._exit(1)
        last, step, written = int(ids[0][-1]), 1 + self.drafts, []
        while len(written) < config.max_new_tokens:
            part = [last + 1 + len(written) + n for n in range(step if written else 1)]
            part = part[: config.max_new_tokens - len(written)]
            written += part
            streamer.write(part)
        return types.SimpleNamespace(tokens=[written])
'''


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two converted folders, and a Python with the stand-in."""
    modules = {"openvino_genai": FAKE, "openvino": "Tensor = lambda rows: rows\n"}
    for name, text in modules.items():
        (tmp_path / "modules" / name).mkdir(parents=True)
        (tmp_path / "modules" / name / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'modules'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.delenv("FAKE", raising=False)
    monkeypatch.setattr(PeerPackage, "python", lambda self: Path(sys.executable))
    monkeypatch.setattr(PeerPackage, "folder", lambda self: tmp_path / "modules" / self.module)
    found = [tmp_path / "int8", tmp_path / "int4"]
    for folder in found:
        folder.mkdir()
        (folder / "openvino_model.xml").write_text("")
    return found


@pytest.fixture
def family(folders: list[Path]) -> Iterator[OpenVinoFamily]:
    """All contestants."""
    found = OpenVinoFamily("cpu", folders[:1], folders[1])
    yield found
    found.close()


WORK = Workload(tuple(Task(n, Site("", kind=PROMPTS), (1, 10 * n)) for n in range(2)), 5, ends=frozenset({14}))


def test_ids_go_in_and_come_out(family: OpenVinoFamily) -> None:
    assert [one.name for one in family.contestants] == [
        "OpenVINO int8",
        "OpenVINO int8 prompt lookup",
        "OpenVINO int8 draft model",
    ]
    for contestant in family.contestants:
        answer = contestant.answer(WORK, contestant.variants()[0])
        assert answer.ids == [(1, 2, 3, 4, 5), (11, 12, 13, 14)]
        assert answer.first_tokens == 2 and answer.tokens == 7
        assert (answer.rounds, answer.accepted) == ((8, 0) if contestant.plain else (4, 3))


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("no load", "RuntimeError: no model there"),
        ("crash", "status 3"),
        ("fatal", r"status 1 \(Fatal Python error: it is broken\)$"),
    ],
)
def test_what_fails_is_one_sentence(
    mode: str, why: str, family: OpenVinoFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", mode)
    contestant = family.contestants[0]
    with pytest.raises(PeerError, match=f"^OpenVINO GenAI breaks off.*{why}"):
        contestant.answer(WORK, contestant.variants()[0])
    monkeypatch.delenv("FAKE")
    assert contestant.answer(WORK, contestant.variants()[0]).ids, "the next workload has a new process"


def test_the_report_names_the_version_that_is_installed(family: OpenVinoFamily, tmp_path: Path) -> None:
    contestant = family.contestants[0]
    assert contestant.facts(contestant.variants()[0])["program"] == f"openvino-genai {PACKAGE.version}", "not known"
    metadata = tmp_path / "modules" / "openvino_genai-1.2.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: openvino-genai\nVersion: 1.2\n")
    assert contestant.facts(contestant.variants()[0])["program"] == "openvino-genai 1.2"


def test_who_can_not_take_part_is_absent(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert OpenVinoFamily("cpu", [], None).absent == {FAMILY: "name a converted folder by --openvino"}
    assert OpenVinoFamily("cuda", folders, None).absent == {FAMILY: "it takes part beside a CPU only"}
    with pytest.raises(ConfigError, match=r"holds no openvino_model\.xml"):
        OpenVinoFamily("cpu", [folders[0].parent], None)
    monkeypatch.setattr(PeerPackage, "python", lambda self: None)
    why = OpenVinoFamily("cpu", folders, None).absent[FAMILY]
    assert why.startswith("openvino-genai is not installed: run `python") and PACKAGE.version in why
