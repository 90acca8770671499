"""The import graph keeps the rules, and the check finds each way of breaking them."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from hicache.testing.plugin.tags import SUITES
from hicache.tests.architecture.layers import Import, broken_rules, read_imports

ROOT = Path(__file__).parents[3]
FOLDERS = ("hicache", *SUITES)

FORBIDDEN = {
    "torch in the pools": ("hicache/pools/buffers.py", "import torch", "torch"),
    "torch of an engine": ("hicache/engines/vllm/adapter.py", "from torch import distributed", "torch.distributed"),
    "torch in the tree": ("hicache/tree/node.py", "import torch", "torch"),
    "torch inside a function": ("hicache/keys.py", "def f():\n    from torch import nn", "torch.nn"),
    "the tree knows the pools": (
        "hicache/tree/radix.py",
        "from hicache.pools import allocator",
        "hicache.pools.allocator",
    ),
    "the pools know the tree": ("hicache/pools/device.py", "import hicache.tree.node", "hicache.tree.node"),
    "a component knows the pools": (
        "hicache/components/full.py",
        "from ..pools.allocator import alloc",
        "hicache.pools.allocator.alloc",
    ),
    "the core knows the kit": ("hicache/cache.py", "from hicache.testing import adapter", "hicache.testing.adapter"),
    "the kit knows the cache": ("hicache/testing/plugin/hooks.py", "from hicache import cache", "hicache.cache"),
    "the oracle knows the keys": ("hicache/testing/models/tree.py", "import hicache.keys", "hicache.keys"),
    "a suite knows the cache": ("conformance/test_a.py", "import hicache.cache", "hicache.cache"),
    "a suite knows its sibling": ("properties/test_a.py", "from conformance import specs", "conformance.specs"),
    "a core test needs torch": ("hicache/tests/cache/core/test_a.py", "import torch", "torch"),
    "the core reads the clock": ("hicache/cache.py", "from time import monotonic", "time.monotonic"),
    "a layer that nobody named": ("hicache/extra.py", "import json", "json"),
}

ALLOWED = {
    "a sibling in the suite": ("conformance/test_a.py", "from .specs import SPECS"),
    "the kit in a suite": ("benchmarks/test_a.py", "from hicache.testing.adapter import CacheAdapter"),
    "the cache in its adapter": ("hicache/testing/caches/reference.py", "import hicache.cache"),
    "the kit in the command line": ("hicache/cli/app.py", "import hicache.testing.plugin.hooks"),
    "torch in its own module": ("hicache/optional_torch.py", "import torch"),
    "optional torch in the pools": ("hicache/pools/buffers.py", "from hicache.optional_torch import torch"),
    "the clock in the kit": ("hicache/testing/replay/run.py", "import time"),
}


def _objections(root: Path, path: str, source: str) -> list[str]:
    (root / path).parent.mkdir(parents=True)
    (root / path).write_text(source, encoding="utf-8")
    return broken_rules(read_imports(root, FOLDERS))


def test_every_import_keeps_the_rules() -> None:
    imports = list(read_imports(ROOT, FOLDERS))
    assert imports, f"no import was found below {ROOT}: the check looked at nothing"
    objections = broken_rules(imports)
    assert not objections, "imports that the rules of the house forbid:\n" + "\n".join(objections)


@pytest.mark.parametrize(("path", "source", "target"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_a_forbidden_import_is_named(tmp_path: Path, path: str, source: str, target: str) -> None:
    objections = _objections(tmp_path, path, source)
    expected = f"{path}:{len(source.splitlines())}: imports {target}, but "
    assert len(objections) == 1, f"expected one objection to {source!r} in {path}, got {objections}"
    assert objections[0].startswith(expected), f"expected {expected!r}..., got {objections[0]!r}"


@pytest.mark.parametrize(("path", "source"), ALLOWED.values(), ids=ALLOWED)
def test_a_permitted_import_passes(tmp_path: Path, path: str, source: str) -> None:
    objections = _objections(tmp_path, path, source)
    assert not objections, f"{source!r} in {path} is permitted, got {objections}"


def circle(imports: Iterable[Import]) -> list[str]:
    """The modules of a circle, in order; empty when there is none. Imports in functions and for types count."""
    found = list(imports)
    modules = {one.importer for one in found}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for one in found:
        parent = one.target.rpartition(".")[0]
        target = one.target if one.target in modules else parent
        if target in modules and target != one.importer:
            graph[one.importer].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other() -> None:
    found = circle(read_imports(ROOT, FOLDERS))
    assert not found, f"modules that import each other: {' < '.join(found)}"


@pytest.mark.parametrize(
    "source",
    [
        "from hicache.b import B",
        "import hicache.b",
        "def f():\n    from hicache import b",
        "if T:\n    import hicache.b",
    ],
)
def test_a_circle_is_found(tmp_path: Path, source: str) -> None:
    (tmp_path / "hicache").mkdir()
    (tmp_path / "hicache/a.py").write_text(source, encoding="utf-8")
    (tmp_path / "hicache/b.py").write_text("import hicache.c", encoding="utf-8")
    (tmp_path / "hicache/c.py").write_text("from .a import A", encoding="utf-8")
    found = circle(read_imports(tmp_path, ("hicache",)))
    assert set(found) == {"hicache.a", "hicache.b", "hicache.c"}, f"expected a, b and c, got {found}"
