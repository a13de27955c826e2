"""The settings of the engine and of the daemon, with their types, ranges and descriptions."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.api.limits import is_host, is_loopback
from codespec.api.settings import Settings, check_values, setting
from codespec.errors import ConfigError
from codespec.user_folders import TOKEN_VARIABLE, at_home

_WEIGHTS = importlib.util.find_spec("codespec_weights")  # does not import the package
# The folder of the bundled models, which does not exist if their package is not installed.
SHIPPED = Path(_WEIGHTS.origin).parent if _WEIGHTS and _WEIGHTS.origin else Path(__file__).parent / "weights"
DTYPES = ("float32", "bfloat16", "float16", "native")
MODES = ("exact", "fast")
POLICIES = ("cost+syntax", "cost", "fixed", "ds4-80")
MAX_THREADS = 256  # torch crashes if it cannot start its threads
EDITOR_IDLE_UNLOAD = 30.0  # minutes
EDIT_FORMATS = ("auto", "none", "sweep-server", "sweep-card", "zeta-2.1", "zeta-2", "zeta-1", "chat")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine. The constructor raises ConfigError for an invalid value."""

    model: str = setting(
        "",
        "target and drafter together, by a name from `codespec models list`; a `target` or `drafter` of the same "
        "level takes precedence",
        shown="`qwen2.5-coder-1.5b-instruct` or `qwen2.5-coder-0.5b-instruct`, "
        "[as suits this machine](models.md#pick-a-model) and is pulled, else `starter`",
        metavar="NAME",
        common=True,
    )
    target: str = setting(
        str(SHIPPED / "target"),
        "the model that decides: a folder in the Hugging Face layout, a `.gguf` file, a pulled model or a hub id",
        shown="the model's",
        metavar="PATH|HUB_ID",
        common=True,
    )
    drafter: str = setting(
        str(SHIPPED / "drafter"),
        "the model that drafts: as for `target`, or `none`; a target without a drafter gets the starter pair's",
        shown="the model's",
        metavar="PATH|HUB_ID|none",
        common=True,
    )
    head: str = setting(
        "none",
        "the folder of an EAGLE-3 or DFlash head trained for the target ([speculation.md](speculation.md#proposers))",
        metavar="FOLDER",
    )
    device: str = setting("cpu", "where the target runs: `cpu`, `cuda`, `cuda:1` or `auto`", common=True)
    drafter_device: str = setting("same", "where the drafter runs: `same` means on the target's device")
    dtype: str = setting(
        "float32",
        "the target's number format; `float32`, `bfloat16`, `float16`, and on a CPU `native`: a GGUF file's own bits, "
        "or a folder's weights in eight bits, in codespec's kernels. That is the default of the starter pair and of "
        "GGUF files of Llama-shaped models. On a GPU, a target that you name uses `bfloat16` unless `dtype` is set. A "
        "`model` uses the format that suits it, if this processor supports that format",
        choices=DTYPES,
        common=True,
    )
    drafter_dtype: str = setting(
        "float32", "the drafter's number format; your own drafter uses the target's unless this is set", choices=DTYPES
    )
    mode: str = setting(
        "exact",
        "`exact`: the target's text bit for bit; `fast`: the same up to near-ties "
        "([more](speculation.md#exact-and-fast))",
        choices=MODES,
        common=True,
    )
    speculate: bool = setting(True, "draft unless a request says otherwise")
    proposers: str = setting(
        "chain",
        "the source of drafts: `chain` tries `prediction`, `suffix`, `head`, then `draft_model`; or only one of these",
        choices=("chain", "prediction", "suffix", "head", "draft_model"),
    )
    policy: str = setting(
        "cost+syntax", "how draft lengths are set; for comparison: `cost`, `fixed:N`, `ds4-80`", metavar="NAME"
    )
    caps: dict[str, int] = setting(
        dict,
        "longest drafts by context class, or by language and class; in a file, a table `[caps]`",
        shown="none",
        metavar="CLASS=N,…",
    )
    learn: bool = setting(True, "keep the acceptance rates that were learned for this pair, in the state folder")
    draft_tokens: int = setting(
        32,
        "the longest draft in target tokens; more than 16 only if that many rows cost little more than one, as "
        "measured; up to twice as many from a client's `prediction`",
        least=0,
    )
    warmup: int = setting(0, "target tokens of context, including the prompt, before the first draft", least=0)
    context: int = setting(
        0,
        "target tokens of prompt and completion together; `auto`: the model's maximum, but at most a sixteenth of the "
        "memory (on a GPU, of the memory that the weights leave), and at least 2,048 if the model allows it",
        least=64,
        automatic=True,
    )
    first_answer_ms: int = setting(
        800,
        "limits an editor's prompts to as many tokens as this machine can read and answer in this time, or in a "
        "shorter one that the client gives, at least 256; raw prompts are never cut; 0: no limit except the context",
        least=0,
        most=600_000,
    )
    max_batch: int = setting(
        0,
        "requests that run at once; `auto`: 8, or 16 if that makes tokens clearly cheaper",
        least=0,
        most=256,  # each slot's memory is allocated up front
        automatic=True,
    )
    cache_mb: int = setting(
        0,
        "megabytes for keys and values of target and drafter together; the part that `max_batch` requests do not need "
        "keeps idle documents warm; 0: room for four times `max_batch`, up to 256",
        least=0,
        most=1 << 20,
    )
    prefill_chunk: int = setting(
        0, "prompt tokens per step; `auto`: 64 to 512, as many as take 0.2 s", least=16, automatic=True
    )
    graph_rows: int = setting(
        128, "rows of the largest step that a GPU replays as a captured graph; 0: none", least=0, most=512
    )
    threads: int = setting(
        0,
        "CPU threads; `auto`: from one to the physical cores (or `OMP_NUM_THREADS`), measured at the first start",
        least=0,
        most=MAX_THREADS,
        automatic=True,
    )

    def __post_init__(self) -> None:
        check_values(self)
        split_policy(self.policy)
        _check_caps(self.caps)
        for name, also in (("device", ()), ("drafter_device", ("same",))):
            value, words = getattr(self, name), (*also, "auto", "cpu", "cuda")
            if value not in words and not re.fullmatch(r"cuda:\d{1,3}", value):
                raise ConfigError(f"{name} = {value!r} is unknown", f"choose one of {', '.join(words)}")

    @property
    def asks_drafter(self) -> bool:
        return self.proposers in ("chain", "draft_model")

    @property
    def needs_torch(self) -> bool:
        """Whether one of the models or a head must run in torch."""
        drafts = self.asks_drafter and self.drafter != "none"
        return self.dtype != "native" or (drafts and self.drafter_dtype != "native") or self.asks_head

    @property
    def asks_head(self) -> bool:
        """Whether a head is configured and the proposers include it."""
        return self.head != "none" and self.proposers in ("chain", "head")


def make_config(values: Mapping[str, Any]) -> EngineConfig:
    """Return the engine's settings. Expand ~ in paths, and derive the drafter's number format from the target's."""
    settings = dict(values)
    for name in ("target", "drafter"):
        if name in settings:
            settings[name] = at_home(settings[name])
    # No dtype makes the small bundled drafters faster than float32, but `native` loads sooner.
    shipped, dtype = Path(settings.get("drafter", SHIPPED)).is_relative_to(SHIPPED), settings.get("dtype", "")
    on_gpu = settings.get("drafter_device", "").startswith("cuda")
    if (dtype == "native" and not on_gpu) or (dtype and dtype != "native" and not shipped):
        settings.setdefault("drafter_dtype", dtype)
    return EngineConfig(**settings)


def split_policy(policy: str) -> tuple[str, int | None]:
    """Split a policy such as `fixed:3` into its name and number (or None). Raise ConfigError for an invalid policy."""
    name, colon, text = policy.partition(":")
    if name not in POLICIES:
        raise ConfigError(f"policy = {policy!r} is unknown", f"choose one of {', '.join(POLICIES)}")
    if not colon:
        return name, None
    if name == "fixed" and re.fullmatch(r"\d{1,3}", text):
        return name, int(text)
    raise ConfigError(f"policy = {policy!r} is invalid", "only `fixed` takes a number, for example fixed:3")


def _check_caps(caps: Mapping[str, Any]) -> None:
    if not caps:
        return
    from codespec_grammars import Context, language_names

    for name, tokens in caps.items():
        language, _, context = name.rpartition(".")
        if context not in list(Context) or (language and language not in language_names()):
            what = f"caps: {name!r} is not a context or language.context"
            raise ConfigError(what, f"choose one of {', '.join(Context)}")
        if type(tokens) is not int or not 0 <= tokens <= 999:
            raise ConfigError(f"caps: {name} = {tokens!r} is invalid", "use a whole number of tokens from 0 to 999")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Settings of the daemon. The constructor raises ConfigError for an invalid value."""

    host: str = setting(
        "127.0.0.1", "address to listen on; one that other machines can reach needs a token", common=True
    )
    port: int = setting(
        8765, "0: any free port, which the first printed line reports", least=0, most=65535, common=True
    )
    socket: str = setting(
        "auto",
        "a Unix socket in addition to the port: a path, `none`, or `auto` (`daemon-PORT.sock` in the state folder, "
        "which proves to editors that the daemon belongs to their user)",
        metavar="PATH",
        common=True,
    )
    token_file: str = setting(
        "",
        "every request must carry the token in this file; `CODESPEC_SERVE_TOKEN` can hold the token instead",
        metavar="FILE",
        common=True,
    )
    upstream: str = setting(
        "",
        "the URL of an OpenAI-compatible server that generates the text, instead of a model on this machine "
        "([upstream.md](upstream.md))",
        metavar="URL",
        common=True,
    )
    upstream_token_file: str = setting("", "a file with the upstream server's key", metavar="FILE", common=True)
    upstream_model: str = setting(
        "", "the model to request, if the upstream server has several", shown="its only one", metavar="NAME"
    )
    upstream_prompt: int = setting(
        2048,
        "tokens of an editor prompt that are sent upstream: three bytes count as one until usage shows fewer",
        least=256,
        most=65_536,
    )
    upstream_patience: float = setting(
        30.0,
        "seconds without an event after which the upstream server counts as hung",
        metavar="SECONDS",
        least=0.1,
        most=600.0,
    )
    keys: str = setting(
        "",
        "every request must carry the token or one of the keys in this file, which [`codespec keys`]"
        "(clients.md#a-team) writes; changes apply within seconds",
        metavar="FILE",
        common=True,
    )
    metrics_token_file: str = setting(
        "", "`/metrics` also accepts the token in this file, which no other route accepts", metavar="FILE"
    )
    queue: int = setting(64, "requests that may wait; further ones get 429", least=0, most=10_000)
    drain_seconds: int = setting(30, "how long a stopping daemon waits for open requests", least=0, most=3600)
    prefetch: bool = setting(True, "while idle, compute the continuation of each completion as if it were accepted")
    edit_format: str = setting(
        "auto", "the prompt format of [next edits](edits.md#models); `auto`: by the model", choices=EDIT_FORMATS
    )
    idle_unload: float = setting(
        0.0,
        "minutes without a request after which the models are freed, until the next request loads them again; "
        "0: never; no effect with `upstream`",
        shown=f"{EDITOR_IDLE_UNLOAD:g} if an editor started the daemon, else 0",
        metavar="MINUTES",
        least=0.0,
        most=525_600.0,
    )
    access_log: bool = setting(False, "one line per request: method, route, status and duration, never text")
    log_kb: int = setting(
        0,
        "size in kB at which the older half of a log file on stdout or stderr is dropped; 0: never",
        least=0,
        most=1_000_000,
    )

    def __post_init__(self) -> None:
        check_values(self)
        if not is_host(self.host):
            shown = self.host[:80]
            raise ConfigError(f"host {shown!r} is invalid", "write it as 127.0.0.1, ::1 or a name, without a port")


def resolve_serve(flags: Mapping[str, Any], settings: Settings, *, on_demand: bool = False) -> ServeConfig:
    """Return the daemon's settings, which by default free idle models if `on_demand` is true. Raise ConfigError."""
    values: dict[str, Any] = {"idle_unload": EDITOR_IDLE_UNLOAD} if on_demand else {}
    for level in settings.levels(ServeConfig, flags, "serve"):
        values.update(level.values)
    return ServeConfig(**values)


def check_bind(host: str, token: str, keys: str = "") -> None:
    """Raise ConfigError if other machines can reach a daemon that requires neither a token nor a key."""
    if not token and not keys and not is_loopback(host):
        fix = f"give --token-file, --keys or {TOKEN_VARIABLE}, or listen on 127.0.0.1"
        raise ConfigError(f"Other machines can reach {host}, and nothing authenticates them", fix)
