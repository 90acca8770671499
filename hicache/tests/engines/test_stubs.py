"""Stubs of packages that an engine imports."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from hicache.engines.stubs import Stub, StubFinder


def test_a_stub_has_every_name_and_only_the_package_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [StubFinder(("stubbed",)), *sys.meta_path])
    for name in ("stubbed", "stubbed.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    module = import_module("stubbed.bindings")
    assert module.anything is Stub, "every name is there"
    assert import_module("stubbed").__version__ == "0", "some engines compare the version of a package"
    assert not hasattr(module, "__version__"), "NIXL takes the version of cuda.bindings for that of CUDA"
