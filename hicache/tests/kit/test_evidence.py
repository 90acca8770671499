"""Evidence: a failed test shows its calls, the tree, and the frames of the adapter alone."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hicache.testing.adapter import METHODS, Capability
from hicache.testing.caches.blocks import BlockCacheAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.configurations import quick_configurations
from hicache.testing.contract import CONTRACT
from hicache.testing.driving.driver import Driver
from hicache.testing.plugin.failures import MAX_STEPS, VERBS, Handles, evidence, record_of, recorded, text_of
from hicache.testing.report import write_report
from hicache.testing.report.failure_text import failure_parts
from hicache.testing.storage.driver import StorageDriver
from hicache.testing.storage.subject import SHIPPED, Place
from hicache.tests.kit.hosted_cache import FlatCache
from hicache.tests.kit.html_page import HtmlPage
from hicache.tests.kit.suite_runs import execution, run_recorded, write_suite
from hicache.types import SHARED, Key, Namespace

SUITE = """
from hypothesis import given, settings, strategies as st

@clause("KEY-1", page_sizes={16})
def test_of_keys(driver):
    slots = driver.allocate(32)
    driver.free(slots)
    driver.adapter.match(None, chunked=False)

@clause("KEY-1", page_sizes={16})
def test_of_two_caches(driver, hicache_driver):
    driver.allocate(16)
    own = hicache_driver(config=driver.config)
    own.allocate(32)
    assert False, "KEY-1: no"

@clause("KEY-1", page_sizes={16})
def test_of_a_cache_that_is_gone(config, adapter):
    own = type(adapter)(config)
    own.allocate(16)
    own.close()
    del own
    assert False, "KEY-1: no"

@clause("KEY-1", page_sizes={16})
def test_by_a_search(adapter, config):
    search(adapter)

@settings(database=None)
@given(count=st.integers(1, 3))
def search(adapter, count):
    slots = adapter.allocate(16 * count)
    adapter.free(slots)
    assert count < 2, "KEY-1: no"

@clause("KEY-1")
def test_without_one():
    assert False, "KEY-1: no"
"""


def test_a_failed_test_has_the_steps_of_the_cache_that_it_called_last(pytester: pytest.Pytester) -> None:
    write_suite(pytester, SUITE)
    record = run_recorded(pytester, "--hicache-quick")
    evidence = {one.node_id.partition("::")[2].partition("[")[0]: one.evidence for one in record.executions}
    steps = {name: [(step.verb, step.arguments) for step in one.steps] for name, one in evidence.items()}
    search = steps.pop("test_by_a_search")
    assert search[-2] == ("allocate", "32"), f"expected the smallest example of the search last, got {search}"
    assert steps == {
        "test_of_keys": [("allocate", "32"), ("free", "[16..47]"), ("match", "None, chunked=False")],
        "test_of_two_caches": [("allocate", "32")],
        "test_of_a_cache_that_is_gone": [("allocate", "16")],
        "test_without_one": [],
    }, f"got {steps}"
    answers = [step.answer for step in evidence["test_of_keys"].steps]
    assert answers[:2] == ["[16..47]", "None"], f"got {answers}"
    assert answers[2].startswith("raised AttributeError: "), f"got {answers}"
    traceback = evidence["test_of_keys"].traceback
    assert "hosted_cache.py" in traceback, f"expected the frames of the adapter, got {traceback}"
    others = [name for name in ("test_it.py", "evidence.py", "pluggy") if name in traceback]
    assert not others, f"expected the frames of the adapter alone, got those of {others}"
    of_keys = [one for one in record.executions if "test_of_keys" in one.node_id]
    page = HtmlPage(write_report(replace(record, executions=tuple(of_keys)), pytester.path / "out").read_text("utf-8"))
    cause = page.one(id="cause-1")
    rows = cause.one("table", kind="steps").rows()[1:]
    assert rows[:2] == [["allocate", "32", "[16..47]"], ["free", "[16..47]", "None"]], f"got {rows}"
    assert rows[2][:2] == ["✗ failed match", "None, chunked=False"], f"got {rows}"
    folded = [one.one("summary").text for one in cause.all("details")]
    assert "Traceback of the adapter" in folded, f"got {folded}"


def test_a_recorded_class_is_known_by_the_same_name() -> None:
    known = recorded(FlatCache)
    name = (known.__module__, known.__qualname__)
    assert name == (FlatCache.__module__, "FlatCache"), f"expected the name of FlatCache, got {name}"
    assert issubclass(known, FlatCache), "the adapter's class methods must work"


def test_the_tree_is_shown_before_and_after_the_last_step() -> None:
    config = quick_configurations(ReferenceAdapter.capabilities)[0]
    adapter = recorded(ReferenceAdapter)(config)
    driver = Driver(adapter, config)
    for pages in ([1, 2], [1, 3]):
        key = driver.key(driver.prompt(pages))
        slots = adapter.allocate(driver.elements(key))
        assert slots is not None, "expected slots in an empty cache"
        adapter.insert(key, slots, shared=0, window_start=0, state=None, priority=0)
        adapter.snapshot()
    found = evidence(record_of(adapter), AssertionError("no"))
    adapter.close()
    assert found.before.splitlines()[0] == found.after.splitlines()[0] == "root", f"got {found}"
    assert len(found.before.splitlines()) == 2, f"one node after one insert, got {found.before}"
    assert len(found.after.splitlines()) == 4, f"a split node with two children, got {found.after}"
    assert "device full" in found.after, f"expected what is on the device, got {found.after}"


def test_the_tree_before_is_the_one_before_the_last_call() -> None:
    config = quick_configurations(ReferenceAdapter.capabilities)[0]
    adapter = recorded(ReferenceAdapter)(config)
    adapter.snapshot()
    adapter.allocate(config.page_size)
    adapter.snapshot()
    adapter.step()
    before = [evidence(record_of(adapter), AssertionError("no"))]
    for _ in range(2):
        adapter.snapshot()
        before.append(evidence(record_of(adapter), AssertionError("no")))
    adapter.close()
    found = [(bool(one.before), bool(one.after)) for one in before]
    assert found == [(True, False), (True, True), (True, True)], f"none was taken after the last call at first: {found}"


def test_the_blocks_of_a_cache_of_blocks_are_shown_before_and_after_the_last_call() -> None:
    config = next(one for one in BlockCacheAdapter.configurations() if one.page_size == 1)
    adapter = recorded(BlockCacheAdapter)(config)
    driver = Driver(adapter, config)
    adapter.block_snapshot()
    request = adapter.admit(driver.key([5, 6, 7]))
    assert request is not None, "expected room in an empty cache"
    adapter.checkpoint(request.request, 3)
    adapter.block_snapshot()
    found = evidence(record_of(adapter), AssertionError("no"))
    adapter.close()
    assert found.before == "cached blocks", f"expected no block in an empty cache, got {found.before}"
    shown = [line.partition(": ")[2] for line in found.after.splitlines() if line.startswith("full ")]
    assert shown == ["(5) [1]", "(5, 6) [1]", "(5..7) [1]"], f"expected three blocks in use, got {found.after}"
    titles = [part.title for part in failure_parts(replace(execution("LOCK-2"), evidence=found), CONTRACT)]
    assert titles[2:] == ["the cache before the last call", "the cache after the last call"], f"got {titles}"


def test_the_calls_of_a_backend_are_recorded_without_their_pages(tmp_path: Path) -> None:
    with closing(Place(SHIPPED[0], tmp_path)) as place:
        driver = StorageDriver(place)
        driver.set(["a"])
        driver.open()
        driver.get(["a", "b"], instance=1)
        steps = [
            (one.verb, one.arguments, one.answer) for one in evidence(record_of(driver), AssertionError("no")).steps
        ]
    assert steps == [("set", "[a]", "[True]"), ("get", "[a, b], instance=1", "[True, False]")], f"got {steps}"


CHANGING = (
    *(Capability.VERBS, Capability.RESET, Capability.SWA, Capability.MAMBA, Capability.REQUESTS),
    *(Capability.HOST, Capability.STORAGE, Capability.STEPPED, Capability.STEPPED_STORAGE),
    *(Capability.PREEMPTION, Capability.PINS),
)
"""The capabilities whose methods change a cache, but for those that only read it."""

READING = {"partners", "load_phase", "host_sizes", "read_host", "is_pinned", "layer_ready", "storage_keys", "pending"}


def test_every_method_that_changes_a_cache_is_recorded() -> None:
    changing = {name for one in CHANGING for name in METHODS[one]} - READING | {"step", "drain"}
    assert set(VERBS) == changing, f"these differ: {sorted(changing ^ set(VERBS))}"


def test_only_the_last_steps_are_kept() -> None:
    config = quick_configurations(FlatCache.capabilities)[0]
    adapter = recorded(FlatCache)(config)
    for _ in range(MAX_STEPS + 5):
        adapter.step()
    steps = evidence(record_of(adapter), AssertionError("no")).steps
    assert len(steps) == MAX_STEPS, f"expected {MAX_STEPS} steps, got {len(steps)}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "None"),
        (np.array([4, 5, 6, 9]), "[4..6, 9]"),
        (np.array([9, 8, 7, 3, 4, 5, 1]), "[9..7, 3..5, 1]"),
        (np.array([2, 1]), "[2, 1]"),
        (np.array([4, 5, 9, 9]), "[4, 5, 9, 9]"),
        (np.arange(0, 40, 2), "[0, 2, 4, 6, 8, 10, and more, 20 in all]"),
        (Key(np.array([1, 2, 3], np.int32), SHARED), "[1..3]"),
        (object(), "object 1"),
        ({"full": 3}, "{full: 3}"),
    ],
    ids=["nothing", "slots", "down", "two down", "two up", "many", "key", "handle", "mapping"],
)
def test_a_value_is_told_in_a_few_words(value: object, expected: str) -> None:
    found = text_of(value, Handles())
    assert found == expected, f"got {found}"


@dataclass
class Handle:
    """A handle that leads to a transfer, which leads back to it."""

    transfers: list[Handle]


def test_a_handle_that_leads_to_itself_is_told_once() -> None:
    handle = Handle([])
    handle.transfers.append(handle)
    found = text_of(handle, Handles())
    assert found == "Handle 1(transfers=[Handle])", f"got {found}"
    assert text_of([None, None], Handles()) == "[None, None]", "what stands twice is shown twice"


def test_each_handle_has_a_number_and_is_told_in_full_once() -> None:
    handles, node, other = Handles(), object(), object()
    receipt = Handle([])
    found = [
        text_of([node, other], handles),
        text_of(receipt, handles),
        text_of([other, receipt, Handle([])], handles),
    ]
    expected = ["[object 1, object 2]", "Handle 1(transfers=[])", "[object 2, Handle 1, Handle 2(transfers=[])]"]
    assert found == expected, f"expected one number for each, got {found}"


def test_equal_handles_have_one_number() -> None:
    @dataclass(frozen=True)
    class Block:
        number: int

    @dataclass
    class Request:
        tokens: int

    handles = Handles()
    found = [text_of(one, handles) for one in (Block(7), Block(7), Block(8), Request(1), Request(1))]
    expected = ["Block 1(number=7)", "Block 1", "Block 2(number=8)", "Request 1(tokens=1)", "Request 2(tokens=1)"]
    assert found == expected, f"expected one number for equal values, and two for objects that may change, got {found}"


def test_a_namespace_is_told_with_its_key() -> None:
    shown = text_of(Key(np.array([1], np.int32), Namespace(lora="a", salt=None, tenant=None)), Handles())
    assert shown.startswith("[1] in "), f"got {shown}"
    assert "lora='a'" in shown, f"got {shown}"
