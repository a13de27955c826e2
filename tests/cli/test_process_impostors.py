"""Commands that contact the daemon, as users run them, with another program on its port: they send no token and no
text.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from codespec.client.proof import PATH
from tests.cli.conftest import Models
from tests.cli.processes import ENGINE, TOKEN, fork, user_environment
from tests.lsp.impostors import Answer, impostor, knows_nothing, plays_daemon, relays, sends_on
from tests.server.test_process import daemon


@pytest.mark.parametrize("answer", [knows_nothing, plays_daemon, sends_on(9)], ids=["knows nothing", "plays", "sends"])
def test_stats_send_it_no_token(answer: Answer, token_file: Path, tmp_path: Path) -> None:
    with impostor(answer) as one:
        done = fork("stats", "--url", one.url, "--token-file", token_file, XDG_STATE_HOME=str(tmp_path))
        assert one.asked == [f"POST {PATH}"] and TOKEN not in one
    assert (done.returncode, done.stdout) == (0, "nothing has been learned yet\n")
    message = f"The program at {one.url} can't prove that it is your daemon: check --url, or restart the daemon."
    assert done.stderr == f"codespec: {message}\n"


def test_the_doctor_sends_it_neither_token_nor_text(light_models: Models, token_file: Path, tmp_path: Path) -> None:
    with impostor(plays_daemon) as one:
        done = fork(
            *("doctor", *light_models.flags, "--url", one.url, "--token-file", token_file),
            modules=ENGINE,
            XDG_STATE_HOME=str(tmp_path),
        )
        assert one.asked == [f"POST {PATH}"] and TOKEN not in one
    assert f"{one.url} is used by another HTTP server" in done.stdout and done.returncode == 1, done.stdout


def test_the_users_own_daemon_is_known_and_who_relays_its_proof_is_not(token_file: Path, tmp_path: Path) -> None:
    asked = {"XDG_STATE_HOME": str(tmp_path)}
    with daemon("--token-file", token_file, env=user_environment(**asked)) as real, impostor(relays(real.port)) as one:
        done = fork("stats", "--url", f"http://127.0.0.1:{real.port}", "--token-file", token_file, **asked)
        assert done.stdout.startswith(f"daemon http://127.0.0.1:{real.port}: codespec "), done.stderr
        done = fork("stats", "--url", f"http://127.0.0.1:{real.port}", **asked)
        assert "requires its token: give --token-file" in done.stderr
        for url in (one.url, f"http://[::ffff:7f00:1]:{one.port}"):
            done = fork("stats", "--url", url, "--token-file", token_file, **asked)
            assert set(one.asked) == {f"POST {PATH}"} and TOKEN not in one and "can't prove" in done.stderr


def test_a_secret_that_others_may_know_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "codespec"
    with daemon(env=user_environment(XDG_STATE_HOME=str(tmp_path))) as real:
        (folder / "secret").chmod(0o644)
        done = fork("stats", "--url", f"http://127.0.0.1:{real.port}", XDG_STATE_HOME=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"Other users could have read the secret in {folder / 'secret'}: delete it and restart" in done.stderr
