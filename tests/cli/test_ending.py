"""Exceptions at the end of a command: some become a sentence, some end silently, and the others are bugs."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable

import pytest

from codespec import errors
from codespec.cli import run_to_exit_code


def raiser(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize("code", [0, 3])
def test_the_commands_own_code(code: int) -> None:
    assert run_to_exit_code(lambda: code) == code


@pytest.mark.parametrize(
    "kind",
    [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)],
    ids=lambda kind: str(kind.__name__),
)
def test_every_error_of_ours_is_one_sentence(
    kind: type[errors.CodespecError], capsys: pytest.CaptureFixture[str]
) -> None:
    code = 1 if kind is errors.MismatchError else 2  # the only one that a user cannot fix
    assert run_to_exit_code(raiser(kind("a\nb is wrong: mend it"))) == code
    assert run_to_exit_code(raiser(kind("It is wrong: mend it."))) == code
    assert capsys.readouterr().err == "codespec: a b is wrong: mend it.\ncodespec: It is wrong: mend it.\n"


def test_an_interrupt_ends_silently(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_to_exit_code(raiser(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("file", "what"), [(None, "The output"), ("/x/y", "/x/y")])
def test_a_full_disk_is_not_always_the_outputs(file: str | None, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec.cli._discard", lambda _stream: None)
    message = io.StringIO()
    monkeypatch.setattr("sys.stderr", message)
    assert run_to_exit_code(raiser(OSError(errno.ENOSPC, "full", file))) == 2
    assert message.getvalue().startswith(f"codespec: {what} can't be written (no space left on the device): free some")


@pytest.mark.parametrize("error", [RuntimeError("bug"), OSError(5, "bug"), SystemExit(2)])
def test_what_no_user_can_cause_is_not_hidden(error: BaseException) -> None:
    with pytest.raises(type(error)):
        run_to_exit_code(raiser(error))


def test_output_is_flushed_before_the_end_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    class Out(io.StringIO):
        def flush(self) -> None:
            raise errors.RequestError("flushed: yes")

    monkeypatch.setattr("sys.stdout", Out())
    assert run_to_exit_code(lambda: 0) == 2
