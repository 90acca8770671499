"""Which package may import what: one line for each package."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from hicache.testing.plugin.tags import SUITES
from hicache.tests.architecture.imports import Import, within

SHARED = ("hicache.__version__", "hicache.types", "hicache.errors", "hicache.config", "hicache.parallel.group")
GROUND = (*SHARED, "hicache.keys", "hicache.clock", "hicache.events", "hicache.metrics")
CACHE = ("hicache.cache", "hicache.request", "hicache.runtime")
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

REFERENCE = ("hicache.testing.adapters.reference", "hicache.testing.adapters.reference_view")
RANKS = tuple(
    f"hicache.testing.ranks.{name}"
    for name in ("device_recorder", "interposer", "launch", "new_groups", "process_world", "torchrun_world", "worker")
)
SGLANG = (
    "hicache.testing.adapters.sglang",
    *(
        f"hicache.testing.adapters.sglang_{name}"
        for name in ("cache", "host", "host_pools", "locks", "pool_verbs", "pools", "prefetches", "view", "workers")
    ),
)

MODELS = ("torch", "transformers", "tokenizers", "lm_eval", "datasets", "safetensors")
"""What runs models, and is asked for by the accuracy suite alone."""

LAYERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(GROUND, (*GROUND, "numpy")),
    "hicache": (*CORE,),
    "hicache.config": (*GROUND, "tomli", "yaml"),
    "hicache.tree": (*GROUND, "numpy"),
    "hicache.components": (*GROUND, "hicache.tree", "numpy"),
    "hicache.pools": (*GROUND, "hicache.transfer", "numpy", "torch"),
    "hicache.stacks": (*GROUND, "hicache.pools", "torch"),
    "hicache.parallel": (*GROUND,),
    "hicache.parallel.torch_group": (*GROUND, "hicache.parallel", "torch"),
    "hicache.storage": (*GROUND, "numpy", "xxhash"),
    "hicache.storage.hf3fs": (*GROUND, "hicache.storage"),
    "hicache.transfer": (*GROUND, "hicache.storage"),
    "hicache.transfer.executors": (*GROUND, "hicache.transfer"),
    "hicache.transfer.streams": (*GROUND, "hicache.transfer", "torch"),
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
    **dict.fromkeys(CACHE, (*CORE, "numpy", "torch")),
    "hicache.testing": (
        *SHARED,
        "hicache.storage",
        "numpy",
        "pytest",
        "hypothesis",
        "jinja2",
        "matplotlib",
        "rich",
    ),
    "hicache.testing.model": ("hicache.types", "hicache.errors", "hicache.testing.snapshot", "numpy"),
    "hicache.testing.plugin.devices": ("torch",),
    **dict.fromkeys(RANKS, (*SHARED, "hicache.testing", "torch")),
    **dict.fromkeys(REFERENCE, (*CORE, "hicache.testing", "numpy")),
    "hicache.testing.mutants": (*CORE, "hicache.testing", "numpy", "torch"),
    **dict.fromkeys(SGLANG, (*SHARED, "hicache.testing", "numpy", "torch")),
    **dict.fromkeys(
        tuple(f"hicache.testing.adapters.{name}" for name in ("sglang_pages", "sglang_storage", "storage_sglang")),
        (*SHARED, "hicache.storage", "hicache.testing", "numpy", "torch"),
    ),
    "hicache.cli": ("hicache", "numpy", "pytest", "typer", "rich"),
    "hicache.tests": ("hicache", "numpy", "pytest", "hypothesis", "torch", "typer", "rich"),
    "hicache.tests.core": (
        *(*GROUND, "hicache.tree", "hicache.components", "hicache.testing.hybrid_model"),
        *("numpy", "pytest", "hypothesis"),
    ),
    **dict.fromkeys(SUITES, (*SHARED, "hicache.storage", "hicache.testing", "numpy", "pytest", "hypothesis")),
    "distributed_tests.test_collectives": (*SHARED, "hicache.testing", "distributed_tests", "pytest", "torch"),
    "accuracy": (*SHARED, "hicache.testing", "numpy", "pytest", *MODELS),
    "benchmarks": (*SHARED, "hicache.storage", "hicache.testing", "numpy", "pytest", "pytest_benchmark"),
}
"""What each layer may import besides itself and the standard library. The longest name that fits a module counts."""

HANDED_IN = ("time", "threading", "torch.distributed")
"""What the core takes as arguments, so that a test can choose the time and the order of events."""

HANDING_IN = ("hicache.clock", "hicache.parallel.torch_group", "hicache.storage", "hicache.transfer.executors")
"""Where those arguments are made, and backends, which many threads ask at once."""


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
