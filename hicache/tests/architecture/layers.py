"""Which package may import what: one line for each package, and the imports of the source that break it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hicache.testing.plugin.tags import SUITES

SHARED = (
    *("hicache.__version__", "hicache.types", "hicache.errors", "hicache.config", "hicache.config_mapping"),
    *("hicache.fingerprint", "hicache.parallel.group"),
)
GROUND = (
    *(*SHARED, "hicache.arguments", "hicache.bounded", "hicache.keys", "hicache.clock", "hicache.events"),
    "hicache.metrics",
)
CACHE = (
    "hicache.cache",
    "hicache.miss_log",
    "hicache.opening",
    "hicache.prometheus",
    "hicache.request",
    "hicache.runtime",
    "hicache.stats",
    "hicache.verbs",
)
CORE = (
    *GROUND,
    "hicache.tree",
    "hicache.components",
    "hicache.pools",
    "hicache.stacks",
    "hicache.parallel",
    "hicache.storage",
    "hicache.transfer",
    "hicache.tiers",
    *CACHE,
)

TORCH = "hicache.optional_torch"
"""The one module that imports torch, which may not be installed."""

REFERENCE = "hicache.testing.caches.reference"
RANKS = tuple(f"hicache.testing.ranks.{name}" for name in ("interposer", "launch", "process_world", "worker"))
MODELS = ("torch", "transformers", "tokenizers", "lm_eval", "datasets", "safetensors")
"""What runs models, and is asked for by the accuracy suite alone."""

LAYERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(GROUND, (*GROUND, "numpy")),
    "hicache": (*CORE,),
    TORCH: ("hicache.errors", "torch"),
    "hicache.config": (*GROUND, "tomli", "yaml"),
    "hicache.config_mapping": (*GROUND,),
    "hicache.tree": (*GROUND, "numpy"),
    "hicache.components": (*GROUND, "hicache.tree", "numpy"),
    "hicache.pools": (*GROUND, "hicache.transfer", "numpy", TORCH),
    "hicache.stacks": (*GROUND, "hicache.pools", TORCH),
    "hicache.parallel": (*GROUND,),
    **dict.fromkeys(
        ("hicache.parallel.communicators", "hicache.parallel.torch_group"), (*GROUND, "hicache.parallel", TORCH)
    ),
    "hicache.storage": (*GROUND, "numpy", "xxhash"),
    "hicache.storage.redis": (*GROUND, "hicache.storage", "redis"),
    "hicache.storage.nixl": (*GROUND, "hicache.storage", "nixl", "numpy"),
    "hicache.storage.objects": (*GROUND, "hicache.storage", "obstore"),
    "hicache.storage.mooncake": (*GROUND, "hicache.storage", "mooncake", "numpy"),
    "hicache.storage.hf3fs": (*GROUND, "hicache.storage"),
    "hicache.integrations": ("hicache.moved",),
    "hicache.integrations.sglang_slots": (*GROUND, "hicache.transfer", "numpy", TORCH),
    "hicache.integrations.sglang_radix_cache": (*CORE, "hicache.integrations.sglang_slots", "numpy", TORCH),
    "hicache.testing.adapters": ("hicache.moved",),
    "hicache.moved": (),
    "hicache.transfer": (*GROUND, "hicache.storage"),
    "hicache.transfer.executors": (*GROUND, "hicache.transfer"),
    "hicache.transfer.streams": (*GROUND, "hicache.transfer", TORCH),
    "hicache.tiers": (
        *(
            *GROUND,
            "hicache.tree",
            "hicache.components",
            "hicache.parallel",
            "hicache.pools",
            "hicache.stacks",
            "hicache.storage",
            "hicache.transfer",
            "numpy",
        ),
    ),
    **dict.fromkeys(CACHE, (*CORE, "numpy", TORCH)),
    "hicache.prometheus": (*CORE, "prometheus_client"),
    "hicache.testing.load": (*SHARED, "hicache.moved", "hicache.testing"),
    "hicache.testing": (
        *SHARED,
        "hicache.storage",
        "numpy",
        "pytest",
        "hypothesis",
        "jinja2",
        "rich",
    ),
    "hicache.testing.replay.plot": (*SHARED, "hicache.testing", "numpy", "matplotlib"),
    "hicache.testing.replay.states_plot": (*SHARED, "hicache.testing", "matplotlib"),
    "hicache.testing.models.tree": ("hicache.types", "hicache.testing.snapshot", "hicache.testing.violation", "numpy"),
    "hicache.testing.cuda": ("numpy", TORCH),
    "hicache.testing.cuda.sanitizer": ("hicache.testing.cuda", "torch"),
    "hicache.testing.devices": ("hicache.config", "hicache.errors", TORCH),
    "hicache.testing.census": (*SHARED, "numpy", TORCH),
    **dict.fromkeys(RANKS, (*SHARED, "hicache.testing", TORCH)),
    "hicache.testing.ranks.preloaded": ("hicache.testing", "hypothesis", "numpy", "pytest", TORCH),
    REFERENCE: (*CORE, "hicache.testing", "numpy", TORCH),
    "hicache.tests.proof.mutants": (*CORE, "hicache.testing", "numpy", "torch"),
    "hicache.engines": (*SHARED, "hicache.storage", "hicache.testing", "numpy", TORCH),
    "hicache.engines.below_sglang": (*GROUND, "hicache.storage", TORCH),
    "hicache.__main__": ("hicache.cli",),
    "hicache.cli.exposition": ("hicache", "typer", "rich", "prometheus_client"),
    "hicache.cli": ("hicache", "numpy", "pytest", "typer", "rich"),
    "hicache.tests": ("hicache", "numpy", "pytest", "hypothesis", "torch", "typer", "rich"),
    "hicache.tests.cache.test_metrics": ("hicache", "numpy", "pytest", "typer", "prometheus_client"),
    "hicache.tests.storage.engines.test_redis": ("hicache", "pytest", "redis"),
    "hicache.tests.storage.engines.hosts.engines": ("hicache", "redis"),
    "hicache.tests.storage.engines.test_redis_cluster": ("hicache", "pytest", "redis"),
    "hicache.tests.storage.engines.test_nixl": ("hicache", "pytest", "obstore"),
    "hicache.tests.storage.engines.test_objects": ("hicache", "pytest", "obstore"),
    "hicache.tests.storage.engines.test_mooncake": ("hicache", "pytest", "mooncake"),
    "hicache.tests.kit.test_defaults": ("hicache", "conformance"),
    "hicache.tests.kit.test_loading_machine": ("hicache", "properties", "hypothesis"),
    "hicache.tests.kit.test_lock": ("hicache", "pytest", "packaging"),
    "hicache.tests.kit.test_model": ("hicache", "properties", "numpy", "pytest"),
    "hicache.tests.kit.test_refused_configurations": ("hicache", "properties", "pytest", "hypothesis"),
    "hicache.tests.kit.test_workflows": ("hicache", "pytest", "typer", "yaml"),
    "hicache.tests.kit.accuracy": ("hicache", "accuracy", "numpy", "pytest", "torch"),
    "hicache.tests.kit.ranks": ("hicache", "distributed_tests", "numpy", "pytest", "torch"),
    "hicache.tests.cache.core": (
        *(*GROUND, "hicache.tree", "hicache.components", "hicache.testing.hybrid_model"),
        *("numpy", "pytest", "hypothesis"),
    ),
    **dict.fromkeys(SUITES, (*SHARED, "hicache.storage", "hicache.testing", "numpy", "pytest", "hypothesis")),
    "distributed_tests.test_collectives": (*SHARED, "hicache.testing", "distributed_tests", "pytest", TORCH),
    "accuracy": (*SHARED, "hicache.testing", "numpy", "pytest", *MODELS),
    "benchmarks": (*SHARED, "hicache.storage", "hicache.testing", "numpy", "pytest", "pytest_benchmark"),
    "benchmarks.test_gpu_transfers": (*SHARED, "hicache.testing", "benchmarks", "pytest", TORCH),
}
"""What each layer may import besides itself and the standard library. The longest name that fits a module counts."""

HANDED_IN = ("time", "threading", "torch.distributed")
"""What the core takes as arguments, so that a test can choose the time and the order of events."""

HANDING_IN = (
    "hicache.clock",
    "hicache.verbs",
    "hicache.bounded",
    "hicache.parallel.communicators",
    "hicache.parallel.torch_group",
    "hicache.storage",
    "hicache.transfer.executors",
)
"""Where those arguments are made, where the thread of a caller is identified, and backends, asked by many at once."""


def broken_rules(imports: Iterable[Import]) -> list[str]:
    """One line for each forbidden import: the file, the line, what it imports and what it may import."""
    return [f"{found}, but {reason}" for found in imports if (reason := _objection(found))]


def _objection(found: Import) -> str | None:
    layer = max((name for name in LAYERS if _is_of(found.importer, name)), key=len, default=None)
    if layer is None:
        return f"{found.importer} belongs to no layer yet: give it a line in LAYERS"
    if layer in CORE and layer not in HANDING_IN and _is_among(found.target, HANDED_IN):
        return f"{layer} takes {' '.join(HANDED_IN)} as arguments"
    if _is_among(found.target, (layer, *LAYERS[layer], *sys.stdlib_module_names)):
        return None
    return f"{layer} may import only {', '.join(LAYERS[layer])} and the standard library"


def _is_of(importer: str, layer: str) -> bool:
    """Whether a module belongs to a layer. The layer `hicache` is the module alone: the public names."""
    return importer == layer if layer == "hicache" else within(importer, layer)


def _is_among(module: str, packages: Iterable[str]) -> bool:
    return any(within(module, package) for package in packages)


@dataclass(frozen=True, slots=True)
class Import:
    """One name that a module imports. `importer` and `target` are absolute and dotted; `path` is below the root."""

    importer: str
    path: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: imports {self.target}"


def within(module: str, package: str) -> bool:
    """Whether a dotted name is the package or lies below it."""
    return module == package or module.startswith(f"{package}.")


def read_imports(root: Path, folders: tuple[str, ...]) -> Iterator[Import]:
    """The imports of each module in these folders of `root`, those inside functions too; nothing is executed.

    A folder that does not exist has none.
    """
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield from _imports_of(path, path.relative_to(root))


def _imports_of(path: Path, relative: Path) -> Iterator[Import]:
    importer = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
    package = ".".join(relative.parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in _targets(node, package):
                yield Import(importer, relative.as_posix(), node.lineno, target)


def _targets(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    source = _absolute(node, package)
    return [f"{source}.{alias.name}" for alias in node.names]


def _absolute(node: ast.ImportFrom, package: str) -> str:
    parents = package.split(".")
    anchor = parents[: len(parents) - node.level + 1] if node.level else []
    return ".".join([*anchor, *filter(None, [node.module])])
