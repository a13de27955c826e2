"""What a prompt holds at `this.#`, where a model wrote `query`, which does not exist, for `currentQuery`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from codespec.text.fim import build_prompt
from tests.lsp.conversation import run
from tests.lsp.fake_daemon import talking
from tests.text.test_fim import PIPED, spelled, template_of, with_tokens

QUERY = """export class Query<T> {
  queryKey: QueryKey
  #cache: QueryCache
  constructor(config: QueryConfig<T>) {
    this.#cache = config.cache
  }
  fetch(options?: QueryOptions<T>): Promise<T> {
    return this.#cache.get(this.queryKey)
  }
}
"""
OBSERVER = """import { Query } from './query'

export class QueryObserver {
  #currentQuery: Query = undefined!
  #currentResult: Result = undefined!

  update(query: Query): void {
    if (query === this.#currentQuery) {
      return
    }
    const previous = this.#currentQuery
    this.#
  }
}
"""
HEADS = """class Query<T>
  queryKey: QueryKey
  constructor(config: QueryConfig<T>)
  fetch(options?: QueryOptions<T>): Promise<T>
"""


@pytest.fixture(scope="module")
def body() -> dict[str, Any]:
    """The request at `this.#`, with the imported class open beside."""
    return run(_ask())


async def _ask() -> dict[str, Any]:
    here = "file:///p/observer.ts"
    async with talking() as (client, fake):
        fake.script = ["currentQuery"]
        client.open(QUERY, uri="file:///p/query.ts", language="typescript")
        client.open(OBSERVER, uri=here, language="typescript")
        while True:  # trees are parsed shortly after a change
            await client.texts(11, 10, uri=here, trigger=1)
            if fake.asked[-1].body["snippets"]:
                return fake.asked[-1].body
            await asyncio.sleep(0.05)
            client.type(len(fake.asked) + 1, 0, 0, " ", uri=here)


def test_the_other_files_private_names_are_left_out(body: dict[str, Any]) -> None:
    """They can't be meant here."""
    assert body["snippets"] == [{"path": "p/query.ts", "text": HEADS}]
    assert body["prefix"].endswith("    const previous = this.#currentQuery\n    this.#")


@pytest.mark.parametrize("budget", [256, 512, 4096])
def test_the_names_that_do_exist_come_before_other_files(body: dict[str, Any], budget: int) -> None:
    """A budget in bytes: the smallest has the rows at the cursor, the next the declaration of the name as well."""
    tokenizer = with_tokens([*PIPED, "<|file_sep|>"])
    prompt = build_prompt(
        tokenizer,
        template_of(tokenizer),
        prefix=body["prefix"],
        suffix=body["suffix"],
        path=body["path"],
        snippets=[(each["path"], each["text"]) for each in body["snippets"]],
        budget=budget,
        append=True,
    )
    text = spelled(tokenizer, prompt)
    assert "const previous = this.#currentQuery\n" in text and text.endswith("<|fim_middle|>    this.#")
    assert ("  #currentQuery: Query" in text) == (budget >= 512) and "#query" not in text
    others = text.partition("<|fim_prefix|>")[0].replace("<|file_sep|>", ".")
    assert len(others) <= budget // 4 and (HEADS in others) == (budget == 4096)
