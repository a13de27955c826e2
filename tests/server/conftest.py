"""Fixtures: a daemon around an engine of tiny random models, one as a separate process, and the target's own texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from codespec.api.types import Completion, CompletionRequest
from codespec.proposers.lookup import SuffixProposer
from tests.cli.conftest import Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import user_environment
from tests.pairs import build, model
from tests.server.daemons import Served, serving
from tests.server.talkers import chat_tokenizer, engine_of
from tests.server.test_process import Process, daemon

Plain = Callable[[CompletionRequest], list[Completion]]
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
TWINS = count(7)  # a module of another folder that imports a fixture gets its own engine, so its own cache


@pytest.fixture(scope="session")
def toy() -> Iterator[Served]:
    """Serve a target with four slots that speculates with a drafter of another tokenizer."""
    target, drafter = model("llama", "gpt2", twin=next(TWINS)), model("gpt_neox", "bytes", seed=1, twin=next(TWINS))
    engine = build(target, drafter=drafter, max_batch=4, draft_tokens=3, prefill_chunk=64)
    engine.proposers = (SuffixProposer(), *engine.proposers)
    with serving(engine, slots=4, queue=300) as served:
        yield served


@pytest.fixture(scope="session")
def talker() -> Iterator[Served]:
    """Serve a chat model."""
    with serving(engine_of(chat_tokenizer())) as served:
        yield served


@pytest.fixture(scope="session")
def plain() -> Plain:
    """Return a function that completes a request with the same target without speculation, in this thread."""
    engine = build(model("llama", "gpt2", twin=next(TWINS)), max_batch=4)

    def complete(request: CompletionRequest) -> list[Completion]:
        (first,) = engine.complete([request])
        return [first, *first.alternatives]

    return complete


@pytest.fixture(scope="session")
def real(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:  # noqa: F811
    """Run `codespec serve` as a user starts it, with a chat template; yield it when it is ready."""
    home = tmp_path_factory.mktemp("home")
    target = Path(shutil.copytree(models.target, home / "target"))
    facts = target / "tokenizer_config.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "chat_template": TEMPLATE}))
    homes = user_environment(XDG_STATE_HOME=str(home / "state"))
    words = [*replace(models, target=target).flags, "--threads", "1", "--no-prefetch"]
    with daemon(*words, env=homes) as served:
        served.until_ready()
        yield served
