"""NixlFiles and NixlObjects where their clients are not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hicache.errors import ConfigurationError
from hicache.storage.registry import open_backend

from .conftest import SCOPE


def test_nixl_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    with pytest.raises(ConfigurationError, match=r"nixl\._api.*pip install 'hicache\[nixl\]'"):
        open_backend("nixl", SCOPE, {"root": str(tmp_path)})


def test_a_client_for_objects_that_is_not_installed_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'hicache\[nixl-objects\]'"):
        open_backend("nixl-objects", SCOPE, {"bucket": "pages"})
