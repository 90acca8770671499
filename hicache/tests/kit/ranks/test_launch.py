"""Launch: one process for each rank, their results, and the outcomes of ranks that fail, die or hang."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hicache.errors import InvariantError
from hicache.testing.configurations import quick_configurations
from hicache.testing.driving.driver import Driver
from hicache.testing.plugin.failures import MAX_OUTPUT, causes_of, recorded
from hicache.testing.process_starts import process_starts
from hicache.testing.ranks.launch import ENDED, SILENT, START_METHOD, Launch
from hicache.testing.ranks.outcome import RAISED, RankOutcome, RanksFailedError
from hicache.testing.ranks.seen import SEEN
from hicache.testing.ranks.worker import LEFT_PROCESS, LEFT_RUNNING, raised
from hicache.testing.ranks.world import Mesh, RankWorld
from hicache.tests.kit.hosted_cache import FlatCache
from hicache.tests.kit.ranks import divergences
from hicache.tests.kit.ranks.divergences import DIVERGENCES


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(Mesh(2, 1, 1), "gloo", tmp_path, deadline_s=60.0, timeout_s=20.0, is_recorded=True)


def test_each_rank_is_a_process_and_returns_its_value(launch: Launch) -> None:
    results = replace(launch, mesh=Mesh(4, 1, 1)).values(divergences.reduces, 7)
    processes = {process for process, _, _ in results}
    assert len(processes | {os.getpid()}) == 5, f"expected four processes beside this one, got {processes}"
    assert [rest for _, *rest in results] == [[[7], "cpu"]] * 4, f"expected the least of 7..10 by gloo, got {results}"


@pytest.mark.parametrize(("ranks", "expected"), [(2, ("gloo",)), (1, ())])
def test_a_backend_is_seen_where_two_ranks_were_in_a_collective(
    launch: Launch, ranks: int, expected: tuple[str, ...]
) -> None:
    SEEN.take()
    replace(launch, mesh=Mesh(ranks, 1, 1)).values(divergences.interposed, "usual")
    seen = SEEN.take()
    assert seen == expected, f"{ranks} ranks of gloo: expected {expected}, got {seen}"


def test_a_launch_leaves_no_process_and_no_signal_handler_behind(launch: Launch) -> None:
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    launch.values(divergences.reduces, 0)
    after = [signal.getsignal(number) for number in signal.valid_signals()]
    assert after == handlers, f"expected the same handlers as before, {handlers}, got {after}"
    assert not multiprocessing.active_children(), f"expected none, got {multiprocessing.active_children()}"


@pytest.mark.parametrize("divergence", ["skips", "other-operation", "other-shape", "raises"])
def test_the_traceback_of_every_rank_names_the_one_that_diverges(launch: Launch, divergence: str) -> None:
    with pytest.raises(RanksFailedError) as caught:
        launch.values(divergences.diverges, divergence)
    failures = [outcome.failure for outcome in caught.value.outcomes]
    expected = DIVERGENCES[divergence].message.format(last=1)
    assert expected in failures[0], f"RANK-2: expected {expected!r} on rank 0, got {failures[0]}"
    assert "in diverges" in failures[0], f"expected a traceback of rank 0, got {failures[0]}"
    assert "in diverges" in failures[1], f"expected a traceback of rank 1, got {failures[1]}"
    for failure in failures:
        assert failure in str(caught.value), f"expected each rank's failure in the message, got {caught.value}"


def test_a_rank_that_makes_its_own_groups_alone_is_named(launch: Launch) -> None:
    with pytest.raises(RanksFailedError) as caught:
        launch.values(divergences.makes_its_own_groups)
    expected = "rank 1 of world skipped call 1 (new_group ranks 0): it called new_group ranks 1 instead"
    for outcome in caught.value.outcomes:
        assert expected in outcome.failure, f"RANK-6: expected {expected!r} on each rank, got {outcome.failure}"


def test_each_rank_counts_as_a_process_that_was_started(launch: Launch) -> None:
    before = process_starts().count
    launch.outcomes(divergences.ends_early)
    started = process_starts().count - before
    assert started == launch.mesh.ranks, f"expected a process for each of {launch.mesh.ranks} ranks, got {started}"


def test_a_rank_that_ended_is_named_at_once(launch: Launch) -> None:
    outcomes = launch.outcomes(divergences.ends_early)
    expected = "rank 1 of tp skipped call 2 (MIN second): it had ended"
    assert expected in outcomes[0].failure, f"RANK-2: expected {expected!r}, got {outcomes[0]}"
    assert (outcomes[1].value, outcomes[1].failure) == ("nothing", ""), f"expected rank 1 to succeed, got {outcomes[1]}"


def test_all_errors_are_reported(launch: Launch) -> None:
    with pytest.raises(RanksFailedError, match=r"(?s)2 of 2 ranks.*rank 0 raised.*defect 40.*rank 1 raised.*defect 41"):
        launch.values(divergences.fails)


def test_what_a_rank_raised_or_how_it_ended_is_the_cause() -> None:
    left_alone = RankOutcome(0, None, f"{RAISED}\nTraceback\nRankError: rank 1 had ended")
    broken = RankOutcome(1, None, f"{RAISED}\nTraceback\nViolationError: REQ-3: zeros", ("REQ-3",))
    lines = f"{RAISED}\nTraceback\n  File\nViolationError: RANK-1: got:\n-root\n"
    died = RankOutcome(
        2, None, "ended with code -11 and left no outcome:\nFatal Python error: Segmentation fault\n", (ENDED,)
    )
    found = {
        "rank 1 raised: ViolationError: REQ-3: zeros": RanksFailedError([left_alone, broken]),
        "rank 2 ended with code -11 and left no outcome: Fatal Python error: Segmentation fault": RanksFailedError(
            [left_alone, died]
        ),
        "rank 0 raised: RankError: rank 1 had ended": RanksFailedError([left_alone]),
        "rank 3 raised: ViolationError: RANK-1: got: -root": RanksFailedError([replace(broken, rank=3, failure=lines)]),
    }
    for told, error in found.items():
        first = str(error).splitlines()[0]
        assert first.endswith(told), f"expected the rank that is the cause, {told!r}, got {first!r}"
    causes = [causes_of(error, ("HOST-6",)) for error in found.values()]
    assert causes == [("REQ-3",), (ENDED,), ("HOST-6",), ("REQ-3",)], f"got {causes}"


def test_the_calls_of_a_rank_are_in_its_outcome_without_frames_of_the_kit() -> None:
    config = quick_configurations(FlatCache.capabilities)[0]
    driver = Driver(recorded(FlatCache)(config), config)
    slots = driver.allocate(config.page_size)
    assert slots is not None, "expected slots in an empty cache"
    driver.adapter.free(slots)
    with pytest.raises(InvariantError) as caught:
        driver.allocate(config.page_size)
    outcome = raised(0, caught.value)
    calls = [step.verb for step in RanksFailedError([outcome]).evidence.steps]
    assert calls == ["allocate", "free", "allocate"], f"expected those of the cache, got {calls}"
    assert "test_launch.py" in outcome.failure, f"expected the frame of the test, got {outcome.failure}"
    assert "driver.py" not in outcome.failure, f"expected no frame of the kit, got {outcome.failure}"


def test_a_process_tells_the_cause(launch: Launch) -> None:
    with pytest.raises(RanksFailedError) as caught:
        launch.values(divergences.fails)
    assert caught.value.causes == ("ValueError in the test",), f"expected the error of each rank, got {caught.value}"


@pytest.mark.parametrize(
    ("entry", "cause"),
    [
        (divergences.exits, "SystemExit in the test"),
        (divergences.leaves_a_thread, LEFT_RUNNING),
        (divergences.leaves_a_fork, LEFT_PROCESS),
        (divergences.prints_without_end, f"{ENDED}: more than {MAX_OUTPUT:,} characters of output"),
    ],
)
def test_a_rank_that_exits_prints_without_end_or_leaves_something_running_is_named(
    launch: Launch, entry: Callable[[RankWorld], None], cause: str
) -> None:
    with pytest.raises(RanksFailedError) as caught:
        replace(launch, timeout_s=2.0).values(entry)
    assert caught.value.causes == (cause,), f"expected {cause!r}, got {caught.value.causes}: {caught.value}"


def test_a_process_that_a_rank_leaves_is_ended(launch: Launch, tmp_path: Path) -> None:
    told = tmp_path / "told"
    launch.outcomes(divergences.tells_what_it_leaves, told)
    found = _last_state_of(told.read_text(encoding="ascii"), launch.timeout_s)
    assert found in ("gone", "Z"), f"a process that outlives its rank keeps the pipes of the run, it is {found!r}"


def test_a_rank_ends_with_the_process_that_started_it(launch: Launch, tmp_path: Path) -> None:
    told, until = tmp_path / "told", time.monotonic() + launch.deadline_s
    context = multiprocessing.get_context(START_METHOD)
    starter = context.Process(target=launch.outcomes, args=(divergences.tells_and_hangs, told))
    starter.start()
    while not told.exists():
        assert time.monotonic() < until, f"no rank began within {launch.deadline_s:g} s"
        time.sleep(0.01)
    starter.kill()
    starter.join()
    found = _last_state_of(told.read_text(encoding="ascii"), launch.timeout_s)
    assert found in ("gone", "Z"), f"nothing else ends a rank that hangs, it is {found!r}"


def _last_state_of(process: str, timeout_s: float) -> str:
    """The state of a process when it has ended, or after a time in which it has not."""
    state, until = Path(f"/proc/{process}/stat"), time.monotonic() + timeout_s
    while (found := _state_of(state)) not in ("gone", "Z") and time.monotonic() < until:
        time.sleep(0.01)
    return found


def _state_of(stat: Path) -> str:
    """The state of a process in one letter, from its `stat` in /proc; Z has ended, and its parent does not know yet."""
    try:
        return stat.read_text(encoding="ascii").rpartition(") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


@pytest.mark.parametrize("entry", [divergences.exits_at_once, divergences.one_exits_at_once])
def test_a_rank_whose_process_ends_with_code_0_in_a_verb_is_named(
    launch: Launch, entry: Callable[[RankWorld], None]
) -> None:
    with pytest.raises(RanksFailedError) as caught:
        replace(launch, timeout_s=2.0).values(entry)
    assert caught.value.causes == (ENDED,), f"expected {ENDED!r}, got {caught.value.causes}: {caught.value}"
    assert "rank 1 ended" in str(caught.value), f"expected rank 1 to be named, got {caught.value}"


def test_the_other_ranks_name_a_rank_that_was_killed(launch: Launch) -> None:
    outcomes = replace(launch, mesh=Mesh(4, 1, 1), timeout_s=2.0).outcomes(divergences.is_killed)
    expected = "rank 1 of tp did not reach call 2 (MIN progress) within 2 s"
    messages = [outcome.value for outcome in outcomes]
    assert messages == [expected, None, expected, expected], (
        f"RANK-8: expected {expected!r} but on rank 1, got {outcomes}"
    )
    killed = outcomes[1].failure
    assert killed.startswith("ended with code -9, in call 1 of tp (barrier begin)"), (
        f"expected the exit code and the last call, got {killed!r}"
    )


def test_a_rank_that_hangs_is_killed_soon_after_another_one_was(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hicache.testing.ranks.launch.GRACE_S", 0.5)
    with pytest.raises(RanksFailedError) as caught:
        replace(launch, deadline_s=600.0).values(divergences.is_killed_while_another_hangs)
    assert caught.value.causes == (SILENT, ENDED), f"expected the causes of both ranks, got {caught.value}"
    failures = [outcome.failure for outcome in caught.value.outcomes]
    assert failures[0].startswith("had not ended when it was killed"), f"expected it of rank 0, got {failures}"
    assert failures[1].startswith("ended with code -9"), f"expected it of rank 1, got {failures}"


def test_a_process_past_its_deadline_is_killed_and_its_stack_is_reported(launch: Launch) -> None:
    begin = time.monotonic()
    outcomes = replace(launch, deadline_s=8.0, timeout_s=2.0).outcomes(divergences.hangs)
    took_s = time.monotonic() - begin
    assert outcomes[0].failure == "", f"expected rank 0 to succeed, got {outcomes[0]}"
    failure = outcomes[1].failure
    expected = "had not ended within 8 s, in call 1 of tp (barrier begin)"
    assert failure.startswith(expected), f"expected {expected!r}, got {failure}"
    assert "in hangs" in failure, f"expected the stack of rank 1, got {failure}"
    assert took_s < 30, f"expected the end soon after 8 s, it took {took_s:.1f} s"
    assert not multiprocessing.active_children(), f"expected none, got {multiprocessing.active_children()}"


def test_direct_calls_of_torch_distributed_are_recorded_too(launch: Launch) -> None:
    results = launch.values(divergences.interposed, "usual")
    expected = [
        "MAX interposed of 2",
        "MIN interposed of 2",
        "broadcast from rank 0 interposed of 2",
        "barrier interposed of 0",
    ]
    assert results == [expected] * 2, f"RANK-2: expected {expected} on both ranks, got {results}"


def test_a_thread_may_be_in_a_collective_of_its_own_group_while_ranks_compare(launch: Launch) -> None:
    results = launch.values(divergences.interposed_in_a_thread)
    assert results == [[1, 1]] * 2, f"RANK-2: expected one call in each of two groups on both ranks, got {results}"


@pytest.mark.parametrize(
    ("divergence", "expected"),
    [
        ("skip", "rank 1 of ranks 0, 1 made call 2 (MIN interposed) as broadcast from rank 0 interposed"),
        ("shape", "rank 1 of ranks 0, 1 passed 3 values to call 2 (MIN interposed), rank 0 passed 2"),
    ],
)
def test_a_rank_that_diverges_in_direct_calls_is_named(launch: Launch, divergence: str, expected: str) -> None:
    outcomes = launch.outcomes(divergences.interposed, divergence)
    assert all(expected in outcome.failure for outcome in outcomes), f"RANK-2: expected {expected!r}, got {outcomes}"
