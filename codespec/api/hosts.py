"""Validate host names before resolving them, and find out whether only this machine can reach one."""

from __future__ import annotations

import re
from ipaddress import ip_address

_NAME = re.compile(r"[^\x00-\x20\x7f/:@\[\]?#]{1,253}")


def is_host(host: str) -> bool:
    """Return whether a text can be an IP address or a host's name, without brackets or a port."""
    try:
        ip_address(host)
    except ValueError:
        return _NAME.fullmatch(host) is not None and _has_labels(host)
    return True


def _has_labels(host: str) -> bool:
    """Return whether each part between dots has a length that DNS can carry."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
