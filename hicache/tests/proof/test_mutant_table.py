"""Each row of the table is found by the test that it names. A run of a cache that is not changed finds nothing.

That the reference passes the same tests is what the environments of the suites show.
"""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from hicache.tests.proof.changed_source import Change
from hicache.tests.proof.forked_runs import ForkServer, found
from hicache.tests.proof.mutant_table import BY_SLUG, MUTANTS, Mutant
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


@runs_models
@pytest.mark.parametrize("row", transfers.ROWS, ids=lambda row: row.slug)
def test_a_model_sees_a_mutant(fork_server: ForkServer, row: Row) -> None:
    adapter = f"{row.adapter.__module__}:{row.adapter.__qualname__}"
    run = fork_server.run((), f"accuracy/{row.test}", "--hicache-adapter", adapter)
    assert found(row.told, run), f"{row.slug}: expected {row.told}, got {run.reasons}\n{run.words}"


@pytest.mark.parametrize("file", ["test_requests_alone.py", "test_requests_over_tiers.py"])
def test_the_cache_of_chunks_is_found_right(fork_server: ForkServer, file: str) -> None:
    adapter = BY_SLUG["skips-a-gap"].adapter
    run = fork_server.run((), f"conformance/{file}", "--hicache-quick", "--hicache-adapter", adapter)
    assert run.passed, f"expected tests of {file} to run: {run}"
    assert not run.reasons, f"expected no failure of a sound cache, got {run.reasons}"


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
