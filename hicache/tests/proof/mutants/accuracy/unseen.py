"""UNSEEN: defects of numbers and of order that change no answer of a model here, why, and the test that finds each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unseen:
    """`defect`: what was wrong. `reason`: why a model behind this cache does not see it. `test`: who does."""

    source: str
    defect: str
    reason: str
    test: str


UNSEEN = (
    Unseen(
        "sglang#37596",
        "a page of host memory lies across two registrations",
        "a tensor of the host is one mapping and is pinned as a whole, so there is no boundary within it",
        "hicache/tests/cache/pools/test_host.py::test_every_tensor_is_pinned_as_a_whole_until_the_end",
    ),
    Unseen(
        "sglang#28896",
        "the keys and values of a draft model are not restored",
        "no component is a draft model's; a last layer that is not restored is among ROWS",
        "conformance/test_load_back.py::test_the_events_cover_each_pool_of_the_stack",
    ),
    Unseen(
        "sglang#38866",
        "a later pipeline stage counts layers from another end than its readers",
        "the engine reads a load when it is over, and runs on one stage",
        "distributed_tests/test_shards.py::test_a_layer_is_ready_when_it_has_moved_on_its_own_stage",
    ),
    Unseen(
        "sglang#36909",
        "window slots that were released in the middle of a prompt are inserted as if they were live",
        "the engine keeps its window slots to the end of a request",
        "conformance/test_insert.py::test_a_leaf_outside_the_window_is_not_created",
    ),
    Unseen(
        "sglang#27586",
        "a slot that is used again keeps the partner of its last owner",
        "which slots are whose is seen there before a model reads any",
        "conformance/test_pools.py::test_a_reused_slot_has_a_new_partner",
    ),
    Unseen(
        "sglang#28468",
        "an eviction writes one backup to the place that another one is still filling",
        "it takes two victims in one sweep over a host of one place",
        "conformance/test_flow_transfers.py::test_an_eviction_of_two_nodes_does_not_back_both_up_to_the_same_slots",
    ),
    Unseen(
        "TensorRT-LLM#8830",
        "the source of a load is given to another owner while its destination is allocated",
        "it takes a host in which nothing but that source can make room",
        "conformance/test_flow_transfers.py::test_a_load_that_evicts_and_backs_up_keeps_its_own_source",
    ),
    Unseen(
        "vllm#12621",
        "prompts whose hashes collide are answered from each other's pages",
        "prompts that collide have to be searched for",
        "conformance/test_isolation.py::test_prompts_whose_hashes_collide_do_not_find_each_other",
    ),
    Unseen(
        "sglang#26448",
        "who reads from storage chains hashes from another page than who wrote",
        "nothing is found, and the answer is computed",
        "conformance/test_store.py::test_a_page_has_one_key_wherever_a_match_ends",
    ),
    Unseen(
        "sglang#26670",
        "ranks that hold different parts of a page share its object",
        "it takes several ranks",
        "conformance/test_store.py::test_a_cache_that_differs_in_one_thing_reads_nothing",
    ),
    Unseen(
        "Mooncake#1374",
        "of two writers of one object, part of each is kept",
        "it takes several writers at once",
        "conformance/storage/test_concurrency.py::test_processes_that_write_the_same_keys_leave_whole_pages",
    ),
)
