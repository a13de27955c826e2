"""Recognize secret files by their paths, and secret lines in text, without accessing the file system.

Files that may contain secrets are neither completed nor used as context. SECRET_FILES covers the text files listed by
gitleaks, github/gitignore, Continue and Zed. Source code that handles secrets (`secrets.py`, `credentials.go`) is not
secret, so a source file is a secret file only if its name begins with a dot or is listed in full.

Secret lines are never included in the prompt of another file. A line is secret if it is part of a private key, or
contains a token with a known prefix or a URL with a password (`scheme://user:password@host`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import translate
from itertools import pairwise
from unicodedata import category
from urllib.parse import unquote

# A file name is a glob, `folder/` stands for all files below a folder. Matching ignores case.
SECRET_FILES = {
    "environment": (".env*", "*.env", ".dev.vars*"),
    "keys": (
        *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.crt", "*.cer", "*.cert", "*.der"),
        *("*.p12", "*.pfx", "*.p8", "*.pk8", "*.ppk", "*.pvk", "*.jks", "*.jceks", "*.bks", "*.keystore", "*.gpg"),
        *("*.truststore", "*.keytab", "*.kdb", "*.kdbx", "*.psafe3", "*.agilekeychain", "*.keychain*", "*.ovpn"),
        *("*.pgp", "*.agekey", "age/keys.txt", "ssh_host_*_key", "*private_key*", "*private-key*", "*privatekey*"),
        *(".ssh/", ".gnupg/", ".gpg/", ".password-store/"),
    ),
    "words": (
        *("secret", "secret.*", "secrets", "secrets.*", "*.secret", "*.secrets", ".secret*", "secrets/", ".secrets/"),
        *("credential", "credentials*", "*credentials.json", "*credentials.csv", "*credentials.y*ml", ".credentials*"),
        *("token", "token.json", ".token", ".*_token", ".*-token", "*.token", "api_key*", "api-key*", "apikey*"),
        *("passwd", "shadow", ".passwd*", "password", "password.*", "passwords*", ".password*", "auth.json"),
    ),
    "clouds": (
        *(".aws/", ".azure/", ".oci/", ".aliyun/", ".bluemix/", "gcloud/", "doctl/", "hcloud/", ".fly/", ".config/gh/"),
        *(".boto", ".s3cfg", ".passwd-s3fs", "rclone.conf", "client_secret*", "client-secret*", "rootkey.csv"),
        *("*accesskeys.csv", "*service-account*.json", "*service_account*.json", "*serviceaccount*.json"),
        *("*firebase-adminsdk*", "application_default_credentials*", "azureprofile.json", "*.publishsettings"),
        *("linode-cli", ".edgerc", ".netlify/config.json"),
    ),
    "clusters": (
        *(".kube/", "kubeconfig*", "*kubeconfig", "*.kubeconfig*", "*-kubeconfig.*", "talosconfig*", ".talos/"),
        *("k3s.yaml", "rke2.yaml", "kubernetes/admin.conf", "secret-*.y*ml", "*-secret.y*ml", "*-secrets.y*ml"),
        *("*_secret.y*ml", "*_secrets.y*ml", "*.secret.y*ml", "*.secrets.y*ml"),
    ),
    "registries": (".docker/", ".dockercfg*", ".dockerconfigjson", "containers/auth.json", ".config/helm/"),
    "package managers": (
        *(".npmrc", ".pypirc", ".yarnrc.local", ".gem/credentials", ".bundle/config", ".m2/settings.xml"),
        *("settings-security.xml", ".gradle/gradle.properties", ".nuget/nuget.config", ".composer/", ".cargo/config"),
    ),
    "databases": (
        *(".pgpass*", "pgpass.conf", ".pg_service.conf", "pg_service.conf", ".my.cnf", ".mylogin.cnf", ".odbc.ini"),
        *(".mongorc.js", ".mongoshrc.js", ".redisclirc", "robomongo.json", "datasources.local.xml", ".snowsql/"),
        *("credentials-config.json", ".dbshell"),
    ),
    "web": (
        *(".htpasswd*", "htpasswd", ".htdigest*", ".netrc*", "_netrc", ".authinfo*", ".git-credentials", ".git/config"),
        *("wp-config.php", "wp-config-*.php", "localsettings.php", "sftp-config.json", ".vscode/sftp.json"),
        *(".ftpconfig", ".remote-sync.json", "sitemanager.xml", "recentservers.xml", "filezilla.xml", ".msmtprc"),
        *(".fetchmailrc", ".esmtprc", ".muttrc", ".curlrc", ".wgetrc"),
    ),
    "shells' histories": (
        *(".*_history", ".*history", ".histfile", "fish_history", "consolehost_history.txt", ".lesshst", ".viminfo"),
        ".zsh_sessions/",
    ),
    "infrastructure state": (
        *("*.tfstate", "*.tfstate.*", "*.tfvars", "*.tfvars.json", ".terraform/", ".terraformrc", "terraform.rc"),
        *(".vault-token*", ".vault_pass*", ".vault-pass*", "vault_pass*", "vault-pass*", "vault.y*ml", ".vault/"),
        *(".pulumi/", ".chef/", "*.tfplan"),
    ),
}
MAX_ENCODED = 4  # levels of percent-encoding to decode
MAX_NAME = 256  # characters; no file name is longer
_SOURCE = re.compile(
    r"[^.].*\.(c|cc|cpp|cxx|h|hh|hpp|cs|css|clj|dart|ex|exs|fs|go|graphql|groovy|hs|html?|ipynb|java|jsx?|[cm]js|kts?|"
    r"lua|mdx?|ml|nix|php|pl|proto|pyi?|r|rb|rs|rst|scala|scss|sql|svelte|swift|tf|tsx?|vue|zig)"
    r"|dockerfile(\..*)?|makefile",
    re.DOTALL,
)
_LISTED = [entry for group in SECRET_FILES.values() for entry in group]
_FOLDERS = {entry[:-1] for entry in _LISTED if entry.endswith("/")}
_INSIDE = {entry for entry in _LISTED if "/" in entry[:-1] and not entry.endswith("/")}
_NAMES = [entry for entry in _LISTED if "/" not in entry]
_WHOLE = {name for name in _NAMES if "*" not in name}
_GLOBS = re.compile("|".join(translate(name) for name in _NAMES if "*" in name))
_SEPARATORS = re.compile(r"[/\\]")
_QUERY = re.compile("[?#]")

MAX_KEY_LINES = 400  # of a key block whose begin or end line is missing
_KEY_MARKS = ("PRIVATE KEY", "PuTTY-User-Key")
_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY|PuTTY-User-Key-File-\d")
_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY|^Private-MAC:")
_KEY_LINE = re.compile(r"""[\s"'+,\\>*#/-]*[A-Za-z0-9+/=]{32,}[\s"'+,\\n;)-]*""")  # Base64, quoted in any language
# A line without any of these strings contains no token.
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


def is_secret(path: str) -> bool:
    """Return whether a path or URI, which may be percent-encoded, matches SECRET_FILES."""
    return any(_matches(form) for form in _forms(path))


def _matches(path: str) -> bool:
    parts = _SEPARATORS.split(path)
    above = [part.rstrip(". ") or part for part in _seen(path).casefold().replace("\\", "/").split("/") if part]
    folders = {*above[:-1], *map("/".join, pairwise(above[:-1]))}
    below = bool(folders & _FOLDERS)
    parent = above[-2] if len(above) > 1 else ""
    names = {name.casefold() for last in set(_lasts(parts)) for name in _names(last)} - {""}
    return any(_is_named(name, parent, below) for name in names)


def _is_named(name: str, parent: str, below: bool) -> bool:
    if name in _WHOLE or f"{parent}/{name}" in _INSIDE:
        return True
    return (below or _GLOBS.fullmatch(name) is not None) and not _SOURCE.fullmatch(name)


def _forms(path: str) -> list[str]:
    """Return the path as given, followed by the path after each level of percent-decoding."""
    forms = [path]
    while len(forms) <= MAX_ENCODED and (decoded := unquote(forms[-1])) != forms[-1]:
        forms.append(decoded)
    return forms


def _lasts(parts: list[str]) -> Iterator[str]:
    """Yield each possible last component of a path, because any `?` or `#` may start the query or fragment of a URI."""
    last = ""
    for part in parts:
        for mark in _QUERY.finditer(part[:MAX_NAME]):
            yield part[: mark.start()] or last
        last = last if part in ("", ".") else part
    yield last


def _names(last: str) -> set[str]:
    """Return the file names to which the last component of a path may refer."""
    # Windows ignores trailing dots and spaces in a file name, and a colon starts the name of a stream. In a URI, a
    # semicolon starts a parameter.
    seen = _seen(last)
    return {name for piece in (last, seen, *re.split("[:;]", seen)) for name in (piece, piece.rstrip(". "))}


def _seen(text: str) -> str:
    """Remove invisible characters (zero width, writing direction), which some macOS file systems ignore in names."""
    return text if text.isascii() else "".join(each for each in text if category(each) != "Cf")


def without_secrets(text: str) -> str:
    """Replace the secret lines of a text with empty lines, and keep the line endings."""
    rows = secret_rows(text)
    if not rows:
        return text
    lines = text.split("\n")
    for row in rows:
        lines[row] = "\r" if lines[row].endswith("\r") else ""
    return "\n".join(lines)


def secret_rows(text: str) -> set[int]:
    """Return the row numbers, from 0, of the lines that contain a secret."""
    starts = set[int]()  # offsets of the lines with a mark
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
    """Return the row numbers of the lines in private key blocks, even if the begin or end line is missing."""
    rows = set[int]()
    if not any(mark in line for line in lines for mark in _KEY_MARKS):
        return rows
    last = -1  # row of a BEGIN without an END so far
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
    """Return the rows directly below (step 1) or above (step -1) a row that look like lines of a private key."""
    rows = set[int]()
    at = row + step
    while 0 <= at < len(lines) and len(rows) < MAX_KEY_LINES and (_KEY_LINE.fullmatch(lines[at]) or at == row + step):
        rows.add(at)
        at += step
    return rows
