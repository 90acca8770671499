"""ROWS: every mutant of a cache on several ranks, where its defect was seen, and the test that finds it."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.testing.adapter import CacheAdapter
from hicache.tests.proof.mutants.rank_streams import EventsOfTheFirst, OwnEvents
from hicache.tests.proof.mutants.ranks import (
    AbandonsAlone,
    BreaksEarly,
    EveryRankWrites,
    LayersOfTheModel,
    LeastOfTheLongest,
    NoDevice,
    NothingMissing,
    OwnCapacities,
    OwnClock,
    OwnFingerprint,
    OwnGroups,
    PoolByPool,
    SidecarsOnTheirOwn,
    SkipsIdleSteps,
    StagesOnTheirOwn,
    TensorParallelAlone,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One defect. `source`: an issue or pull request in which it was seen, or ours.

    `clauses`: those that it breaks. `test`: of the suite that the table is for, which finds it. `told`: a regular
    expression for what the failure says, which names the clause, and the rank and the call where a collective is
    concerned. `quick_test`: a test of the quick profile that finds it, by its path
    from the root, where the profile leaves `test` out.
    """

    slug: str
    source: str
    clauses: tuple[str, ...]
    adapter: type[CacheAdapter]
    test: str
    told: str
    quick_test: str = ""


CUT = "test_prefetch.py::test_a_cut_prefetch_keeps_nothing_if_one_rank_lacks_a_pool[gloo-tp2]"

MACHINE_OF_STAGES = "distributed_tests/test_one_tree.py::test_ranks_hold_one_tree_whatever_happens_on_each[pp2-tp2]"

ON_STREAMS = "test_streams.py::test_ranks_on_streams_hold_one_tree[gloo-tp2]"

ROWS = (
    Row(
        slug="loop-over-prefetches-breaks-early",
        source="sglang#30760",
        clauses=("RANK-2",),
        adapter=BreaksEarly,
        test=CUT,
        told=r"rank \d of tp skipped call \d+ \(MIN completed\)",
    ),
    Row(
        slug="nothing-has-ended-here",
        source="sglang#26921",
        clauses=("RANK-2",),
        adapter=SkipsIdleSteps,
        test="test_slow_rank.py::test_no_rank_has_a_backup_before_every_rank_has_it[gloo-tp2]",
        told=r"rank \d of tp skipped call \d+ \(MIN progress\)",
    ),
    Row(
        slug="a-rank-abandons-alone",
        source="ours",
        clauses=("FLOW-13", "RANK-1"),
        adapter=AbandonsAlone,
        test="test_silent_storage.py::test_storage_that_is_silent_on_one_rank_is_abandoned_on_all[gloo-tp2]",
        told=r"(?s)RANK-1: step: expected the same tree on every rank.*\n✗ step\(\) = None\n",
    ),
    Row(
        slug="numbers-on-no-device",
        source="sglang#26062",
        clauses=("RANK-3",),
        adapter=NoDevice,
        test="test_collectives.py::test_a_collective_names_the_device_of_its_tensor[gloo-tp2]",
        told=r"RANK-3: all_reduce",
    ),
    Row(
        slug="groups-of-its-own-alone",
        source="sglang#15805",
        clauses=("RANK-6",),
        adapter=OwnGroups,
        test="test_slow_rank.py::test_no_rank_has_a_backup_before_every_rank_has_it[gloo-cp2-tp2]",
        told=r"ranks? .* of world skipped call \d+ \(new_group ranks [\d, ]+\)",
        quick_test="distributed_tests/test_prefetch.py::test_the_first_stage_decides_when_a_prefetch_is_over[gloo-pp2-tp2]",
    ),
    Row(
        slug="stages-count-on-their-own",
        source="sglang#27010",
        clauses=("RANK-1", "RANK-4"),
        adapter=StagesOnTheirOwn,
        test="test_slow_rank.py::test_no_rank_has_a_backup_before_every_rank_has_it[gloo-pp2-tp2]",
        told=r"RANK-1: step: expected the same tree on every rank",
        quick_test=MACHINE_OF_STAGES,
    ),
    Row(
        slug="agreed-along-tp-alone",
        source="sglang#20460",
        clauses=("RANK-1", "RANK-4"),
        adapter=TensorParallelAlone,
        test="test_slow_rank.py::test_no_rank_has_a_backup_before_every_rank_has_it[gloo-cp2-tp2]",
        told=r"RANK-1: step: expected the same tree on every rank",
        quick_test=MACHINE_OF_STAGES,
    ),
    Row(
        slug="layers-of-the-whole-model",
        source="sglang#38866",
        clauses=("HOST-6",),
        adapter=LayersOfTheModel,
        test="test_shards.py::test_a_layer_is_ready_when_it_has_moved_on_its_own_stage[gloo-pp2-tp2]",
        told=r"HOST-6",
    ),
    Row(
        slug="a-reduction-for-each-pool",
        source="sglang#27264",
        clauses=("FETCH-7", "RANK-2"),
        adapter=PoolByPool,
        test="test_one_tree.py::test_the_order_of_mappings_changes_nothing[gloo-tp2]",
        told=r"rank \d of tp skipped call \d+ \(MIN completed \w+\)",
    ),
    Row(
        slug="sidecars-are-not-agreed",
        source="sglang#27264",
        clauses=("FETCH-7",),
        adapter=SidecarsOnTheirOwn,
        test=CUT,
        told=r"FETCH-7",
    ),
    Row(
        slug="a-missing-result-raises",
        source="sglang#27264",
        clauses=("FETCH-7",),
        adapter=NothingMissing,
        test=CUT,
        told=r"rank \d of tp skipped call \d+ \(MIN completed\): it had raised KeyError",
    ),
    Row(
        slug="capacities-are-not-agreed",
        source="sglang#22782",
        clauses=("RANK-7",),
        adapter=OwnCapacities,
        test="test_capacities.py::test_capacities_and_victims_are_those_of_the_smallest_rank[gloo-tp2]",
        told=r"pool \w+ on \w+: \d+ of \d+ free",
    ),
    Row(
        slug="every-rank-writes",
        source="ours",
        clauses=("RANK-6",),
        adapter=EveryRankWrites,
        test="test_shards.py::test_every_shard_is_written_by_one_rank[gloo-tp2-mla]",
        told=r"RANK-6: expected one writer for each object",
    ),
    Row(
        slug="fingerprint-of-its-own",
        source="ours",
        clauses=("RANK-1",),
        adapter=OwnFingerprint,
        test="test_opening.py::test_ranks_with_different_configurations_are_all_refused[gloo-tp2]",
        told=r"RANK-1: another_fingerprint on one rank: expected a ConfigurationError",
    ),
    Row(
        slug="least-of-the-longest-prefixes",
        source="ours",
        clauses=("FETCH-7",),
        adapter=LeastOfTheLongest,
        test="test_prefetch.py::test_all_ranks_prefetch_the_longest_prefix_that_none_lacks[gloo-tp2]",
        told=r"FETCH-7: of states \(rank, page\) .* were lost: expected 1 pages on every rank, by rank came \[0, 0\]",
    ),
    Row(
        slug="timeout-by-its-own-clock",
        source="sglang#27010",
        clauses=("RANK-2", "RANK-4"),
        adapter=OwnClock,
        test="test_prefetch.py::test_the_first_stage_decides_when_a_prefetch_times_out[gloo-tp2]",
        told=r"rank \d of tp skipped call \d+ \(MIN completed\)",
    ),
    Row(
        slug="events-of-its-own",
        source="ours",
        clauses=("RANK-1",),
        adapter=OwnEvents,
        test=ON_STREAMS,
        told=r"RANK-1: step: expected the same tree on every rank",
    ),
    Row(
        slug="events-of-the-first",
        source="ours",
        clauses=("FLOW-2",),
        adapter=EventsOfTheFirst,
        test=ON_STREAMS,
        told=r"accesses in no order:\n.* of registered memory: written by .* on stream \d+ .* read by .* on the host",
    ),
)
"""One for each defect."""
