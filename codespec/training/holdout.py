"""Which parts of the standard library and of the corpus venv never enter training; constants only.

Benchmarks and tests cut their prompts from these parts, so the list must only ever grow.
"""

from __future__ import annotations

# Packages of the standard library kept for evaluation.
HELD_OUT_STDLIB = ("asyncio", "email", "xml", "unittest")

# Projects kept whole for evaluation, by their names in the registries (`packages.toml` fetches them).
HELD_OUT_PROJECTS = frozenset(
    {
        "flask",
        "httpx",
        "click",
        "express",
        "zod",
        "@supabase/storage-js",
        "redux-thunk",
        "golang-github-spf13-cobra",
        "librust-clap-lex-dev",
        "librust-semver-dev",
        "librust-httparse-dev",
        "librust-strsim-dev",
        "spdlog",
        "jsoup",
        "jansson",
        "utf8proc",
    }
)

# Parts of the standard library that are tests, tables or generated text rather than code worth learning.
SKIPPED_STDLIB = (
    "site-packages",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "encodings",
    "pydoc_data",
    "turtledemo",
    "__pycache__",
    "ensurepip",
    "config-3",
    "tkinter",
)
