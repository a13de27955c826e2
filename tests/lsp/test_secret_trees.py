"""Generated trees: nothing secret or ignored is in a request, a log, a message or the status.

A secret is the text of a file that is secret by name or ignored, or a key or a token in an ordinary file that is not
the completed one itself.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.config.test_secret_files import SECRETS
from tests.config.test_secret_text import KEY, TOKENS
from tests.lsp.conversation import Editor, run, until
from tests.lsp.fake_daemon import FakeDaemon, talking

TREES, MANY = 6, 10_000
NAMED = [name for name in SECRETS if not set(name) & set(":%#?\\;~ ") and not name.endswith("/")]
NAMED = [name for name in NAMED if not name.startswith("/") and ".git/" not in name and len(name) < 100]
HIDDEN = "never = 'HIDDEN-TEXT-OF-A-SECRET-FILE'\n"
OWN = {"notSecretFiles": ["token.json"], "secretFiles": ["mine/"], "budgetMs": 60_000}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("codespec_lsp.daemon.FILES_DELAY_S", 0.0)
    monkeypatch.setattr("codespec_lsp.exclusions.DECISION_TIMEOUT_S", 60.0)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    ignore = tmp_path / "home" / ".config" / "git" / "ignore"
    ignore.parent.mkdir(parents=True)
    ignore.write_text("globally.py\n")


def grow(chance: random.Random, top: Path) -> dict[str, str]:
    """Make a repository; return the texts of its files. main.py is the completed one."""
    subprocess.run(["git", "init", "-q", str(top)], check=True, timeout=60)
    folder = chance.choice(["", "src/", "a/b/"])
    texts = {f"{folder}{name}": HIDDEN for name in chance.sample(NAMED, 4)}
    ignored = chance.sample(["ignored.py", "local.py", "globally.py", "sub/private.py", "mine/x.py"], 3)
    texts |= {f"{folder}{name}": HIDDEN for name in ignored}
    (top / ".gitignore").write_text("ignored.py\nprivate.py\n")
    (top / ".git" / "info" / "exclude").write_text("local.py\n")
    rows = [f"def work{number}(x):\n    return x + {number}\n" for number in range(6)]
    for _ in range(3):
        rows.insert(chance.randrange(len(rows)), f"key = '{chance.choice(TOKENS)}'\n")
    rows.insert(chance.randrange(len(rows)), f'"""\n{KEY}"""\n')
    texts[f"{folder}helper.py"] = "import os\n" + "".join(rows)
    texts[f"{folder}beside.py"] = "".join(reversed(rows))
    names = [Path(name).stem for name in (*ignored, "helper", "link") if "." not in Path(name).stem]
    texts[f"{folder}main.py"] = "".join(f"import {name}\n" for name in names) + "value = \n"
    for name, text in texts.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    (top / folder / "link.py").symlink_to(Path(ignored[0]))
    texts[f"{folder}link.py"] = HIDDEN
    return texts


async def work(chance: random.Random, client: Editor, fake: FakeDaemon, top: Path) -> dict[str, Any]:
    """Open some of the files, edit them, and complete in main.py and in a secret file. Return the status."""
    texts = grow(chance, top)
    client.notify(
        "workspace/didChangeWorkspaceFolders", {"event": {"added": [{"uri": top.as_uri(), "name": "x"}], "removed": []}}
    )
    main = next(name for name in texts if name.endswith("main.py"))
    opened = [name for name in texts if name != main and chance.random() < 0.7]
    for name in opened:
        uri = (top / name).as_uri()
        client.open(texts[name], uri=uri)
        client.type(2, chance.randrange(texts[name].count("\n")), 0, "# edited\n", uri=uri)
    uri = (top / main).as_uri()
    client.open(texts[main], uri=uri)
    row = texts[main].count("\n") - 1
    while not (shown := await client.texts(row, 8, uri=uri)):
        continue  # the time for an answer ran out on a busy machine
    assert shown == ["value = 1"]
    document = fake.asked[-1].body["document"]  # a visit elsewhere or a close would cancel the sending of its files
    await until(lambda: any(body["files"] for body in fake.files if body["document"] == document))
    hidden = [name for name in opened if texts[name] == HIDDEN and "token.json" not in name]
    for name in hidden[:2]:
        assert await client.texts(1, 0, uri=(top / name).as_uri()) == [], name
    status = await client.status()
    for name in (*opened, main):
        client.close((top / name).as_uri())
    return status


def check(left: str) -> None:
    """Assert that no secret is in what left the server."""
    assert "HIDDEN-TEXT" not in left and "PRIVATE KEY" not in left and KEY.splitlines()[1] not in left
    assert [token for token in TOKENS if token in left] == []


async def trees(seeds: range, tmp_path: Path) -> None:
    async with talking({"initializationOptions": OWN}) as (client, fake):
        fake.script = ["1"]
        told = [await work(random.Random(seed), client, fake, tmp_path / f"tree{seed}") for seed in seeds]
        snippets = repr([asked.body["snippets"] for asked in fake.asked])
        assert "def work" in snippets, "the rest of such a file goes along"
        check(repr([each.body for each in (*fake.asked, *fake.warmed)] + fake.files))
        check(repr(told + client.told + client.asked))


def test_trees(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(trees(range(TREES), tmp_path), seconds=300)
    check("".join(capfd.readouterr()))


@pytest.mark.full
def test_many_trees(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for first in range(0, MANY, 20):
        run(trees(range(first, first + 20), tmp_path), seconds=600)
        check("".join(capfd.readouterr()))
        for seed in range(first, first + 20):
            shutil.rmtree(tmp_path / f"tree{seed}")


def test_the_users_own_lists(tmp_path: Path) -> None:
    """A file that the user calls no secret is completed, but never goes along; one that they call a secret is none."""

    async def scenario() -> None:
        own = {"secretFiles": ["*.local.py"], "notSecretFiles": ["/conf/.env.example"], "budgetMs": 60_000}
        folder = {"uri": tmp_path.as_uri(), "name": "x"}
        async with talking({"initializationOptions": own, "workspaceFolders": [folder]}) as (client, fake):
            fake.script = ["1"]
            for name, shown in (("conf/.env.example", ["x = 1"]), (".env.example", []), ("a.local.py", [])):
                uri = (tmp_path / name).as_uri()
                client.open("x = \n", uri=uri)
                assert await client.texts(0, 4, uri=uri) == shown, name
            client.open("y = \n", uri=(tmp_path / "b.py").as_uri())
            await client.texts(0, 4, uri=(tmp_path / "b.py").as_uri())
            assert fake.asked[-1].body["snippets"] == []

    run(scenario())
