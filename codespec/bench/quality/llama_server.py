"""A running llama-server as a contestant: greedy completions of prompts in ids, over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from codespec.bounded_json import parse_json
from codespec.errors import ConfigError

SECONDS = 600.0
MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """The server at `url`."""

    url: str

    def facts(self) -> dict[str, Any]:
        """Its model's file name, parameters (0: not reported) and its build. ConfigError if no llama-server answers."""
        props, models = self._ask("/props"), self._ask("/v1/models")
        try:
            path = str(props.get("model_path") or props.get("model_alias") or "")
            meta = models["data"][0].get("meta") or {}
            return {
                "model": PurePath(path).name or "unnamed",
                "build": str(props.get("build_info", "unknown build")),
                "parameters": int(meta.get("n_params", 0)),
            }
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"No llama-server answers at {self.url}: check --llama-server.") from error

    def complete(self, ids: Sequence[int], tokens: int, stops: Sequence[str]) -> str:
        """The greedy completion of a prompt, at most `tokens` long, without the stop text."""
        reply = self._ask(
            "/completion",
            {
                "prompt": list(ids),
                "n_predict": tokens,
                "temperature": 0.0,
                "top_k": 1,
                "repeat_penalty": 1.0,
                "stop": list(stops),
                "cache_prompt": False,
                "stream": False,
            },
        )
        if reply.get("truncated"):
            raise ConfigError(f"The prompt does not fit into {self.url}: start it with a context of 2048 or more.")
        content = reply.get("content")
        if not isinstance(content, str):
            raise ConfigError(f"The server at {self.url} returned no text: check --llama-server.")
        return content

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ConfigError(f"{self.url} is not an http address: write --llama-server http://HOST:PORT.")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url.rstrip("/") + path, data, {"Content-Type": "application/json"} if data else {}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a local server is behind no proxy
        try:
            with opener.open(request, timeout=SECONDS) as reply:
                found = parse_json(reply.read(MOST_BYTES))
        except urllib.error.HTTPError as error:
            raise ConfigError(f"The server at {self.url} refused {path} (HTTP {error.code}): see its log.") from error
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"No llama-server answers at {self.url} ({type(error).__name__}): check --llama-server."
            ) from error
        if not isinstance(found, dict):
            raise ConfigError(f"No llama-server answers at {self.url}: check --llama-server.")
        return found
