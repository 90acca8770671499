"""The names that `import hicache` shows, and what can be imported where torch is not."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import hicache
from hicache.tests.front.child import run_python

WITHOUT_TORCH = ("hicache", "hicache.config", "hicache.keys", "hicache.types", "hicache.errors", "hicache.clock")
PACKAGES_WITHOUT_TORCH = ("hicache.tree", "hicache.components")


@pytest.mark.parametrize("name", hicache.__all__)
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(hicache, name)
    if name == "__version__":
        return
    module = import_module(hicache._MODULE_OF[name])
    assert value is getattr(module, name), f"hicache.{name} is {value!r}, {module.__name__} has another"
    assert name in dir(hicache), f"dir(hicache) lacks {name}"


def test_no_public_name_is_kept_back() -> None:
    lazy, listed = {*hicache._MODULE_OF, "__version__"}, set(hicache.__all__)
    assert lazy == listed, f"__all__ has {listed - lazy} too many, and lacks {lazy - listed}"


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'hicache' has no attribute 'open_cash'"):
        _ = hicache.open_cash


def test_importing_hicache_loads_no_library(tmp_path: Path) -> None:
    program = "import sys, hicache; print({'numpy', 'torch', 'xxhash', 'yaml'} & {*sys.modules})"
    printed = run_python(tmp_path, "-c", program)
    assert printed == "set()\n", f"import hicache loads {printed}"


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_a_module_is_imported_without_torch(module: str, tmp_path: Path) -> None:
    printed = run_python(tmp_path, "-c", f"import sys, {module}; print('torch' in sys.modules)")
    assert printed == "False\n", f"import {module} loads torch"


@pytest.mark.parametrize("package", PACKAGES_WITHOUT_TORCH)
def test_every_module_of_a_package_is_imported_without_torch(package: str, tmp_path: Path) -> None:
    program = (
        f"import sys, pkgutil, importlib, {package} as package\n"
        "names = [one.name for one in pkgutil.walk_packages(package.__path__, package.__name__ + '.')]\n"
        "print(len(names) > 2, [name for name in names if importlib.import_module(name) and 'torch' in sys.modules])\n"
    )
    printed = run_python(tmp_path, "-c", program)
    assert printed == "True []\n", f"expected modules that load no torch, got {printed}"


def test_configurations_need_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys, hicache\n"
        "shape = hicache.ModelShape.hybrid(full_layers=2, kv_heads=2, head_dim=8, dtype='bfloat16')\n"
        "host = hicache.HostConfig({'full': 64})\n"
        "storage = hicache.StorageConfig('file', model='org/name@revision', options={'root': 'pages'})\n"
        "hicache.CacheConfig({'full': 64}, page_size=16, model=shape, host=host, storage=storage)\n"
        "print('torch' in sys.modules)\n"
    )
    printed = run_python(tmp_path, "-c", program)
    assert printed == "False\n", f"a configuration loads torch: {printed}"
