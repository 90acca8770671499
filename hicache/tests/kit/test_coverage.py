"""Coverage: a level is verified only if everything in it that applies to the cache was checked."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from hicache.testing import adapter
from hicache.testing.adapter import METHODS, WITH_VERBS, Capability
from hicache.testing.contract import CONTRACT
from hicache.testing.levels import Level
from hicache.testing.report import NO_PROFILE, Execution, Outcome
from hicache.testing.report.coverage import LEVEL_OF_TIER, Coverage, Verdict, coverage, declared_next, untried
from hicache.testing.report.gpu import GPU, NO_GPU, GpuPart, not_on_gpu, untried_on_gpu
from hicache.testing.report.matrix import overview
from hicache.testing.report.pages import render_html
from hicache.testing.report.text import headline, render_markdown
from hicache.testing.storage.subject import BACKEND_CLAUSES
from hicache.tests.kit.html_page import HtmlPage
from hicache.tests.kit.suite_runs import execution, record

ALL = frozenset(one.name for one in Capability)


def found(*executions: Execution, capabilities: frozenset[str] = ALL, profile: str = "tree") -> Coverage:
    """The coverage of a run."""
    run = replace(record(*executions), capabilities=tuple(sorted(capabilities)), profile=profile)
    return coverage(overview(run, CONTRACT))


def of(level: Level) -> list[str]:
    """The clauses of a level."""
    return [clause.id for clause in CONTRACT.values() if LEVEL_OF_TIER.get(clause.tier) is level]


def test_a_level_is_verified_when_all_of_it_was_checked() -> None:
    device = found(execution(*of(Level.DEVICE))).of(Level.DEVICE)
    assert device.verdict is Verdict.VERIFIED, f"got {device}"
    assert device.checked == device.applying == len(of(Level.DEVICE)), f"got {device}"


NOT_CHECKED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "without-a-test": (),
    "skipped": ((),),
    "skipped-with-another-feature": ((), ("SWA",)),
}
"""What the adapter lacks for each test of a clause."""


@pytest.mark.parametrize("lacks", NOT_CHECKED.values(), ids=NOT_CHECKED)
def test_a_level_is_not_verified_when_one_clause_was_not_checked(lacks: tuple[tuple[str, ...], ...]) -> None:
    first, *others = of(Level.DEVICE)
    skipped = [execution(first, outcome=Outcome.SKIPPED, lacks=one, name=f"test_{len(one)}") for one in lacks]
    device = found(execution(*others), *skipped).of(Level.DEVICE)
    assert device.verdict is Verdict.IN_PART, f"got {device}"
    expected = f"device: not verified, only {device.applying - 1} of {device.applying} clauses were checked"
    assert str(device) == expected, f"expected {expected!r}, got {str(device)!r}"


def test_a_level_without_a_test_was_not_run() -> None:
    result = found(execution(*of(Level.DEVICE)))
    levels = [one.level for one in result.verified]
    assert levels == [Level.DEVICE], f"expected the device alone to be verified, got {levels}"
    host = result.of(Level.HOST)
    assert host.verdict is Verdict.NOT_RUN, f"expected no test of the host to have run, got {host}"


def test_a_broken_law_fails_its_level_whatever_the_test_was_about() -> None:
    failure = execution("STORE-1", outcome=Outcome.FAILED, causes=("HOST-4",))
    result = found(execution(*of(Level.HOST)), failure)
    assert str(result.of(Level.HOST)).startswith("host: failed: HOST-4; "), f"got {result.of(Level.HOST)}"
    assert result.of(Level.STORAGE).verdict is Verdict.FAILED, "a clause whose test ended early is undecided"
    ended_early = "storage: failed: none of its clauses was found broken, but tests of them ended early; 0 of "
    assert str(result.of(Level.STORAGE)).startswith(ended_early), str(result.of(Level.STORAGE))


def test_known_failures_are_exceptions_of_a_verified_level() -> None:
    known = execution("LOCK-2", outcome=Outcome.KNOWN_FAILURE)
    rest = execution(*(clause for clause in of(Level.DEVICE) if clause != "LOCK-2"), name="test_rest")
    device = found(known, rest).of(Level.DEVICE)
    assert str(device).startswith("device: verified except 1 with known failures"), f"got {device}"


@pytest.mark.parametrize("feature", ["SWA", "NAMESPACES", "EVENTS"])
def test_a_feature_that_the_cache_lacks_is_not_required(feature: str) -> None:
    needing = [clause_id for clause_id in of(Level.DEVICE) if Capability[feature] in CONTRACT[clause_id].needs]
    others = [clause_id for clause_id in of(Level.DEVICE) if clause_id not in needing]
    assert needing, f"no clause of the device needs {feature}: this test shows nothing"
    device = found(execution(*others), capabilities=ALL - {feature}).of(Level.DEVICE)
    assert device.verdict is Verdict.VERIFIED, f"got {device}"


@pytest.mark.parametrize("view", ["SNAPSHOT", "BYTES"])
def test_what_the_adapter_does_not_show_is_required(view: str) -> None:
    others = [clause_id for clause_id in of(Level.DEVICE) if Capability[view] not in CONTRACT[clause_id].needs]
    device = found(execution(*others), capabilities=ALL - {view}).of(Level.DEVICE)
    assert device.verdict is Verdict.IN_PART, f"got {device}"


def test_a_clause_that_the_profile_excepts_is_not_required() -> None:
    excepted = [clause_id for clause_id in of(Level.DEVICE) if "blocks" in CONTRACT[clause_id].exceptions]
    others = [clause_id for clause_id in of(Level.DEVICE) if clause_id not in excepted]
    assert excepted, "no clause is excepted for blocks: this test shows nothing"
    for profile, expected in (("blocks", Verdict.VERIFIED), ("tree", Verdict.IN_PART)):
        device = found(execution(*others), profile=profile).of(Level.DEVICE)
        assert device.verdict is expected, f"{profile}: expected {expected}, got {device}"


def test_what_to_declare_next_is_counted_in_clauses() -> None:
    skipped = [
        execution("LOCK-1", "LOCK-3", outcome=Outcome.SKIPPED, lacks=("SNAPSHOT",), name="test_a"),
        execution("LOCK-1", "HOST-1", outcome=Outcome.SKIPPED, lacks=("SNAPSHOT", "HOST"), name="test_b"),
        execution("KEY-1", outcome=Outcome.SKIPPED, lacks=("BYTES",), name="test_c"),
    ]
    result = found(execution("KEY-1"), *skipped)
    assert result.gains == {"SNAPSHOT": 3, "HOST": 2}, f"got {result.gains}"
    applying = sum(one.applying for one in result.levels)
    told = f"1 of {applying} clauses that apply passed, {applying - 1} not checked; "
    assert str(result) == f"{told}{len(CONTRACT) - applying} others do not apply (POOL-6 only on a GPU)", (
        f"got {result}"
    )


VERBS_ALONE = frozenset({"VERBS"})

NEXT = {
    "most-clauses": ([("LOCK-1", "SNAPSHOT"), ("LOCK-2", "SNAPSHOT"), ("KEY-1", "SIZES")], "SNAPSHOT (1 method): 2"),
    "alone": ([("LOCK-1", "SIZES SNAPSHOT"), ("LOCK-2", "SIZES SNAPSHOT"), ("KEY-1", "BYTES")], "BYTES (4 methods): 1"),
    "no-single": (
        [("LOCK-1", "SIZES SNAPSHOT"), ("LOCK-2", "BYTES REFUSALS SIZES")],
        "SIZES and SNAPSHOT (2 methods): 1",
    ),
    "no-method": ([("POOL-9", "REFUSALS")], "REFUSALS (no method): 1"),
    "second-door": ([("LOCK-1", "REQUESTS"), ("LOCK-2", "SNAPSHOT")], "SNAPSHOT (1 method): 1"),
    "feature-that-is-not-needed": ([("MATCH-3", "SWA"), ("LOCK-2", "SNAPSHOT")], "SNAPSHOT (1 method): 1"),
}


@pytest.mark.parametrize(("waiting", "expected"), NEXT.values(), ids=NEXT)
def test_the_next_capability_is_the_one_that_brings_most_of_the_level(
    waiting: list[tuple[str, str]], expected: str
) -> None:
    skipped = [
        execution(clause, outcome=Outcome.SKIPPED, lacks=tuple(lacks.split()), name=f"test_{number}")
        for number, (clause, lacks) in enumerate(waiting)
    ]
    result = found(execution("KEY-2"), *skipped, capabilities=VERBS_ALONE)
    noun = "more clause" if expected.endswith(" 1") else "more clauses"
    (step,) = result.next_steps([Level.DEVICE])
    assert str(step) == f"next for level device: declare {expected} {noun}", f"got {step}"


def test_a_level_of_which_no_test_was_collected_is_told_what_its_clauses_need() -> None:
    (step,) = found(execution("KEY-2"), capabilities=VERBS_ALONE).next_steps([Level.RANKS])
    assert (step.names, step.methods) == (("RANKS",), 1), f"got {step}"


def test_nothing_is_advised_for_a_level_that_is_verified_or_failed() -> None:
    verified = found(execution(*of(Level.DEVICE)), capabilities=ALL)
    failed = found(execution(*of(Level.DEVICE), outcome=Outcome.FAILED), capabilities=VERBS_ALONE)
    for result in (verified, failed):
        levels = [step.level for step in result.steps]
        assert Level.DEVICE not in levels, f"got {levels}"


def test_every_method_of_the_interface_is_counted_for_a_capability() -> None:
    counted = {name for names in METHODS.values() for name in names}
    lacking = re.findall(r"_lacks\(\"(\w+)\"\)|needs (\w+)\(\), which", inspect.getsource(adapter))
    asked = {name for names in lacking for name in names if name}
    assert counted == asked - {"block_snapshot"}, f"these differ: {sorted(counted ^ asked)}"
    assert counted >= WITH_VERBS, f"these are not methods: {WITH_VERBS - counted}"


def test_shares_are_of_the_clauses_of_all_levels() -> None:
    result = found(execution("KEY-1"), execution("MATCH-1", outcome=Outcome.FAILED), capabilities=VERBS_ALONE)
    of_levels = sum(one.applying for one in result.levels)
    assert sum(result.applying.values()) == of_levels, f"got {result.applying}, levels have {of_levels}"
    assert of_levels + result.others == len(CONTRACT), f"each clause applies or does not: {of_levels}, {result.others}"
    assert str(result).startswith(f"1 of {of_levels} clauses that apply passed, 1 broken, "), f"got {result}"


def test_all_clauses_of_a_backend_apply_to_it() -> None:
    run = replace(record(execution("STORE-1")), profile=NO_PROFILE, capabilities=())
    result = coverage(overview(run, BACKEND_CLAUSES))
    assert sum(result.applying.values()) == len(BACKEND_CLAUSES), f"got {result}"


def test_a_clause_whose_tests_ended_early_waits_for_no_capability() -> None:
    ended = execution("LOCK-1", outcome=Outcome.FAILED, causes=("KEY-1",), name="test_a")
    skipped = execution("LOCK-1", outcome=Outcome.SKIPPED, lacks=("SNAPSHOT",), name="test_b")
    assert found(ended, skipped).gains == {}, f"LOCK-1 is undecided: got {found(ended, skipped).gains}"


def test_models_are_a_level_of_tests() -> None:
    passed, skipped = (
        execution("REQ-3", suite="accuracy", name="test_a"),
        execution("REQ-3", suite="accuracy", outcome=Outcome.SKIPPED, name="test_b"),
    )
    models = found(passed, skipped).of(Level.MODELS)
    assert str(models) == "models: verified, 1 of 1 tests", f"expected one verified test, got {models}"
    models = found(skipped).of(Level.MODELS)
    assert models.verdict is Verdict.NOT_RUN, f"expected no test to have run, got {models}"


def test_what_only_a_gpu_can_show_is_told_and_not_required() -> None:
    on_gpu = [clause_id for clause_id in of(Level.HOST) if CONTRACT[clause_id].gpu]
    result = found(execution(*(clause_id for clause_id in of(Level.HOST) if clause_id not in on_gpu)))
    assert on_gpu, "no clause of the host needs a GPU: this test shows nothing"
    assert result.of(Level.HOST).verdict is Verdict.VERIFIED, f"got {result.of(Level.HOST)}"
    assert f"({', '.join(on_gpu)} only on a GPU)" in str(result), f"got {result}"


ON_GPU: Mapping[str, tuple[Execution, str]] = {
    "streams": (execution("HOST-7", configuration="full/page16/lru/write_through-page_first-streams"), "CUDA streams"),
    "direct copies on streams": (
        execution("HOST-7", configuration="full/page16/lru/write_through-layer_first-streams-direct"),
        "CUDA streams",
    ),
    "pinned memory": (execution("POOL-6"), "pinned host memory"),
    "NCCL": (replace(execution("RANK-1", suite="distributed_tests"), collectives=("gloo", "nccl")), "NCCL"),
}
"""A test that runs one part on a GPU, and the name of that part."""

NOT_ON_GPU = (
    execution("HOST-7"),
    replace(execution("RANK-1", suite="distributed_tests", configuration="gloo-tp2"), collectives=("gloo",)),
    # A group of one rank, in which no collective happens.
    execution("RANK-1", suite="distributed_tests", configuration="nccl-tp1"),
)


@pytest.mark.parametrize(("ran", "part"), ON_GPU.values(), ids=ON_GPU)
def test_what_no_test_ran_on_a_gpu_is_told(ran: Execution, part: str) -> None:
    every = [name for _, name in ON_GPU.values()]
    gpu = {GPU: "a GPU of some kind"}
    run = replace(record(*NOT_ON_GPU, replace(ran, outcome=Outcome.SKIPPED)), capabilities=tuple(ALL), environment=gpu)
    told = untried_on_gpu(run, CONTRACT)
    assert told == f"No test ran on a GPU of: {', '.join(dict.fromkeys(every))}", f"got {told!r}"
    header = HtmlPage(render_html(overview(run, CONTRACT), CONTRACT, {})).one("header")
    paragraphs = [one.text for one in header.all("p")]
    assert f"{told}." in paragraphs, f"expected {told!r} at the top of the page, got {paragraphs}"
    assert f"{told}." in render_markdown(overview(run, CONTRACT)).splitlines(), f"report.md does not say {told!r}"
    told = untried_on_gpu(replace(run, executions=(*run.executions, ran)), CONTRACT)
    assert part not in told, f"{ran.node_id} ran {part} on a GPU, got {told!r}"
    assert told.count(",") == 1, f"the other two parts did not run, got {told!r}"


@pytest.mark.parametrize("configuration", ["full/page16/lru", "full/page16/lru/write_through-page_first-threaded"])
def test_an_adapter_on_a_gpu_copies_on_streams_where_there_is_a_host_tier(configuration: str) -> None:
    ran = execution("HOST-7", configuration=configuration)
    run = replace(record(ran), capabilities=tuple(ALL), environment={GPU: "a GPU of some kind"})
    for implementation, has_streams in (
        ("package:Cache", False),
        ("package:Cache@cuda:1", "threaded" in configuration),
    ):
        told = untried_on_gpu(replace(run, implementation=implementation), CONTRACT)
        assert ("CUDA streams" not in told) is has_streams, f"{implementation} on {configuration}: got {told!r}"


def test_what_ran_on_a_model_of_cuda_did_not_run_on_a_gpu() -> None:
    ran = tuple(one for one, _ in ON_GPU.values())
    for environment in ({GPU: NO_GPU}, {"python": "3.10.1"}):
        run = replace(record(*ran), capabilities=tuple(ALL), environment=environment)
        assert not_on_gpu(run, CONTRACT) == tuple(GpuPart), f"expected all parts in the environment {environment}"


def test_parts_that_a_cache_does_not_have_are_not_told() -> None:
    run = replace(record(*NOT_ON_GPU), capabilities=("HOST",))
    assert not_on_gpu(run, CONTRACT) == (GpuPart.STREAMS, GpuPart.PINNED_MEMORY), "a cache on one rank has no NCCL"
    assert not untried_on_gpu(replace(run, capabilities=("VERBS",)), CONTRACT), "a cache on the device alone has none"
    ran = tuple(one for one, _ in ON_GPU.values())
    run = replace(run, executions=ran, capabilities=tuple(ALL), environment={GPU: "some", "python": "3.10.1"})
    assert not untried_on_gpu(run, CONTRACT), "all parts ran"


@pytest.mark.parametrize(
    ("implementation", "expected"),
    [
        ("package:Cache", {"STEPPED", "SNAPSHOT"}),
        ("package:Cache@cpu", {"STEPPED", "SNAPSHOT"}),
        ("package:Cache@cuda:1", {"SNAPSHOT"}),
    ],
)
def test_nothing_is_advised_that_a_cache_on_a_gpu_cannot_have(implementation: str, expected: set[str]) -> None:
    lacking = execution("HOST-1", outcome=Outcome.SKIPPED, lacks=("STEPPED", "SNAPSHOT"))
    result = coverage(overview(record(lacking, implementation=implementation), CONTRACT))
    assert result.gains.keys() == expected, f"streams cannot be stepped; {implementation}: got {result.gains}"


def test_what_to_declare_next_is_told_with_the_tests_that_wait_for_it() -> None:
    waiting = [
        execution("LOCK-1", outcome=Outcome.SKIPPED, reason="a", lacks=("SNAPSHOT",), name="test_a"),
        execution("LOCK-2", outcome=Outcome.SKIPPED, reason="b", lacks=("SNAPSHOT", "BYTES"), name="test_b"),
        execution("KEY-1", outcome=Outcome.SKIPPED, reason="c", lacks=("BYTES",), name="test_c"),
    ]
    run = replace(record(*waiting, execution("KEY-1")), capabilities=("VERBS",))
    view = overview(run, CONTRACT)
    told = [(one.name, one.clauses, one.tests) for one in declared_next(view)]
    assert told == [("SNAPSHOT", 2, 2), ("BYTES", 1, 2)], f"KEY-1 was checked by another test; got {told}"
    rows = HtmlPage(render_html(view, CONTRACT, {})).part("Skipped").all("table")[0].rows()
    assert rows[1] == ["SNAPSHOT", Capability.SNAPSHOT.value, "2", "2"], f"expected what SNAPSHOT is, got {rows}"
    assert Capability.SNAPSHOT.value.partition(":")[0] in render_markdown(view), "report.md does not say what it is"


LOCKED = execution("LOCK-3")
MACHINE = execution("POOL-1", suite="properties", outcome=Outcome.SKIPPED, lacks=("SNAPSHOT", "SIZES"))
EVICTION = execution("EVICT-1", outcome=Outcome.SKIPPED, lacks=("SIZES",))
REFUSED = execution("POOL-1", suite="properties", outcome=Outcome.SKIPPED, reason="Mine refuses full")


@pytest.mark.parametrize(
    ("executions", "told"),
    [
        ((LOCKED, MACHINE, EVICTION), "no sequence of operations was tried, and no eviction: declare SIZES"),
        ((LOCKED, MACHINE), "no sequence of operations was tried, and no eviction: declare SNAPSHOT and SIZES"),
        ((LOCKED, REFUSED), "no sequence of operations was tried, and no eviction: Mine refuses full"),
        ((LOCKED, MACHINE, execution("EVICT-1")), ""),
        ((LOCKED, EVICTION, execution("POOL-1", suite="properties")), ""),
        ((LOCKED,), ""),
    ],
)
def test_a_run_without_a_machine_and_an_eviction_says_so_first(executions: tuple[Execution, ...], told: str) -> None:
    view = overview(record(*executions), CONTRACT)
    assert untried(view) == told, f"got {untried(view)}"
    first = headline(view)
    assert first == f"Not verified: {told}" if told else first.endswith("no test failed"), f"got {first}"
