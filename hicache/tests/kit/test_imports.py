"""Tests of imports without garbage collection."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from hicache.testing.imports import MANY_MODULES, without_collection


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of modules that the test may add, and garbage collection as it was."""
    found = [f"hicache_imported_{number}" for number in range(MANY_MODULES)]
    for name in found:
        monkeypatch.delitem(sys.modules, name, raising=False)
    is_on = gc.isenabled()
    yield found
    for name in found:
        sys.modules.pop(name, None)
    (gc.enable if is_on else gc.disable)()


def _import(name: str) -> None:
    with without_collection():
        assert not gc.isenabled(), "expected no collection during the import: it is enabled"
        __import__(name)


@pytest.mark.parametrize("is_on", [True, False])
def test_collection_is_disabled_only_meanwhile(names: list[str], is_on: bool) -> None:
    """Also after an import that fails it is as it was."""
    (gc.enable if is_on else gc.disable)()
    with pytest.raises(ImportError, match=names[0]):
        _import(names[0])
    assert gc.isenabled() is is_on, f"collection was {is_on} before the import, and is {gc.isenabled()} after it"


def test_what_many_modules_created_is_frozen(names: list[str]) -> None:
    """Later collections leave it out."""
    before = gc.get_freeze_count()
    with without_collection():
        sys.modules.update({name: ModuleType(name) for name in names})
    frozen = gc.get_freeze_count() - before
    assert frozen >= MANY_MODULES, f"expected at least {MANY_MODULES} more frozen objects, got {frozen}"


def test_what_few_modules_created_is_not_frozen(names: list[str]) -> None:
    """Each import of an adapter would otherwise freeze the garbage of its time."""
    before = gc.get_freeze_count()
    with without_collection():
        sys.modules.update({name: ModuleType(name) for name in names[1:]})
    after = gc.get_freeze_count()
    assert after <= before, f"expected no more than the {before} frozen objects of before, got {after}"
