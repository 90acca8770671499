"""Runs SGLang's own unit tests of its unified cache, from a source tree, on its cache or on the drop-in."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import unittest
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from hicache.engines.imports import package_root
from hicache.engines.sglang.imports import import_from, prepare_sglang
from hicache.engines.sglang.pools import replace_kernels
from hicache.testing.engine_source import use_source
from hicache.tests.engines.sglang_inspector import inspected_class

TESTS = Path("test", "registered", "unit", "mem_cache", "test_unified_radix_cache_unittest.py")
"""Where a source tree of SGLang has them."""

COPYING = ("memory_pool_host", *(f"pool_host.{name}" for name in ("base", "common", "mha", "mamba")))
"""The modules of SGLang's cache that copy with kernels, of any release."""

CACHES = ("sglang", "hicache")

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def load_tests(source: Path, cache: str) -> ModuleType:
    """The module of SGLang's tests, whose caches are SGLang's own ("sglang") or the drop-in ("hicache")."""
    use_source(source)
    prepare_sglang()
    _without_cuda()
    spec = importlib.util.spec_from_file_location("sglang_own_tests", source / TESTS)
    assert spec is not None, f"{source / TESTS} is a file"
    assert spec.loader is not None, f"{source / TESTS} is a module"
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = package_root("sglang") / "sglang" / "srt" / "mem_cache"
    there = [name for name in COPYING if folder.joinpath(*name.split(".")).with_suffix(".py").is_file()]
    replace_kernels([f"sglang.srt.mem_cache.{name}" for name in there])
    if cache == "hicache":
        own, drop_in = module.UnifiedRadixCache, inspected_class()
        module.UnifiedRadixCache = lambda params: (own if params.disable else drop_in)(params)
    loaded: ModuleType = module
    return loaded


class Outcomes(unittest.TestResult):
    """Calls `report` with the name of each test, `Class.test`, its outcome, and the message of a failure."""

    def __init__(self, report: Callable[[str, str, str], object]) -> None:
        super().__init__()
        self.report = report
        self.outcome = (PASSED, "")

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - the names are unittest's
        super().startTest(test)
        self.outcome = (PASSED, "")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.outcome = (FAILED, _cause(err[1]))

    addError = addFailure  # noqa: N815

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:  # noqa: N802
        if err is not None:
            self.addFailure(test, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.outcome = (SKIPPED, reason)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        self.report(name_of(test), *self.outcome)


def name_of(test: unittest.TestCase) -> str:
    """Such as `Test_FULL_ps1.test_evict_basic`."""
    return ".".join(test.id().split(".")[-2:])


def run(module: ModuleType, pattern: str, report: Callable[[str, str, str], object]) -> None:
    """Run the tests of a module whose names match a pattern, and tell the outcome of each."""
    chosen = unittest.TestSuite(
        test for test in _tests(unittest.defaultTestLoader.loadTestsFromModule(module), pattern)
    )
    chosen.run(Outcomes(report))


def _tests(suite: unittest.TestSuite, pattern: str) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests(test, pattern)
        elif re.search(pattern, name_of(test)):
            yield test


def _cause(error: BaseException) -> str:
    # SGLang's runner repeats a failed test and raises another error after it.
    first = error.__context__ if "retry()" in str(error) and error.__context__ else error
    return f"{type(first).__name__}: {first}"[:300]


def _without_cuda() -> None:
    """SGLang makes some tensors of a pool on "cuda" where its other tensors are on the CPU."""
    if torch.cuda.is_available():
        return

    def on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*sizes: Any, **options: Any) -> torch.Tensor:
            if str(options.get("device", "")).startswith("cuda"):
                options["device"] = "cpu"
            return make(*sizes, **options)

        return made

    for name in ("zeros", "empty"):
        setattr(torch, name, on_cpu(getattr(torch, name)))


def main(source: str, cache: str, pattern: str, lines: str) -> None:
    """Write a line of JSON for each test to a file: its name, its outcome and the reason."""
    tests = load_tests(Path(source).resolve(), cache)
    import_from("sglang.srt.environ", "envs")[0].SGLANG_TEST_MAX_RETRY.set(0)
    with Path(lines).open("w", encoding="utf-8") as file, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        run(tests, pattern, lambda *outcome: print(json.dumps(outcome), file=file, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
