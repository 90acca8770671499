"""The ports of engines that tests start."""

from __future__ import annotations

import secrets
import socket

import pytest

from hicache.tests.storage.engines.engine import HOST, free_ports


def test_ports_are_free_and_different(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = free_ports(3)
    with socket.socket() as other:
        other.bind((HOST, first))
        drawn = iter([first, second, second, third])
        monkeypatch.setattr(secrets, "choice", lambda _: next(drawn))
        found = free_ports(2)
    assert first not in found, f"port {first} is in use, got {found}"
    assert len(set(found)) == 2, f"each process has its own, got {found}"
