"""Coverage: a level is verified only if everything in it that applies to the cache was checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import CONTRACT
from hicache.testing.levels import Level
from hicache.testing.report import Execution, Outcome
from hicache.testing.report.coverage import LEVEL_OF_TIER, Coverage, Verdict, coverage, declared_next
from hicache.testing.report.gpu import GPU, NO_GPU, GpuPart, not_on_gpu, told_of_gpu
from hicache.testing.report.matrix import overview
from hicache.testing.report.pages import render_html
from hicache.testing.report.text import render_markdown
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


def test_a_level_is_not_verified_when_one_clause_was_not_checked() -> None:
    device = found(execution(*of(Level.DEVICE)[1:])).of(Level.DEVICE)
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
    told = f"1 of {len(CONTRACT)} clauses checked (POOL-6 only on a GPU), {len(CONTRACT) - 1} not: declare "
    assert str(result) == f"{told}SNAPSHOT (+3), HOST (+2)", f"got {result}"


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
    told = told_of_gpu(run, CONTRACT)
    assert told == f"No test ran on a GPU of: {', '.join(dict.fromkeys(every))}", f"got {told!r}"
    for page in (render_html(overview(run, CONTRACT), CONTRACT, {}), render_markdown(overview(run, CONTRACT))):
        assert told in page, f"expected the page to say {told!r}"
    told = told_of_gpu(replace(run, executions=(*run.executions, ran)), CONTRACT)
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
        told = told_of_gpu(replace(run, implementation=implementation), CONTRACT)
        assert ("CUDA streams" not in told) is has_streams, f"{implementation} on {configuration}: got {told!r}"


def test_what_ran_on_a_model_of_cuda_did_not_run_on_a_gpu() -> None:
    ran = tuple(one for one, _ in ON_GPU.values())
    for environment in ({GPU: NO_GPU}, {"python": "3.10.1"}):
        run = replace(record(*ran), capabilities=tuple(ALL), environment=environment)
        assert not_on_gpu(run, CONTRACT) == tuple(GpuPart), f"expected all parts in the environment {environment}"


def test_parts_that_a_cache_does_not_have_are_not_told() -> None:
    run = replace(record(*NOT_ON_GPU), capabilities=("HOST",))
    assert not_on_gpu(run, CONTRACT) == (GpuPart.STREAMS, GpuPart.PINNED_MEMORY), "a cache on one rank has no NCCL"
    assert not told_of_gpu(replace(run, capabilities=("VERBS",)), CONTRACT), "a cache on the device alone has none"
    ran = tuple(one for one, _ in ON_GPU.values())
    run = replace(run, executions=ran, capabilities=tuple(ALL), environment={GPU: "some", "python": "3.10.1"})
    assert not told_of_gpu(run, CONTRACT), "all parts ran"


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
    for page in (render_html(view, CONTRACT, {}), render_markdown(view)):
        assert Capability.SNAPSHOT.value.partition(":")[0] in page, "expected the page to say what SNAPSHOT is"
