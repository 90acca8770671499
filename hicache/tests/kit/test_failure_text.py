"""The text of a failed test in the terminal: the clause, the steps and the trees, and no frames of the kit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hicache.testing.contract import CONTRACT
from hicache.testing.report import NO_EVIDENCE, Execution, Outcome
from hicache.testing.report.failure_text import MAX_NODES, MAX_STEPS, WIDTH, TextPart, failure_parts
from hicache.testing.report.run import Evidence, Step
from hicache.tests.kit.suite_runs import execution, run, write_suite

REFERENCE = "hicache.testing.caches.reference:ReferenceAdapter"

SUITE = """
from .scene import insert_and_break

@clause("KEY-1", page_sizes={16})
def test_of_keys(driver):
    insert_and_break(driver)
"""

SCENE = """
from hicache.testing.violation import violation

def insert_and_break(driver):
    for pages in ([1], [1, 2]):
        key = driver.key(driver.prompt(pages))
        slots = driver.adapter.allocate(driver.elements(key))
        driver.adapter.insert(key, slots, shared=0, window_start=0, state=None, priority=0)
        driver.adapter.snapshot()
    raise violation("LOCK-2", "node 16..32", "1 lock", "no lock")
"""


def told(pytester: pytest.Pytester, *options: str, scene: str = SCENE) -> list[str]:
    """What pytest prints of a test that fails in a helper module of its suite."""
    write_suite(pytester, SUITE)
    (pytester.path / "conformance" / "scene.py").write_text(scene, encoding="utf-8")
    return run(pytester, "--hicache-quick", "-k", "lru", "--maxfail=1", *options, adapter=REFERENCE).outlines


def sections(lines: list[str]) -> dict[str, list[str]]:
    """The sections of the failure: the lines below each title."""
    found: dict[str, list[str]] = {}
    for line in lines[: lines.index(next(line for line in lines if "= hicache =" in line))]:
        if line.startswith("---"):
            found[line.strip("- ")] = []
        elif found:
            found[list(found)[-1]].append(line)
    return found


def test_a_failed_test_shows_the_clause_the_steps_and_both_trees(pytester: pytest.Pytester) -> None:
    found = sections(told(pytester))
    assert list(found)[-5:] == [
        "LOCK-2",
        "the last 4 calls",
        "the tree before the last call",
        "the tree after the last call",
        "replay",
    ], f"got {list(found)}"
    clause, steps = " ".join(found["LOCK-2"]), found["the last 4 calls"]
    assert clause == f"{CONTRACT['LOCK-2'].sentence} at: node 16..32 expected: 1 lock got: no lock", f"got {clause}"
    marked = [line for line in steps if line.startswith("✗ ")]
    assert len(marked) == 1, f"expected one marked step, got {steps}"
    assert marked[0].startswith("✗ insert("), f"expected the last step to be marked, got {steps}"
    nodes = [len(found[f"the tree {when} the last call"]) for when in ("before", "after")]
    assert nodes[0] < nodes[1], f"expected a node more after the last insert, got {found}"


OF_THE_KIT = ("scene.py:", "hicache/testing/driving/", "hicache/testing/plugin/")


@pytest.mark.parametrize(
    ("options", "hidden"),
    [((), True), (("--tb=short",), True), (("--tb=long",), False), (("--full-trace",), False)],
    ids=["default", "short", "long", "full-trace"],
)
def test_frames_of_the_kit_are_shown_on_request_alone(
    pytester: pytest.Pytester, options: tuple[str, ...], *, hidden: bool
) -> None:
    lines = told(pytester, *options)
    shown = [line for line in lines if any(name in line for name in OF_THE_KIT)]
    assert not shown if hidden else shown, f"expected frames of the kit: {not hidden}, got {shown}"
    assert any(line.startswith("conformance/test_it.py:") for line in lines), f"the test is not shown: {lines}"


def test_the_frames_of_the_cache_stay(pytester: pytest.Pytester) -> None:
    scene = "def insert_and_break(driver):\n    driver.adapter.match(None, chunked=False)\n"
    lines = told(pytester, scene=scene)
    shown = [line.partition(":")[0].rpartition("/")[2] for line in lines if ".py:" in line and not line[0].isspace()]
    assert shown[0] == "test_it.py", f"expected the test first, got {shown}"
    assert "reference.py" in shown, f"expected the frame of the adapter, got {shown}"
    assert not {"scene.py", "evidence.py"} & {*shown}, f"expected no frame of the kit, got {shown}"


def test_an_error_of_a_helper_itself_shows_where_it_was_raised(pytester: pytest.Pytester) -> None:
    lines = told(pytester, scene="def insert_and_break(driver):\n    raise KeyError('a mistake of the suite')\n")
    assert any("scene.py:2" in line for line in lines), f"expected the place of the error, got {lines}"


EVIDENCE = Evidence((Step("match", "[1..3]", "None"), Step("lock", "Node 1", "Receipt 1")), "root", "root\n└─ a", "")


def failure(reason: str, evidence: Evidence = EVIDENCE, *causes: str) -> Execution:
    """A failed test of LOCK-2."""
    return replace(
        execution("LOCK-2", outcome=Outcome.FAILED, reason=reason, causes=causes or ("LOCK-2",)), evidence=evidence
    )


def part(one: Execution, title: str) -> TextPart:
    """The part of a failure whose title begins so."""
    return next(part for part in failure_parts(one, CONTRACT) if part.title.startswith(title))


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (
            "hicache.ViolationError: LOCK-2: slot 7: expected 1 lock, got 2",
            ["at: slot 7", "expected: 1 lock", "got: 2"],
        ),
        ("AssertionError: LOCK-2: expected (1, 2), got (1, got)", ["expected: (1, 2)", "got: (1, got)"]),
        ("AssertionError: LOCK-2: expected a, got b\nassert a == b\n + where", ["expected: a", "got: b"]),
        ("AssertionError: LOCK-2: the lock is lost", ["the lock is lost"]),
        ("AssertionError: assert 1 == 2", ["AssertionError: assert 1 == 2"]),
    ],
)
def test_the_message_is_taken_apart(reason: str, expected: list[str]) -> None:
    lines = part(failure(reason), "LOCK-2").lines
    assert list(lines[-len(expected) :]) == expected, f"got {lines}"


def test_an_error_has_its_message() -> None:
    told = part(failure("KeyError: 7", EVIDENCE, "KeyError in Mine.match"), "KeyError in Mine.match").lines
    assert told == ("KeyError: 7",), f"got {told}"


def test_what_is_shown_is_bounded_and_says_what_is_left_out() -> None:
    steps = tuple(Step("match", "x, " * 400, str(number)) for number in range(MAX_STEPS + 5))
    tree = "\n".join(f"node {number} {'y ' * 200}" for number in range(MAX_NODES + 7))
    one = failure("ValueError: " + "z" * 5000, Evidence(steps, "root", tree, ""))
    parts = list(failure_parts(one, CONTRACT))
    calls = part(one, f"the last {MAX_STEPS} calls").lines
    assert calls[0] == "  … 5 earlier calls are left out", f"got {calls[0]}"
    assert part(one, "the tree after").lines[-1] == "… 7 more lines", "expected the number of nodes that are left out"
    wide = [line for part in parts for line in part.lines if len(line) > WIDTH]
    assert not wide, f"these lines are wider than {WIDTH}: {wide}"
    assert sum(len(part.lines) for part in parts) < 200, "a failure fills more than a few screens"


def test_equal_trees_are_shown_once() -> None:
    same = replace(EVIDENCE, after=EVIDENCE.before)
    titles = [part.title for part in failure_parts(failure("x", same), CONTRACT)]
    assert titles[2:] == ["the tree, the same before and after the last call"], f"got {titles}"


def test_a_test_without_evidence_has_its_clause_alone() -> None:
    titles = [part.title for part in failure_parts(failure("x", NO_EVIDENCE), CONTRACT)]
    assert titles == ["LOCK-2"], f"got {titles}"
