"""Each row of the table is found by the test that it names. A run of a cache that is not changed finds nothing.

That the reference passes the same tests is what the environments of the suites show.
"""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from hicache.tests.proof.changed_source import Change
from hicache.tests.proof.forked_runs import ForkServer, found
from hicache.tests.proof.mutant_table import BY_SLUG, MUTANTS, QUICK, SEARCH, Mutant
from hicache.tests.proof.mutants.accuracy import transfers
from hicache.tests.proof.mutants.rows import Row

MISSING = [name for name in ("torch", "transformers", "lm_eval") if not find_spec(name)]

runs_models = pytest.mark.skipif(
    bool(MISSING), reason=f"models are run, and {', '.join(MISSING)} is missing: pip install 'hicache[accuracy]'"
)

LOST_POOLS = {"sglang#38031", "sglang#39830", "sglang#31600", "sglang#36121", "sglang#39027"}
"""Reports of servers that lost what lies beside the keys and values."""


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(one, id=one.slug, marks=[runs_models] if one.test.startswith("accuracy/") else [])
        for one in MUTANTS
    ],
)
def test_a_mutant_is_found(fork_server: ForkServer, mutant: Mutant) -> None:
    run = fork_server.run(mutant.changes, *mutant.arguments)
    assert found(mutant.message, run), f"{mutant.slug}: expected {mutant.message}, got {run.reasons}\n{run.words}"
    is_search = mutant.test.startswith("properties/")
    assert run.verbs or not is_search, f"{mutant.slug}: a search counts its verbs also when it fails, got {run}"


@runs_models
@pytest.mark.parametrize("row", transfers.ROWS, ids=lambda row: row.slug)
def test_a_model_sees_a_mutant(fork_server: ForkServer, row: Row) -> None:
    adapter = f"{row.adapter.__module__}:{row.adapter.__qualname__}"
    run = fork_server.run((), f"accuracy/{row.test}", "--hicache-adapter", adapter)
    assert found(row.told, run), f"{row.slug}: expected {row.told}, got {run.reasons}\n{run.words}"


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.quick_test], ids=lambda mutant: mutant.slug)
def test_the_quick_profile_finds_a_mutant(fork_server: ForkServer, mutant: Mutant) -> None:
    suite = () if mutant.quick_test.startswith("hicache/") else (QUICK,)
    run = fork_server.run(mutant.changes, mutant.quick_test, *suite)
    assert re.search(r"\b[1-9]\d* failed", run.words), f"{mutant.slug}: {mutant.quick_test} passes:\n{run.words}"


@pytest.mark.parametrize("row", transfers.ROWS, ids=lambda row: row.slug)
def test_the_quick_profile_finds_what_a_model_sees(fork_server: ForkServer, row: Row) -> None:
    adapter = f"{row.adapter.__module__}:{row.adapter.__qualname__}"
    run = fork_server.run((), row.quick_test, QUICK, "--hicache-adapter", adapter)
    assert run.reasons, f"{row.slug}: {row.quick_test} passes:\n{run.words}"


VERBS = "properties/test_machines.py::test_any_order_of_verbs_from_outside[full]"
REQUESTS = "properties/test_machines.py::test_any_mix_of_requests_from_outside[full]"


@pytest.mark.parametrize(
    ("slug", "test", "options"),
    [
        ("skips-a-gap", "conformance/test_requests_alone.py", (QUICK,)),
        ("skips-a-gap", "conformance/test_requests_over_tiers.py", (QUICK,)),
        ("truncated-state", "conformance/test_requests_alone.py", (QUICK,)),
        ("dictionary-pins-nothing", VERBS, SEARCH),
        ("radix-unlocks-all", VERBS, SEARCH),
        ("blocks-keep-the-hash", REQUESTS, SEARCH),
    ],
)
def test_a_cache_without_the_defect_passes(
    fork_server: ForkServer, slug: str, test: str, options: tuple[str, ...]
) -> None:
    run = fork_server.run((), test, *options, "--hicache-adapter", BY_SLUG[slug].adapter)
    assert run.passed, f"expected {test} to run: {run}"
    assert not run.reasons, f"expected no failure of a sound cache, got {run.reasons}"


def test_a_search_that_meets_too_little_fails(fork_server: ForkServer) -> None:
    """A cache that frees what is inserted answers nothing wrong, and nothing of it is tested."""
    begins = "elements, pages = self.whole_pages(key), self.pages_of(slots)"
    ends = 'return self.free(slots) or InsertResult(0, 0, b"", state_adopted=False)'
    change = Change("hicache.testing.caches.paged_dictionary", begins, ends)
    run = fork_server.run([change], *BY_SLUG["dictionary-pins-nothing"].arguments)
    expected = "the search is vacuous: it met no hits, no evictions, no locks held during an eviction"
    assert found(expected, run), f"nothing is ever found: expected {expected!r}, got {run}"


def test_a_departure_in_how_much_is_evicted_leaves_the_order_checked(fork_server: ForkServer) -> None:
    departs = Change(
        "hicache.testing.caches.blocks", 'profile = "blocks"', 'profile, departures = "blocks", frozenset({"EVICT-1"})'
    )
    mutant = BY_SLUG["use-keeps-the-age"]
    searched = ("properties/test_machines.py", "-k", "requests and full]", *SEARCH, "--hicache-adapter", mutant.adapter)
    run = fork_server.run([*mutant.changes, departs], *searched)
    assert run.causes == ["EVICT-2"], f"expected the machine of requests to find the order, got {run}"


def test_each_report_of_a_lost_pool_has_a_mutant() -> None:
    sources = {one.source for one in MUTANTS if "HOST-10" in one.clauses}
    assert sources == LOST_POOLS, f"expected {LOST_POOLS}, got {sources}"


SPLIT = "upper = Node(parent, node.key[:cut], node.namespace,"


@pytest.mark.parametrize(
    ("changes", "passes", "words"),
    [
        ([Change("hicache.tree.radix", SPLIT, SPLIT.replace("Node", "(Node)"))], True, "passed"),
        ([Change("hicache.tree.radix", SPLIT, SPLIT.replace("node.namespace", "SHARED"))], False, "KEY-2"),
        ([Change("hicache.tree.radix", "no such text", "")], False, "hicache.tree.radix has this text 0 times"),
        ([Change("hicache.tree.radix", "node", "")], False, r"hicache.tree.radix has this text \d\d+ times"),
        ([Change("hicache.tree.radix", SPLIT, SPLIT)], False, "the replacement is the text itself"),
        ([Change("hicache.tree.absent", SPLIT, "")], False, "No module named 'hicache.tree.absent'"),
        ([Change("hicache.tree.radix", SPLIT, f"__import__('os')._exit(3), {SPLIT}")], False, ""),
    ],
    ids=["an equal text", "a defect", "no place", "many places", "no change", "no module", "an end"],
)
def test_a_run_sees_the_change_and_nothing_else(
    fork_server: ForkServer, changes: list[Change], passes: bool, words: str
) -> None:
    mutant = BY_SLUG["a-split-that-is-shared"]
    run = fork_server.run(changes, *mutant.arguments)
    assert bool(run.passed) == passes, f"{changes}: {run}"
    assert found(mutant.message, run) == (words == "KEY-2"), f"{changes}: {run}"
    assert re.search(words, run.words), f"{changes}: expected {words}, got {run.words}"
