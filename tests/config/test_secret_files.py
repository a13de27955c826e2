"""Names of files that contain secrets, in all their spellings."""

from __future__ import annotations

import pytest

from codespec.exclusions.secrets import is_secret

SECRETS = [".env", "a/.env.local", "x/KEY.PEM", "id_rsa.pub", "c:\\me\\.npmrc", "credentials", "secrets.yml", "a.kdbx"]
SECRETS += ["id_ecdsa", "id_ecdsa_sk", "id_dsa", ".git-credentials", ".pgpass", "a.tfstate", "a.tfstate.backup"]
SECRETS += ["prod.env", "Prod.ENV", "%2Eenv", "a/id%5Fecdsa", "%252Eenv", "dir%2F.pgpass", "c%3A%5Cme%5Cprod.env"]
SECRETS += ["file:///a/prod.env?x=/y", "file:///a/id_dsa#L1", "prod.env/", "prod.env. ", "key.pem::$DATA", "c:.pgpass"]
SECRETS += [
    "/p#1/.env",
    "/p#1/prod.env#L1",
    "/p?q/prod.env?x#L1",
    "file:///p%231/prod.env%23L1",
    "file://.env",
    "a/.env/#1",
]
SECRETS += ["a/.env/#1", "prod.env#" + "#" * 300, "\\\\wsl$\\Debian\\p#1\\id_rsa", "prod.env...", "prod.env :x"]
SECRETS += ["terraform.tfvars", "prod.auto.tfvars", "a.tfvars.json", "kubeconfig", "prod.kubeconfig", ".kube/config"]
SECRETS += ["k8s/secret.yaml", "db-secret.yml", ".secrets", ".secrets.toml", "client_secret_12.apps.json", "token.json"]
SECRETS += [
    "service-account.json",
    "my-service_account-key.json",
    "x-firebase-adminsdk-1.json",
    "a/.docker/config.json",
]
SECRETS += [
    ".dockercfg",
    ".my.cnf",
    ".htpasswd",
    "putty.ppk",
    "AuthKey_1.p8",
    ".vault-token",
    ".vault_pass",
    ".authinfo",
]
SECRETS += [".authinfo.gpg", ".ssh/config", "~/.aws/config", ".gnupg/trustdb", ".azure/msal.json", "gcloud/properties"]
SECRETS += [
    "C:\\Users\\me\\.KUBE\\cache\\a.yaml",
    "%2Essh/known_hosts",
    "file:///h/.ssh/config#L1",
    ".config/gh/hosts.yml",
]
SECRETS += [
    ".bash_history",
    ".zsh_history",
    ".python_history",
    "fish_history",
    ".m2/settings.xml",
    "auth.json",
    "token",
]
SECRETS += [
    "wp-config.php",
    ".git/config",
    "app.jks",
    "release.keystore",
    "rclone.conf",
    "a/secrets/db.txt",
    "vault.yml",
]
SECRETS += [
    ".terraform/environment",
    "crash/.terraformrc",
    "passwords.txt",
    ".netrc.old",
    "new_credentials.csv",
    ".secret.py",
]
OTHERS = [
    "secrets.py",
    "credentials.go",
    "tokens.json",
    "config.json",
    "docker/config.json",
    "my.cnf",
    "main.tf",
    "a.tf",
]
OTHERS += [
    "kube/config.yaml",
    "kubeconfig.go",
    "gcloud/main.py",
    ".docker/Dockerfile",
    "ssh/config.py",
    "aws/deploy.yml",
]
OTHERS += ["history.py", "docker-compose.yml", "settings.xml", "private_key.rs", "vault.go", "package.json", "key.ts"]
OTHERS += [
    "authinfo.el",
    "environment.yml",
    "secretary.txt",
    "token.go",
    ".gitconfig",
    "gradle.properties",
    "README.md",
]
OTHERS += ["", "/", "env.py", "secret.py", "a/monkey.py", "pem", "id_rs", "environment.py", "src/keys.py", "pem.py"]
OTHERS += ["secrets/a.py", ".env/a.py", "100%.py", "%", "state.tf", "envs", "a%2Fb.py", "%" * 500, "git-credentials"]
OTHERS += ["c#/a.py", "what?/a.py", "#.py", "?", "env#1.py", "#" * 4000, "p#1/a.py#L1"]


@pytest.mark.parametrize("path", SECRETS)
def test_secrets(path: str) -> None:
    assert is_secret(path)


@pytest.mark.parametrize("path", OTHERS)
def test_no_secrets(path: str) -> None:
    assert not is_secret(path)
