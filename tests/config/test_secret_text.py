"""Secret lines of a text: private key blocks, whole or cut, and tokens of known formats."""

from __future__ import annotations

import pytest

from codespec.exclusions.secrets import key_rows, secret_rows, without_secrets
from tests.processor_time import least

BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n{BODY}\n{BODY[:12]}==\n-----END RSA PRIVATE KEY-----\n"
LETTERS = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3gH5jK7m"
TOKENS = [
    *(f"gh{kind}_{LETTERS[:36]}" for kind in "pousr"),
    *(f"github_pat_{LETTERS}", f"glpat-{LETTERS[:20]}", "AKIAIOSFODNN7EXAMPLE", f"AIza{LETTERS[:35]}"),
    *(f"xoxb-123456789012-{LETTERS[:24]}", f"sk_live_{LETTERS[:24]}", f"sk-proj-{LETTERS}", f"sk-ant-api03-{LETTERS}"),
    *(f"npm_{LETTERS[:36]}", f"pypi-AgEIcHlwaS5vcmc{LETTERS}", f"hf_{LETTERS[:34]}", f"dop_v1_{'0a' * 32}"),
    *(f"SG.{LETTERS[:22]}.{LETTERS}", f"eyJ{LETTERS[:20]}.eyJ{LETTERS[:20]}.{LETTERS[:20]}", f"ya29.{LETTERS}"),
    *(f"AGE-SECRET-KEY-1{'Q' * 58}", f"hvs.{LETTERS[:24]}", f"dckr_pat_{LETTERS[:27]}", f"GOCSPX-{LETTERS[:28]}"),
    *(f"https://hooks.slack.com/services/T0000/B0000/{LETTERS[:24]}", "postgres://admin:hunter22@db.example/app"),
]
ORDINARY = [
    *(
        "risk-free = 1",
        "task_list[sk_index]",
        "https://example.com/a:b@c",
        "ghp_short",
        "AKIA",
        "sk-learn",
        "class SG.",
    ),
    *("url = f'postgres://{user}:{password}@{host}'", "xoxo", "import hf_transfer_with_a_name_of_some_length_x", "eyJ"),
    *('"://" + host', "desk_production_schedule", "npm_config_registry", "def key_rows(lines):", "PRIVATE KEY"),
    *("https://user:$TOKEN@host", "https://user:<password>@host", "# -----BEGIN CERTIFICATE-----", "http://[::1]:80/@"),
]


@pytest.mark.parametrize("token", TOKENS)
def test_a_line_with_a_token_is_left_out(token: str) -> None:
    for line in (f'key = "{token}"', token, f"curl -H 'Authorization: Bearer {token}' x"):
        assert without_secrets(f"a = 1\r\n{line}\r\nb = 2") == "a = 1\r\n\r\nb = 2", line


@pytest.mark.parametrize("line", ORDINARY)
def test_other_lines_stay(line: str) -> None:
    assert without_secrets(f"a\n{line}\nb\n") == f"a\n{line}\nb\n"


def test_a_private_key_is_left_out_whole_or_cut() -> None:
    assert without_secrets(f"a\n{KEY}b\n") == "a\n" + "\n" * 5 + "b\n"
    lines = KEY.splitlines()
    assert key_rows(["a", *lines[:3], "b"]) == {1, 2, 3}, "no end"
    assert key_rows(["a = 1", "b = f(x)", *lines[1:3], *lines[4:], "c"]) == {2, 3, 4}, "no beginning"
    quoted = [f'    "{line}\\\\n"' for line in lines]
    assert key_rows(["x = (", *quoted, ")"]) == {1, 2, 3, 4, 5}
    assert secret_rows('{"private_key": "' + KEY.replace("\n", "\\\\n") + '"}') == {0}
    putty = "PuTTY-User-Key-File-3: ssh-rsa\nEncryption: none\nPrivate-Lines: 1\nAAAA\nPrivate-MAC: 0a\n"
    assert without_secrets(f"{putty}b") == "\n" * 5 + "b"


@pytest.mark.parametrize(
    "text",
    [
        *("a://" * 200_000, "://:" * 200_000, "eyJ" * 200_000, "sk-" + "a-" * 200_000, "-----BEGIN " * 50_000),
        *("-----BEGIN PRIVATE KEY-----\n" * 20_000, "-----END PRIVATE KEY-----\n" * 20_000, f"{BODY}\n" * 9000),
    ],
)
def test_no_text_takes_long(text: str) -> None:
    scan = least(lambda: sum(1 for _ in text))
    assert least(lambda: secret_rows(text + "PRIVATE KEY")) < 100 * scan, "about 10, if each part is read once"
