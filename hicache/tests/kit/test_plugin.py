"""The plugin: which tests run, which are skipped and why, which runs fail, and on which backends and caches."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.contract import CONTRACT
from hicache.testing.devices import missing_device
from hicache.testing.plugin.journal import RunTally
from hicache.testing.plugin.options import DEFAULT_ADAPTER
from hicache.testing.report import Outcome, read_run
from hicache.testing.storage.subject import SHIPPED
from hicache.tests.kit.hosted_cache import FlatCache
from hicache.tests.kit.suite_runs import FLAT_CACHE, execution, run, run_recorded, write_suite

PASSING = """
@clause("KEY-1")
def test_a(config):
    assert config.page_size > 0, "KEY-1"
"""


def _last_line(result: pytest.RunResult) -> str:
    return [line for line in result.outlines if line.strip()][-1]


def _clauses_executed(result: pytest.RunResult, tests: str) -> int:
    """How many of the clauses that apply were executed, by the last line, which counts these tests."""
    found = re.fullmatch(rf"hicache: {tests}, (\d+) of (\d+) clauses not executed", _last_line(result))
    assert found, f"expected {tests} in the last line, got {result.outlines}"
    return int(found[2]) - int(found[1])


def test_a_test_runs_once_for_each_configuration(pytester: pytest.Pytester) -> None:
    write_suite(pytester, PASSING)
    result = run(pytester, "-v")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines([f"*::test_a[[]full/page{size}/lru[]] PASSED*" for size in (1, 3, 16, 64)])
    assert _clauses_executed(result, "4 passed, 0 failed, 0 skipped") == 1, (
        f"one clause was executed: {result.outlines}"
    )


def test_a_test_that_waits_begins(pytester: pytest.Pytester) -> None:
    waiting = "import pytest\n\n@pytest.mark.waits" + PASSING.replace("test_a", "test_b")
    write_suite(pytester, PASSING + waiting)
    result = run(pytester, "-v", "--hicache-quick")
    result.stdout.fnmatch_lines(["*::test_b[[]*", "*::test_b[[]*", "*::test_a[[]*", "*::test_a[[]*"], consecutive=True)


def test_a_run_beside_the_real_suites_finds_its_own(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("conformance", "conformance.conftest"):
        real = ModuleType(name)
        real.__file__ = f"/elsewhere/{name.replace('.', '/')}.py"
        monkeypatch.setitem(sys.modules, name, real)
    write_suite(pytester, PASSING)
    run(pytester).assert_outcomes(passed=4)
    assert sys.modules["conformance.conftest"].__file__ == "/elsewhere/conformance/conftest.py", (
        "expected the original modules after the run"
    )


def test_runs_in_one_process_share_an_audit_hook(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    write_suite(pytester, PASSING)
    run(pytester, "--hicache-quick")
    added: list[object] = []
    monkeypatch.setattr(sys, "addaudithook", added.append)
    run(pytester, "--hicache-quick").assert_outcomes(passed=2)
    assert not added, f"nothing removes an audit hook, and each makes every `id` and `open` slower: {added}"


def test_runs_in_one_process_share_a_fork_server(pytester: pytest.Pytester) -> None:
    write_suite(
        pytester,
        """
        import multiprocessing, os
        from hicache.testing.ranks import preloaded

        @clause("KEY-1")
        def test_a():
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([preloaded.__name__])
            servers = context.SimpleQueue()
            process = context.Process(target=put_server, args=(servers,))
            process.start()
            with open("servers", "a") as file:
                file.write(f"{servers.get()}\\n")
            process.join()

        def put_server(servers):
            servers.put(os.getppid())
        """,
    )
    for _ in range(2):
        run(pytester).assert_outcomes(passed=1)
    servers = (pytester.path / "servers").read_text(encoding="utf-8").split()
    assert len(servers) == 2, f"expected a process in each run, got {servers}"
    assert servers[0] == servers[1], f"each fork server imports torch anew: {servers}"


def test_torch_keeps_to_one_thread_also_where_it_was_imported_before(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("OMP_NUM_THREADS")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    write_suite(pytester, PASSING + "    import torch\n    assert torch.get_num_threads() == 1")
    try:
        run(pytester).assert_outcomes(passed=4)
    finally:
        torch.set_num_threads(before)


def test_a_cache_is_forgotten_with_its_test(pytester: pytest.Pytester) -> None:
    write_suite(
        pytester,
        """
        import gc, weakref

        caches = []

        @clause("KEY-1")
        def test_a(driver):
            gc.collect()
            assert [kept() for kept in caches] == [None] * len(caches), "the run holds caches of earlier tests"
            caches.append(weakref.ref(driver.adapter))
        """,
    )
    run(pytester).assert_outcomes(passed=4)


def test_each_test_gets_a_cache_of_its_own_and_closes_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        counting="""
        from hicache.testing.configurations import standard_configurations
        from hicache.tests.kit.hosted_cache import FlatCache

        class Counting(FlatCache):
            opened = closed = 0

            def __init__(self, config):
                super().__init__(config)
                Counting.opened += 1

            def close(self):
                Counting.closed += 1

            @classmethod
            def configurations(cls):
                return standard_configurations(cls.capabilities)[:1]
        """
    )
    pytester.syspathinsert()
    write_suite(
        pytester,
        """
        @clause("KEY-1")
        def test_first(adapter, adapter_type):
            assert isinstance(adapter, adapter_type), "the class under test"

        @clause("KEY-1")
        def test_second(adapter_type, adapter):
            assert (adapter_type.opened, adapter_type.closed) == (2, 1), "opened for each, closed after each"
        """,
    )
    run(pytester, adapter="counting:Counting").assert_outcomes(passed=2)


def test_a_test_of_each_component_runs_where_the_cache_has_it(pytester: pytest.Pytester) -> None:
    write_suite(
        pytester,
        """
        @clause("KEY-1", each=("swa", "mamba"), page_sizes=[16])
        @pytest.mark.parametrize("number", [1, 2])
        def test_it(driver, component, number):
            assert component in driver.config.components
        """,
    )
    record = run_recorded(pytester, f"--hicache-adapter={DEFAULT_ADAPTER}")
    cases = {one.node_id.partition("[")[2]: one for one in record.executions}
    components = {case.partition("-")[0] for case in cases}
    assert components == {"swa", "mamba"}, f"expected cases of both components, got {sorted(cases)}"
    wrong = {case: one for case, one in cases.items() if one.outcome is not Outcome.PASSED or not one.configuration}
    assert not wrong, f"expected a passed test with its configuration for each case, got {wrong}"
    skipped = run_recorded(pytester).executions
    lacks = {(one.node_id.partition("[")[2], one.lacks) for one in skipped}
    expected = {(f"{name}-none-{number}]", (name.upper(),)) for name in ("swa", "mamba") for number in (1, 2)}
    assert lacks == expected, f"expected one skip for each component, got {lacks}"


def test_an_undeclared_capability_is_the_reason_of_a_skip(pytester: pytest.Pytester) -> None:
    write_suite(
        pytester,
        PASSING
        + """
        @clause("MATCH-5")
        def test_b(driver): ...

        @clause("LOCK-7")
        def test_c(): ...

        @clause("KEY-1", page_sizes=[7])
        def test_d(config): ...
        """.replace("        ", ""),
    )
    result = run(pytester)
    result.assert_outcomes(passed=4, skipped=3)
    result.stdout.fnmatch_lines(
        [
            "2 skipped: adapter FlatCache does not declare HOST: a host tier",
            "1 skipped: no configuration of this run has a page size of 7, policy lru",
            "* of * device clauses not executed",
            "* other clauses of the contract do not apply",
        ]
    )
    assert _clauses_executed(result, "4 passed, 0 failed, 3 skipped") == 1, (
        f"one clause was executed: {result.outlines}"
    )


def test_a_device_that_is_not_there_is_the_reason_of_a_skip(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        elsewhere="""
        from dataclasses import replace

        from hicache.testing.configurations import standard_configurations
        from hicache.tests.kit.hosted_cache import FlatCache

        class Elsewhere(FlatCache):
            @classmethod
            def configurations(cls):
                here = standard_configurations(cls.capabilities)[0]
                return [here, replace(here, device="cuda", page_size=3)]
        """
    )
    pytester.syspathinsert()
    missing_device.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    write_suite(pytester, PASSING)
    result = run(pytester, adapter="elsewhere:Elsewhere")
    missing_device.cache_clear()
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["1 skipped: torch finds no CUDA device for 'cuda' on this machine"])


def test_a_declared_verb_that_is_missing_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        boaster="""
        from hicache.testing.adapter import Capability
        from hicache.tests.kit.hosted_cache import FlatCache

        class Boaster(FlatCache):
            capabilities = FlatCache.capabilities | {Capability.HASHES}
        """
    )
    pytester.syspathinsert()
    write_suite(pytester, '@clause("KEY-4", page_sizes=[1])\ndef test_a(adapter):\n    adapter.page_hashes(None)\n')
    result = run(pytester, adapter="boaster:Boaster")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Boaster declares a capability that needs page_hashes(), which it lacks"])


def test_a_failure_says_how_to_replay_it(pytester: pytest.Pytester) -> None:
    write_suite(pytester, '@clause("KEY-1", page_sizes=[3])\ndef test_a(config):\n    assert not config, "KEY-1: no"\n')
    result = run(pytester)
    result.assert_outcomes(failed=1)
    command = "pytest 'conformance/test_it.py::test_a[[]full/page3/lru[]]' --hicache-adapter *hosted_cache:FlatCache"
    result.stdout.fnmatch_lines(["*- replay -*", command])
    assert _clauses_executed(result, "0 passed, 1 failed, 0 skipped") == 1, (
        f"one clause was executed: {result.outlines}"
    )


def test_the_driver_is_checked_once_more_at_the_end(pytester: pytest.Pytester) -> None:
    write_suite(
        pytester,
        """
        from hicache.testing.driving.driver import Driver

        @pytest.fixture(autouse=True)
        def lost_slot(monkeypatch):
            def check(self):
                raise AssertionError("POOL-1: a slot is lost")
            monkeypatch.setattr(Driver, "check", check)

        @clause("POOL-2", page_sizes=[1])
        def test_passes_until_its_end(driver): ...

        @clause("POOL-2", page_sizes=[1])
        def test_fails_before(driver):
            raise AssertionError("POOL-2: allocated twice")
        """,
    )
    result = run(pytester)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["E * POOL-1: a slot is lost", "E * POOL-2: allocated twice"])
    text = result.stdout.str()
    assert text.count("E       AssertionError: POOL-1") == 1, f"a test that failed is not checked again:\n{text}"


NAMELESS = f"{PASSING}\ndef test_nameless(): ...\n"
OF_TWO_CLAUSES = PASSING + PASSING.replace("KEY-1", "MATCH-14").replace("test_a", "test_b")
NOTHING = "ERROR: no test of any clause was executed: nothing was verified"
OK, NO_TESTS = pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED

ENDINGS = {
    "of a quick run with fewer configurations": ("conformance", PASSING, "--hicache-quick", "2 passed", OK, "*"),
    "of the tests of a clause": ("conformance", OF_TWO_CLAUSES, "-kMATCH-14", "4 passed 4 deselected", OK, "*"),
    "of a test of the contract without a clause": (
        *("conformance", NAMELESS, "-v", "1 errors", pytest.ExitCode.INTERRUPTED),
        "conformance/test_it.py::test_nameless names no clause: mark it with @clause(...)",
    ),
    "of another suite, whose tests need none": ("benchmarks", NAMELESS, "-v", "5 passed", OK, "hicache: 5 passed*"),
    "of skipped tests": ("conformance", "@clause('LOCK-7')\ndef test_a(): ...", "-v", "1 skipped", NO_TESTS, NOTHING),
    "of no clause": ("conformance", "@clause()\ndef test_a(): ...", "-v", "1 passed", NO_TESTS, NOTHING),
    "of benchmarks alone": ("benchmarks", "def test_a(): ...", "-v", "1 passed", OK, "*"),
    "of skipped benchmarks": (
        *("benchmarks", "def test_a(): pytest.skip('not declared')", "-v", "1 skipped", NO_TESTS, "*"),
    ),
    "of nothing that was selected": ("conformance", PASSING, "-knothing", "4 deselected", NO_TESTS, NOTHING),
    "of collecting alone": ("conformance", PASSING, "--collect-only", "4 tests", OK, "*"),
}
"""Runs: the folder and the source of the suite, an option, the counts, the exit code, and a line of the output."""


@pytest.mark.parametrize(("folder", "source", "option", "counts", "code", "line"), ENDINGS.values(), ids=ENDINGS)
def test_the_end(
    pytester: pytest.Pytester, folder: str, source: str, option: str, counts: str, code: pytest.ExitCode, line: str
) -> None:
    write_suite(pytester, source, folder)
    result = run(pytester, option)
    found = " ".join(f"{number} {outcome}" for outcome, number in result.parseoutcomes().items())
    assert (found, result.ret) == (counts, code), f"expected {counts!r} and {code}, got {found!r} and {result.ret}"
    result.stdout.fnmatch_lines([line])


@pytest.mark.parametrize("path", ["no_such_module:Cache", "hicache.types:Tier", "hicache.types"])
def test_an_adapter_that_is_none_ends_the_run(pytester: pytest.Pytester, path: str) -> None:
    write_suite(pytester, PASSING)
    result = run(pytester, adapter=path)
    assert result.ret == pytest.ExitCode.USAGE_ERROR, f"expected a usage error, got {result.ret}"
    result.stderr.fnmatch_lines([f"ERROR: --hicache-adapter: {path}: *"])


def test_the_plugin_is_idle_in_the_runs_of_others(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_was_imported():
            found = {name for name in sys.modules if name.split(".")[0] in ("hicache", "numpy", "torch")}
            kit = "hicache.testing"
            loaded = {f"{kit}.plugin.{name}" for name in ("hooks", "items", "options", "tags")}
            assert found == {"hicache", kit, f"{kit}.plugin"} | loaded
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest", "-p", "no:xdist", "-p", "no:benchmark")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*hicache:*")


REFERENCE = "hicache.testing.caches.reference:ReferenceAdapter"
BACKEND_CONFTEST = """
from hicache.testing.plugin.fixtures import parametrize_backends as pytest_generate_tests, place, store, writers
"""
OPTIONS = '{"store": "{unique}", "capacity_bytes": "{capacity_bytes}"}'


@pytest.fixture
def backend_suite(pytester: pytest.Pytester) -> None:
    """A suite of one test that sets a page in a store."""
    write_suite(
        pytester,
        """
        @clause("STORE-2", "STORE-5")
        def test_it(store):
            store.set(["a"])
        """,
        conftest=BACKEND_CONFTEST,
    )


@pytest.mark.usefixtures("backend_suite")
def test_a_named_backend_is_the_subject_of_the_run(pytester: pytest.Pytester) -> None:
    """And clauses that no backend can show are not missed."""
    named = ("--hicache-backend", "memory", "--hicache-backend-config", OPTIONS)
    result = run(pytester, *named, "--hicache-report", "run.json", adapter=REFERENCE)
    record = read_run(pytester.path / "run.json")
    assert record.implementation == "memory", f"expected memory, got {record.implementation}"
    (found,) = record.executions
    assert (found.clauses, found.configuration) == (("STORE-2", "STORE-5"), "storage/memory"), f"got {found}"
    assert (found.outcome, found.operations) == (Outcome.PASSED, 1), f"one verb was called, got {found}"
    assert "--hicache-backend memory --hicache-backend-config" in found.replay, f"the command names it: {found.replay}"
    assert result.outlines[-1] == "hicache: 1 passed, 0 failed, 0 skipped, 20 of 22 clauses not executed", (
        f"got {result.outlines[-1]}"
    )


@pytest.mark.usefixtures("backend_suite")
def test_without_a_name_those_that_ship_are_tested(pytester: pytest.Pytester) -> None:
    record = run_recorded(pytester, "--hicache-adapter", REFERENCE)
    tested = [one.configuration for one in record.executions]
    expected = [f"storage/{subject.name}" for subject in SHIPPED]
    assert tested == expected, f"expected {expected}, got {tested}"


@pytest.mark.usefixtures("backend_suite")
def test_a_run_of_another_adapter_skips_the_backends(pytester: pytest.Pytester) -> None:
    (found,) = run_recorded(pytester).executions
    assert found.outcome is Outcome.SKIPPED, f"expected a skip, got {found}"
    assert f"this run verifies {FLAT_CACHE}" in found.reason, f"expected the reason, got {found.reason}"


@pytest.mark.usefixtures("backend_suite")
def test_a_backend_is_found_in_the_current_folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(own_backend="from hicache.storage.memory import MemoryStorage as Mine")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(pytester.path))])
    result = run(pytester, "--hicache-backend", "own_backend:Mine", adapter=REFERENCE)
    result.stdout.re_match_lines([r"hicache: 1 passed, 0 failed, 0 skipped, 20 of 22 clauses not executed"])


@pytest.mark.usefixtures("backend_suite")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--hicache-backend", "no_such_module:Backend"), "no_such_module"),
        (("--hicache-backend", "memory", "--hicache-backend-config", "{"), "inline JSON"),
        (("--hicache-backend-config", "{}"), "without --hicache-backend"),
    ],
)
def test_a_backend_that_cannot_be_opened_ends_the_run(
    pytester: pytest.Pytester, options: tuple[str, ...], message: str
) -> None:
    result = run(pytester, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR, f"expected a usage error, got {result.ret}"
    assert message in "\n".join(result.errlines), f"{message} is named: {result.errlines}"


def test_a_test_of_metadata_runs_for_the_backends_that_ask_a_service(pytester: pytest.Pytester) -> None:
    write_suite(
        pytester,
        """
        import pytest

        @pytest.fixture
        def metadata(place):
            return place.metadata

        @clause("SEC-4")
        def test_it(metadata):
            assert metadata.url
        """,
        conftest=BACKEND_CONFTEST,
    )
    tested = [one.configuration for one in run_recorded(pytester, "--hicache-adapter", REFERENCE).executions]
    assert tested == ["storage/hf3fs"], f"of those that ship it is one, got {tested}"
    (found,) = run_recorded(pytester, "--hicache-adapter", REFERENCE, "--hicache-backend", "memory").executions
    assert found.outcome is Outcome.SKIPPED, f"expected a skip, got {found}"
    assert "memory: no option names a metadata service" in found.reason, f"expected the reason, got {found.reason}"


@pytest.mark.parametrize("adapter", [ReferenceAdapter, FlatCache])
def test_the_delayed_class_is_the_same_cache(adapter: type[CacheAdapter]) -> None:
    delayed = adapter.delayed()
    assert issubclass(delayed, adapter), f"expected a subclass of the named class, got {delayed.__mro__}"
    assert delayed.__name__ == adapter.__name__, f"expected the name {adapter.__name__}, got {delayed.__name__}"
    assert delayed.__module__ == adapter.__module__, f"expected the same module, got {delayed.__module__}"


def test_the_reference_is_delayed_for_tests_alone() -> None:
    plain, delayed = ReferenceAdapter, ReferenceAdapter.delayed()
    pauses = [getattr(one, "max_pause_s", None) for one in (plain, delayed)]
    assert pauses[0] == 0, f"expected no delay in a replay or a benchmark, got {pauses[0]} s"
    assert 0 < (pauses[1] or 0) <= 0.001, f"expected a delay of at most a millisecond in a test, got {pauses[1]} s"


@pytest.mark.parametrize("profile", ["hicache-nightly", "hicache-ci"])
def test_a_profile_can_be_chosen_for_suites_that_are_named_by_package(pytester: pytest.Pytester, profile: str) -> None:
    named = ("--pyargs", "hicache.suites.properties", "--hypothesis-profile", profile)
    result = pytester.runpytest_subprocess(*named, "--collect-only", "-q", "-k", "test_any_mix_of_requests")
    assert result.ret == pytest.ExitCode.OK, f"expected the profile {profile} to be known: {result.outlines[-5:]}"


def test_an_adapter_in_the_current_folder_can_be_named(pytester: pytest.Pytester) -> None:
    write_suite(pytester, '@clause("KEY-1")\ndef test_a(config):\n    pass\n')
    pytester.makepyfile(own_adapter="from hicache.tests.kit.hosted_cache import FlatCache as Mine")
    # The program `pytest` does not put the current folder on the path, as `python -m pytest` does.
    program = Path(sys.executable).with_name("pytest")
    done = pytester.run(program, "conformance", "--hicache-adapter", "own_adapter:Mine", "-q", "-p", "no:cacheprovider")
    assert done.ret == pytest.ExitCode.OK, f"expected the adapter to be found: {done.outlines} {done.errlines}"


def test_reasons_of_one_kind_share_a_line() -> None:
    names = [f"adapter Mine does not declare SWA: windows; {one.name}: more" for one in Capability]
    others = [*(f"no configuration of this run has a page size of {size}" for size in range(200)), "of its own"]
    skipped = [execution("KEY-1", outcome=Outcome.SKIPPED, reason=reason) for reason in [*names, *others]]
    found = [line for line in RunTally(skipped, CONTRACT, ()).summary() if "skipped" in line]
    assert found == [
        "200 skipped: no configuration of this run has ... (200 reasons; the report has each)",
        f"{len(names)} skipped: adapter Mine does not declare SWA ... ({len(names)} reasons; the report has each)",
        "1 skipped: of its own",
    ], f"got {found}"
