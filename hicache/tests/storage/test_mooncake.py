"""MooncakeStorage where its client is not installed."""

from __future__ import annotations

import sys

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.registry import open_backend

from .conftest import SCOPE


def test_a_client_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mooncake", "mooncake.store"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"pip install 'hicache\[mooncake\]'"):
        open_backend("mooncake", SCOPE, {})
