"""The guide and the reference: adapters are those of the kit, snapshots keep the laws, tables are those of the code."""

from __future__ import annotations

import inspect
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hicache.config import CacheConfig, WritePolicy
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.caches.blocks import BlockCacheAdapter
from hicache.testing.caches.dictionary import DictionaryAdapter
from hicache.testing.caches.paged_dictionary import InspectedDictionaryAdapter, PagedDictionaryAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.contract import PROFILES
from hicache.testing.driving.driver import Driver
from hicache.testing.laws import check_laws
from hicache.testing.laws.blocks import check_blocks
from hicache.testing.laws.slots import check_sizes
from hicache.testing.snapshot import NodeView, Snapshot
from hicache.tests.docs.pages import ROOT
from hicache.tests.inventory.departures import departures_table
from hicache.tests.inventory.reference import PAGES, TABLES, between
from hicache.tests.kit.snapshots import tiny_config
from hicache.types import SHARED, Sizes

DOCUMENT = "docs/guide and docs/reference"
TEXT = "\n".join(
    page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "guide" / "adapters.md", *sorted(PAGES.glob("*.md")))
)
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
STEPS = (DictionaryAdapter, PagedDictionaryAdapter, InspectedDictionaryAdapter)


def block_with(words: str) -> str:
    """The one example in Python that has these words."""
    found: list[str] = [block for block in BLOCKS if words in block]
    assert len(found) == 1, f"{DOCUMENT}: expected one example with {words!r}, got {found}"
    return found[0]


def run_examples(adapter: CacheAdapter | None, *examples: str) -> dict[str, Any]:
    """What the examples define when they run one after the other."""
    names: dict[str, Any] = {"np": np, "SHARED": SHARED, "adapter": adapter}
    for example in examples:
        exec(example, names)  # noqa: S102 - the examples of our own document
    return names


def by_prefix(snapshot: Snapshot) -> dict[bytes, NodeView]:
    """The nodes by their whole key."""
    return {snapshot.prefix(row): node for row, node in enumerate(snapshot.nodes)}


def plain(node: NodeView) -> tuple[Any, ...]:
    """What a node says, but for its parent's position and its hits."""
    slots = {name: None if given is None else given.tolist() for name, given in node.slots.items()}
    return node.namespace, node.segment, node.start, node.end, slots, dict(node.locks)


@pytest.fixture(scope="module")
def written_out() -> Snapshot:
    """The snapshot of the guide."""
    names = run_examples(None, block_with("snapshot = Snapshot("))
    found: Snapshot = names["snapshot"]
    return found


@pytest.mark.parametrize("adapter", STEPS)
def test_the_guide_shows_an_adapter_as_it_is(adapter: type[CacheAdapter]) -> None:
    assert inspect.getsource(adapter) in BLOCKS, f"{DOCUMENT}: expected the source of {adapter.__name__}"


def test_the_guide_shows_the_skeleton_of_requests_as_it_is() -> None:
    template = ROOT / "hicache" / "testing" / "templates" / "requests.py"
    shown = inspect.cleandoc("\n" + block_with("def lookup"))
    source = inspect.cleandoc("\n" + template.read_text(encoding="utf-8").partition("{Capability.REQUESTS})\n")[2])
    assert source.startswith(shown), f"{DOCUMENT}: expected the methods of {template}, got {shown}"


def test_the_written_out_snapshot_keeps_the_laws(written_out: Snapshot) -> None:
    config = tiny_config("full", page_size=2, pages=6)
    check_laws(written_out, config, {"full": np.array([10, 11])}, is_awaited=False)
    check_sizes(written_out, {"full": Sizes(evictable=4, protected=4, free=2)})
    assert "`Sizes(evictable=4, protected=4, free=2)`" in TEXT, "expected the sizes of the example in the guide"


def test_the_written_out_snapshot_is_that_of_the_reference(written_out: Snapshot) -> None:
    with closing(ReferenceAdapter(CacheConfig(page_size=2, capacity_tokens={"full": 12}))) as adapter:
        names = run_examples(adapter, block_with("first, second ="))
        found = adapter.snapshot()
    assert names["held"].tolist() == [10, 11], f"expected the slots of the comment, got {names['held']}"
    expected = {prefix: plain(node) for prefix, node in by_prefix(written_out).items()}
    actual = {prefix: plain(node) for prefix, node in by_prefix(found).items()}
    assert actual == expected, f"expected {expected}, got {actual}"
    pools = [(one.pools["full"].capacity, one.pools["full"].free.tolist()) for one in (written_out, found)]
    assert pools[0] == pools[1], f"expected the pool {pools[0]}, got {pools[1]}"


def test_the_written_out_snapshot_of_blocks_is_that_of_the_block_cache() -> None:
    config = run_examples(None, block_with("config = GeometricConfig("))["config"]
    with closing(BlockCacheAdapter(config)) as adapter:
        names = run_examples(adapter, block_with("def prompt"), block_with("blocks = BlockSnapshot("))
        found, written = adapter.block_snapshot(), names["blocks"]
        assert (found.blocks, found.pools) == (written.blocks, written.pools), f"expected {written}, got {found}"
        check_blocks(written, config, [adapter.tables(names["second"])])
        assert adapter.sizes() == {"full": Sizes(evictable=2, protected=6, free=4)}, f"got {adapter.sizes()}"
    assert "`Sizes(evictable=2, protected=6, free=4)`" in TEXT, "expected the sizes of the example in the guide"


def test_the_dictionary_shows_a_node_for_each_page_of_the_example(written_out: Snapshot) -> None:
    adapter = InspectedDictionaryAdapter(CacheConfig(page_size=2, capacity_tokens={"full": 12}))
    run_examples(adapter, block_with("first, second ="))
    found = adapter.snapshot()
    config = tiny_config("full", page_size=2, pages=6)
    check_laws(found, config, {"full": np.array([10, 11])}, is_awaited=False)
    check_sizes(found, adapter.sizes())
    ends = {prefix: node.end for prefix, node in by_prefix(found).items()}
    missing = by_prefix(written_out).keys() - ends.keys()
    assert not missing, f"expected a node that ends where each node of the tree ends, missing {missing}"
    assert len(ends) == 4, f"expected one node for each of 4 pages, got {ends}"


def test_the_view_of_a_host_keeps_the_laws(written_out: Snapshot) -> None:
    names = run_examples(None, block_with("snapshot = Snapshot("), block_with("HostView("))
    host = names["with_host"].host
    config = tiny_config("full", page_size=2, pages=6, write_policy=WritePolicy.WRITE_THROUGH)
    assert config.host is not None, "the configuration has a host tier"
    config = replace(config, host=replace(config.host, capacity_tokens={"full": 8}))
    check_laws(replace(written_out, host=host), config, {"full": np.array([10, 11])}, is_awaited=False)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_reference_is_that_of_the_source(name: str) -> None:
    page, made = TABLES[name]
    shown = between((PAGES / page).read_text(encoding="utf-8"), name)
    assert shown == made(), f"docs/reference/{page}, {name}: run python -m hicache.tests.inventory.reference"


def test_a_departure_is_read_wherever_it_is_asked_for(tmp_path: Path) -> None:
    laws, machine = tmp_path / "hicache/testing/laws/tree.py", tmp_path / "properties/machine.py"
    for path in (laws, machine):
        path.parent.mkdir(parents=True)
    laws.write_text(
        "def check(error, departures):\n"
        "    nested()\n"
        "    if error not in departures: raise error\n"
        "def nested():\n    '''LOCK-1: one (KEY-2); LOCK-2: two.'''\n"
        "def never_called():\n    '''LOCK-3: three.'''\n",
        encoding="utf-8",
    )
    machine.write_text(
        "class Machine:\n"
        "    def evict(self):\n"
        "        more = ['EVICT-3']\n"
        "        return self.departs('EVICT-10' if self.last else 'EVICT-2', *more)\n"
        "    def known(self):\n"
        "        return 'EVICT-8' in clauses_not_checked(self.profile) and 'KEY-1' in self.names\n",
        encoding="utf-8",
    )
    rows = [row.split(" | ") for row in departures_table(tmp_path).splitlines()[2:]]
    evict, known = (f"[`Machine.{name}`](../../properties/machine.py) |" for name in ("evict", "known"))
    expected = [
        *(["| EVICT-2", "", evict], ["| EVICT-3", "", evict], ["| EVICT-8", "", known], ["| EVICT-10", "", evict]),
        *(["| KEY-2", "one", " |"], ["| LOCK-1", "one", " |"], ["| LOCK-2", "two", " |"]),
    ]
    assert rows == expected, f"expected {expected}, got {rows}"


def test_the_guide_names_every_method_capability_and_profile() -> None:
    methods = {name for owner in CacheAdapter.__mro__ for name in vars(owner) if not name.startswith("_")}
    # One interface steps transfers and storage: the guide has `pending` for both.
    methods -= {f"{name}_storage" for name in methods}
    # What other parts of the kit call between the verbs.
    methods |= {name for name in vars(Driver) if not name.startswith("_")} - {"open", "forget", "verb_done"}
    methods -= {"overwrite_free_slots", "has_snapshot", "shows_blocks"}
    unnamed = [name for name in (*sorted(methods), *Capability.__members__, *PROFILES) if f"`{name}`" not in TEXT]
    assert not unnamed, f"{DOCUMENT} does not name {unnamed}"
