"""The process behind a socket is identified by the system, not by the socket's name alone."""

from __future__ import annotations

import os
import socket

import pytest
from codespec_lsp import connections


class Transport:
    """A transport around a socket."""

    def __init__(self, own: socket.socket) -> None:
        self._own = own

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self._own


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not tell who listens")
def test_a_process_of_another_users_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert connections._is_ours(Transport(one))  # type: ignore[arg-type]
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
        assert not connections._is_ours(Transport(one))  # type: ignore[arg-type]
    assert not connections._is_ours(None)
