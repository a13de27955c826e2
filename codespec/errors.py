"""Every error a user can meet; knows the sentences' shape (what is wrong, and the mend), not where they are shown.

CodespecError
├── ConfigError       an option or a configuration key that cannot be used
├── RequestError      a request that cannot be served; `field` names the part at fault
├── ModelError        a model folder that is missing, broken or not supported
│   └── TokenizerError    a tokenizer whose text does not survive bytes → ids → bytes
├── PairError         a target and a drafter that cannot work together
├── TrainingError     a corpus, a checkpoint or a disk that stops a training run
├── MismatchError     a text that differs from plain decoding where `exact` mode rules it out: codespec's fault
└── ServeError        a daemon that cannot take a request now, or lost one; `status` is HTTP's
"""

from __future__ import annotations


def install_mend(extras: str = "engine", flags: str = "") -> str:
    """How a missing package is mended, for the end of a sentence. Never by codespec's name: it is not on the package
    index, and whoever registers it there would run code on the machine of everybody who follows the sentence.
    """
    what = f'".[{extras}]"' if extras else "."  # quoted: in zsh brackets are a pattern
    return f"run `{' '.join(['pip install', *flags.split(), what])}` in codespec's checkout"


class CodespecError(Exception):
    """Base of all errors that carry one sentence for the user; the command line exits 2 on it, on MismatchError 1."""


class ConfigError(CodespecError):
    """An option or a configuration key that cannot be used."""


class RequestError(CodespecError):
    """A request that cannot be served. `field` is the request's field at fault."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ModelError(CodespecError):
    """A model folder that is missing, broken or not supported."""


class TokenizerError(ModelError):
    """A tokenizer whose text does not survive bytes → ids → bytes."""


class PairError(CodespecError):
    """A target and a drafter that cannot work together."""


class TrainingError(CodespecError):
    """A corpus, a checkpoint or a disk that stops a training run."""


class MismatchError(CodespecError):
    """A text that differs from plain decoding where `exact` mode rules it out: codespec's fault, not the user's."""


class ServeError(CodespecError):
    """A request that the daemon cannot take now, or lost. `status` is HTTP's, `retry_after` is seconds (0: never),
    `state` the daemon's where that is the reason: starting, stopping or failed.
    """

    def __init__(self, message: str, status: int = 503, retry_after: int = 0, state: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.state = state
