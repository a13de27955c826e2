"""The process behind a socket is identified by the system, not by the socket's name alone."""

from __future__ import annotations

import os
import socket

import pytest

from codespec.client.proven_connections import is_ours


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not tell who listens")
def test_a_process_of_another_users_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert is_ours(one)
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
        assert not is_ours(one)
