"""Find lines of a text that hold secrets: private key blocks and tokens of known formats.

Such lines never go into the prompt of another file. Only formats with a fixed prefix are known; a password without one
is recognized in an address (`scheme://user:password@host`) alone. Finding takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_KEY_LINES = 400  # of a block whose other end is missing
_KEY_MARKS = ("PRIVATE KEY", "PuTTY-User-Key")
_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY|PuTTY-User-Key-File-\d")
_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY|^Private-MAC:")
_KEY_LINE = re.compile(r"""[\s"'+,\\>*#/-]*[A-Za-z0-9+/=]{32,}[\s"'+,\\n;)-]*""")  # Base64, quoted in any language
# Only lines with one of these are searched for tokens.
_MARKS = (
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "glptt-", "glrt-", "gldt-", "glcbt-", "glft-"),
    *("glsoat-", "glagent-", "glimt-", "glffct-", "gloas-", "AKIA", "ASIA", "ABIA", "ACCA", "AIza", "xox", "xapp-"),
    *("hooks.slack", "sk-", "sk_", "rk_", "npm_", "pypi-", "hf_", "_v1_", "SG.", "eyJ", "ya29.", "://", "AGE-SECRET"),
    *("hvs.", "hvb.", "hvr.", "dckr_", "shp", "pul-", "LTAI", "key-", "tskey-", "ATATT3", "AccountKey=", "GOCSPX-"),
    *("figd_", "sntry", "lin_api_", "NRAK-", "dapi", "r8_", "gsk_", "xai-", "PMAK-", "rubygems_", "whsec_", "EAAC"),
)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"gh[pousr]_\w{30,}|github_pat_\w{22,}|gl(?:pat|ptt|rt|dt|cbt|ft|soat|agent|imt|ffct|oas)-[\w.-]{20,}|"
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])|AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|"
    r"xox[abeoprs]-[\w-]{10,}|xapp-\d-[\w-]{10,}|(?:sk|rk)_(?:live|test|prod)_\w{16,}|whsec_\w{24,}|"
    r"sk-(?:[\w-]{2,20}-)?[\w-]{32,}|gsk_\w{32,}|xai-\w{40,}|r8_\w{30,}|hf_[A-Za-z0-9]{30,}|"
    r"npm_\w{30,}|pypi-[\w-]{40,}|rubygems_[a-f0-9]{40,}|dckr_(?:pat|oat)_[\w-]{20,}|"
    r"do[opr]_v1_[a-f0-9]{40,}|SG\.[\w-]{16,}\.[\w-]{16,}|key-[a-f0-9]{32}(?![A-Za-z0-9])|"
    r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}|ops_eyJ[\w+/-]{40,}|AGE-SECRET-KEY-1[A-Z0-9]{40,}|hv[sbr]\.[\w-]{24,}|"
    r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}|pul-[a-f0-9]{40}|LTAI\w{16,}|tskey-[a-z]+-[\w-]{16,}|ATATT3[\w=-]{50,}|"
    r"figd_[\w-]{30,}|sntry[su]_[\w+/=-]{40,}|lin_api_\w{30,}|NRAK-\w{20,}|dapi[a-f0-9]{32}|PMAK-[a-f0-9-]{40,}|"
    r"EAAC[A-Za-z0-9]{30,})"
    r"|hooks\.slack\.com/(?:services|workflows)/[\w/]{20,}|AccountKey=[\w+/=]{40,}"
    r"|[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@\"'`<>{}$]{0,64}:[^\s/@\"'`<>{}$]{3,256}@[\w.\[-]"
)


def without_secrets(text: str) -> str:
    """Return a text without its secret lines. Their line ends stay, so that rows keep their numbers."""
    rows = secret_rows(text)
    if not rows:
        return text
    lines = text.split("\n")
    for row in rows:
        lines[row] = "\r" if lines[row].endswith("\r") else ""
    return "\n".join(lines)


def secret_rows(text: str) -> set[int]:
    """Return the rows, split at \\n, that hold a secret."""
    starts = set[int]()  # of lines with a mark
    for mark in _MARKS:
        at = text.find(mark)
        while at >= 0:
            starts.add(text.rfind("\n", 0, at) + 1)
            end = text.find("\n", at)
            at = text.find(mark, end) if end >= 0 else -1
    rows, row, before = set[int](), 0, 0
    for start in sorted(starts):
        end = text.find("\n", start)
        if _TOKEN.search(text, start, end if end >= 0 else len(text)):
            row, before = row + text.count("\n", before, start), start
            rows.add(row)
    return rows | (key_rows(text.split("\n")) if any(mark in text for mark in _KEY_MARKS) else set())


def key_rows(lines: Sequence[str]) -> set[int]:
    """Return the rows of private key blocks, also of those with only one end."""
    rows = set[int]()
    if not any(mark in line for line in lines for mark in _KEY_MARKS):
        return rows
    last = -1  # row of an open BEGIN, or -1
    for row, line in enumerate(lines):
        begins, ends = _BEGIN.search(line), _END.search(line)
        if begins or ends:
            rows.add(row)
        if ends and not begins:
            whole = last >= 0 and row - last <= MAX_KEY_LINES
            rows |= set(range(last, row)) if whole else _beside(lines, row, -1)
        if begins:
            rows |= _beside(lines, row, 1)
        last = -1 if ends else row if begins else last
    return rows


def _beside(lines: Sequence[str], row: int, step: int) -> set[int]:
    """Return the adjacent rows, above or below a row, that look like lines of a key."""
    rows = set[int]()
    at = row + step
    while 0 <= at < len(lines) and len(rows) < MAX_KEY_LINES and (_KEY_LINE.fullmatch(lines[at]) or at == row + step):
        rows.add(at)
        at += step
    return rows
