"""Decide by path whether a file may contain secrets and so must not be completed or used as context.

The daemon and the language server share this list. The file system is not accessed.

The list covers what gitleaks, github/gitignore, Continue and Zed name, where it is text that somebody may open. A
program that *handles* secrets is ordinary code (`secrets.py`, `credentials.go`), and editors complete it: a program's
source is a secret only if its name begins with a dot or is listed in full. If it holds real secrets, it is ignored by
git, which excludes it as well, or it holds tokens, which never go into another file's prompt (`secret_text`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import translate
from itertools import pairwise
from unicodedata import category
from urllib.parse import unquote

# Globs of names; `folder/` for all files below a folder; `folder/name`. Matching ignores case.
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
_MARK = re.compile("[?#]")


def is_secret(path: str) -> bool:
    """Return whether a path or URI, in any encoding, matches SECRET_FILES."""
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
    """Return whether a file has a secret name; `below` says whether it lies in a folder of secrets."""
    if name in _WHOLE or f"{parent}/{name}" in _INSIDE:
        return True
    return (below or _GLOBS.fullmatch(name) is not None) and not _SOURCE.fullmatch(name)


def _forms(path: str) -> list[str]:
    """Return the path as given, followed by its percent-decoded forms."""
    forms = [path]
    while len(forms) <= MAX_ENCODED and (decoded := unquote(forms[-1])) != forms[-1]:
        forms.append(decoded)
    return forms


def _lasts(parts: list[str]) -> Iterator[str]:
    """Yield the last path component, and the last component if a `?` or `#` started a query or a fragment.

    Every `?` and `#` is tried, because any of them may start one.
    """
    last = ""
    for part in parts:
        for mark in _MARK.finditer(part[:MAX_NAME]):
            yield part[: mark.start()] or last
        last = last if part in ("", ".") else part
    yield last


def _names(last: str) -> set[str]:
    """Return the variants of a last component: whole, split at `:` and `;`, and without ignored characters.

    Windows ignores trailing dots and spaces, and a colon introduces a stream's name; a semicolon introduces a URI's
    parameter.
    """
    seen = _seen(last)
    return {name for piece in (last, seen, *re.split("[:;]", seen)) for name in (piece, piece.rstrip(". "))}


def _seen(text: str) -> str:
    """Return a text without the invisible characters (zero width, direction) that some Macs ignore in names."""
    return text if text.isascii() else "".join(each for each in text if category(each) != "Cf")
