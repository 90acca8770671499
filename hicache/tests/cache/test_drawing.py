"""What a cache shows of itself: its parts in one line, and the tree as `hicache explain` draws it."""

from __future__ import annotations

import re

from hicache import Namespace, RequestManager, open_cache
from hicache.config import CacheConfig
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.explain.drawing import STORED_ONLY
from hicache.testing.explain.example import run_example
from hicache.tests.cache.test_arguments import opened
from hicache.tree.drawing import draw_tree
from hicache.tree.node import Node, NodeShape
from hicache.types import SHARED, Tier

SMALL = CacheConfig({"full": 64}, page_size=4)


def test_a_cache_says_its_components_sizes_and_tiers() -> None:
    with open_cache(SMALL) as cache:
        assert repr(cache) == "UnifiedRadixCache(full, page_size=4; device: 64 of 64 full free)", f"got {cache!r}"
        cache.allocate(8)
        assert repr(cache) == "UnifiedRadixCache(full, page_size=4; device: 56 of 64 full free)", f"got {cache!r}"
    assert repr(cache) == "UnifiedRadixCache(full, page_size=4; closed)", f"got {cache!r}"
    with opened() as cache:
        free = "128 of 128 full, 128 of 128 swa, 8 of 8 mamba free"
        parts = f"UnifiedRadixCache(full+swa+mamba, page_size=4; device: {free}; host: {free}; storage: memory"
        assert repr(cache) == f"{parts})", f"got {cache!r}"
        cache.detach_storage()
        assert repr(cache) == f"{parts}, detached)", f"got {cache!r}"


DRAWN = """\
                                                        device
                                                         F
root
├─ 0 1 2 … 6 7 (8 tokens)                               [■]
│  ├─ 8 9 10 11                                          ■
│  └─ 20 21 22 23                                       [■]
└─ lora='a' salt='b' 1 2 3 … 7 8 (8 tokens)              ■"""


def test_the_tree_is_drawn_with_tokens_namespaces_and_locks() -> None:
    with open_cache(SMALL) as cache:
        requests = RequestManager(cache)
        for ids, namespace in (([*range(12)], None), ([*range(1, 9)], Namespace("a", "b"))):
            request = requests.admit(ids, namespace)
            assert request is not None, "there is room for a few pages"
            requests.finish(request)
        request = requests.admit([*range(8), 20, 21, 22, 23])
        assert request is not None, "there is room for a few pages"
        requests.checkpoint(request, 12)
        found = cache.draw()
        assert re.sub(" +", " ", found) == re.sub(" +", " ", DRAWN), f"expected\n{DRAWN}\ngot\n{found}"
        assert len({line.rfind("■") for line in found.splitlines()} - {-1}) == 1, f"one column in\n{found}"
        few = cache.draw(most=1).splitlines()
        assert few[-1] == "… and 3 more nodes", f"got {few}"
        assert len(few) == 5, f"expected a header, the root, one node and how many are left out, got {few}"


def test_pairs_are_drawn_as_the_tokens_at_which_they_begin() -> None:
    with open_cache(capacity_tokens=8, bigram=True) as cache:
        slots = cache.allocate(3)
        assert slots is not None, "there is room for three pairs"
        cache.insert(cache.key([5, 6, 7, 8]), slots)
        assert "─ 5 6 7" in cache.draw(), f"got\n{cache.draw()}"


def test_a_tree_that_is_deep_is_drawn() -> None:
    root = node = Node(None, b"", SHARED, 0, NodeShape(1, has_host=False))
    for end in range(1, 2001):
        node.children[b""] = Node(node, end.to_bytes(4, "little"), SHARED, end, NodeShape(1, has_host=False))
        node = node.children[b""]
    found = draw_tree(root, ["full"], 1, most=2000).splitlines()
    assert found[-1].split() == ["└─", "2000", "·"], f"expected the deepest node last, got {found[-1]!r}"


class Watched(ReferenceAdapter):
    """The reference. `last`: the one that was made last."""

    last: ReferenceAdapter

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        Watched.last = self


SIGN = re.compile(r"[\[ ][■○†·][\] ]")


def test_the_tree_is_drawn_as_explain_draws_it() -> None:
    steps = 0
    for number, _, drawing in run_example(Watched):
        drawn = [SIGN.findall(f"{line} ") for line in Watched.last.cache.draw().splitlines()[3:]]
        rows = [row for row in drawing.rows if STORED_ONLY not in row.locks]
        expected = [SIGN.findall(row.cells[Tier.DEVICE] + row.cells[Tier.HOST]) for row in rows]
        assert sorted(drawn) == sorted(expected), f"step {number}:\n{Watched.last.cache.draw()}"
        steps += 1
    assert steps > 10, f"expected the steps of the example, got {steps}"
