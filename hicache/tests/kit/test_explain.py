"""`hicache explain`: its whole output, the caches that do something else, and its exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.config import CacheConfig, WritePolicy
from hicache.errors import ConfigurationError, InvariantError
from hicache.testing.adapter import Capability
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.contract import CONTRACT
from hicache.testing.explain.drawing import STORED_ONLY, Drawing, StoredPages, TreeRows, pool_lines
from hicache.testing.explain.example import HOST_PART, STORAGE_PART, ExampleStep, require_step, run_example
from hicache.testing.snapshot import FetchView, HostNodeView, HostView, NodeView, PoolView, Snapshot, StorageView
from hicache.testing.storage.scripted import store_named
from hicache.types import NO_SLOTS, SHARED, EvictResult, Handle, Key, LoadBack, MatchResult, Tier

GOLDEN = Path(__file__).parents[3] / "docs" / "explain.txt"
NOTHING_EVICTED = EvictResult({"full": 0, "swa": 0, "mamba": 0}, victims=0, refused=0)


class LateCopies(ReferenceAdapter):
    """Backs a node up when it is used again. `closed`: how often one was closed."""

    closed = 0

    def __init__(self, config: CacheConfig) -> None:
        assert config.host is not None, "the example has a host tier"
        selective = replace(config.host, write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE, selective_hits=9)
        super().__init__(replace(config, host=selective))

    def close(self) -> None:
        super().close()
        LateCopies.closed += 1


class NoLoads(ReferenceAdapter):
    """Refuses every load."""

    def load_back(self, handle: Handle, *, quota: int | None) -> LoadBack | None:
        return None


class NoHostHits(ReferenceAdapter):
    """Finds nothing on the host."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = super().match(key, chunked=chunked)
        return replace(found, best_match=found.device_anchor, host_hit_length=0)


class NoDeviceHits(ReferenceAdapter):
    """Finds nothing on the device where something is on the host."""

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = super().match(key, chunked=chunked)
        return replace(found, device_indices=NO_SLOTS) if found.host_hit_length else found


class NoHostEviction(ReferenceAdapter):
    """Keeps what is on the host."""

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        return NOTHING_EVICTED


class NoTombstones(ReferenceAdapter):
    """Evicts nothing when it is asked to; in its need for room it does."""

    def evict(self, component: str, tokens: int) -> EvictResult:
        return NOTHING_EVICTED


class WithoutStorage(ReferenceAdapter):
    """Has no storage."""

    capabilities: ClassVar[frozenset[Capability]] = ReferenceAdapter.capabilities - {
        Capability.STORAGE,
        Capability.STEPPED_STORAGE,
    }


class NoWrites(ReferenceAdapter):
    """Writes nothing to storage."""

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        if config.storage is not None:
            self.cache.detach_storage()


class NoPrefetches(ReferenceAdapter):
    """Refuses every prefetch."""

    def prefetch(self, key: Key) -> None:
        return None


class EmptyPrefetches(ReferenceAdapter):
    """Says that a prefetch has brought nothing."""

    def check_prefetch(self, ticket: Handle) -> int | None:
        return None if super().check_prefetch(ticket) is None else 0


class ForgottenStorage(ReferenceAdapter):
    """Loses what storage has when it is closed."""

    def close(self) -> None:
        super().close()
        store_named("example").empty()


class Unopened(ReferenceAdapter):
    """Cannot be opened."""

    def __init__(self, config: CacheConfig) -> None:
        raise ConfigurationError("mamba_chunk_size 4 is not a power of ten")


def run_app(*arguments: str, columns: int = 120) -> tuple[int, str]:
    """The exit code and the output of `hicache explain`, without spaces at the ends of lines."""
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, ["explain", *arguments])
    return result.exit_code, "".join(f"{line.rstrip()}\n" for line in result.output.splitlines())


def test_the_output_is_that_of_the_documentation() -> None:
    for _ in range(2):
        code, output = run_app(columns=100)
        assert code == 0, f"expected 0, got {code}: {output}"
        assert output == GOLDEN.read_text(encoding="utf-8"), (
            f"{GOLDEN} is old: write it anew with `COLUMNS=100 hicache explain | sed 's/ *$//' > docs/explain.txt`"
        )


def test_the_output_fits_a_narrow_terminal() -> None:
    _, output = run_app(columns=80)
    too_long = [line for line in output.splitlines() if len(line) > 80]
    assert not too_long, f"lines longer than 80: {too_long}"


@pytest.fixture(scope="module")
def steps() -> list[tuple[int, ExampleStep, Drawing]]:
    """The whole example, run on the reference."""
    return list(run_example(ReferenceAdapter))


def test_each_step_names_clauses_of_the_contract(steps: list[tuple[int, ExampleStep, Drawing]]) -> None:
    for number, step, _ in steps:
        assert step.clauses, f"step {number} shows no clause"
        assert set(step.clauses) <= set(CONTRACT), f"step {number}: {step.clauses} are not all in the contract"


def _other_nodes(step: ExampleStep) -> Iterator[ExampleStep]:
    """The step with each row missing, and with each part of each row changed."""
    for place, (text, signs, locks) in enumerate(step.nodes):
        host_locks = frozenset(one for one in locks if one.startswith("host "))
        changed = [
            (f"{text} More.", signs, locks),
            *((text, f"{signs[:at]}†{signs[at + 1 :]}", locks) for at in range(0, len(signs), 4)),
            (text, signs, locks | {"a ghost"}),
            (text, signs, frozenset({"a ghost"})),
            *([(text, signs, host_locks)] if locks - {STORED_ONLY} != host_locks else ()),
        ]
        for rows in ([], *([one] for one in changed)):
            yield replace(step, nodes=(*step.nodes[:place], *rows, *step.nodes[place + 1 :]))


def test_each_part_of_each_row_is_compared(steps: list[tuple[int, ExampleStep, Drawing]]) -> None:
    for _, step, drawing in steps:
        for changed in _other_nodes(step):
            with pytest.raises(InvariantError, match=step.clauses[0]):
                require_step(changed, drawing)


def test_storage_may_have_taken_some_pools_of_a_write(steps: list[tuple[int, ExampleStep, Drawing]]) -> None:
    _, step, drawing = steps[len(HOST_PART.steps)]
    for stored, is_met in (("○○○", True), ("■○○", True), ("■■■", False), ("†○○", False), ("○○·", False)):
        cells = {**drawing.rows[0].cells, Tier.STORAGE: "".join(f" {sign} " for sign in stored)}
        shown = replace(drawing, rows=(replace(drawing.rows[0], cells=cells),))
        if is_met:
            require_step(step, shown)
        else:
            with pytest.raises(InvariantError, match=stored):
                require_step(step, shown)


@pytest.mark.parametrize("last", [-1, len(HOST_PART.steps) - 1])
def test_pages_that_are_not_free_without_a_tree_are_noticed(
    steps: list[tuple[int, ExampleStep, Drawing]], last: int
) -> None:
    _, step, drawing = steps[last]
    with pytest.raises(InvariantError, match="every page free"):
        require_step(step, replace(drawing, pools=steps[0][2].pools))


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (LateCopies, r"step 1, .*HOST-1.*expected ■■■ ○○○ locked by transfer, got ■■■ ··· locked by nothing"),
        (NoDeviceHits, r"step 5, .*MATCH-5.*expected 8 tokens, got 0"),
        (NoHostHits, r"step 5, .*MATCH-12.*expected 8 tokens, got 0"),
        (NoLoads, r"step 6, .*HOST-4"),
        (NoTombstones, r"step 8, .*EVICT"),
        (NoHostEviction, r"step 10, .*EVICT-8"),
        (NoWrites, r"step 12, .*FETCH-9.*expected a request of the kind persist to storage"),
        (NoPrefetches, r"step 15, .*FETCH-1.*expected a ticket"),
        (EmptyPrefetches, r"step 16, .*FETCH-4"),
        (ForgottenStorage, r"step 19, .*FLOW-9.*expected \['You are a cat"),
    ],
)
def test_a_cache_that_does_something_else_is_found(adapter: type[ReferenceAdapter], message: str) -> None:
    closed = LateCopies.closed
    with pytest.raises(InvariantError, match=message):
        list(run_example(adapter))
    assert LateCopies.closed == closed + (adapter is LateCopies), f"close() was called {LateCopies.closed} times"


def test_one_step_is_shown_alone_and_written_as_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "a folder" / "step.svg"
    for name in ("--step", "--act"):
        code, output = run_app(name, "3", "--svg", str(picture))
        assert code == 0, f"{name}: expected 0, got {code}: {output}"
        shown = [step.title for step in (*HOST_PART.steps, *STORAGE_PART.steps) if f"  {step.title}   " in output]
        assert shown == [HOST_PART.steps[2].title], f"{name}: got {shown}"
        assert output.endswith(f"page: {picture}\n"), f"{name}: the last line names the file: {output[-200:]}"
    drawn = picture.read_text(encoding="utf-8")
    words = " ".join(ET.fromstring(drawn).itertext()).replace("\xa0", " ")  # noqa: S314 - our own page
    assert HOST_PART.steps[2].title in words, f"the picture does not have the step: {words}"
    loaded = drawn.replace('xmlns="http://www.w3.org/2000/svg"', "").replace("https://www.textualize.io", "")
    assert not [one for one in ("http", "@import", "url(h") if one in loaded], "the picture loads something"


NO_STORAGE = f"{__name__}:WithoutStorage"
LACKS = "capabilities that {} does not declare: {}"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--step", "0"), 2, "--step"),
        (("--act", "20"), 2, "there is no step 20; the example has steps 1 to 19"),
        (("--adapter", NO_STORAGE), 0, LACKS.format(NO_STORAGE, "STORAGE, STEPPED_STORAGE")),
        (("--adapter", NO_STORAGE, "--step", "12"), 2, LACKS.format(NO_STORAGE, "STORAGE, STEPPED_STORAGE")),
        (
            ("--adapter", "hicache.tests.kit.hosted_cache:FlatCache"),
            2,
            "FlatCache does not declare: SWA, MAMBA, SNAPSHOT, HOST, STEPPED",
        ),
        (("--adapter", f"{__name__}:Unopened"), 2, "mamba_chunk_size 4 is not a power of ten"),
        (("--adapter", f"{__name__}:NoLoads"), 1, f"step 6, '{HOST_PART.steps[5].title}': HOST-4"),
    ],
)
def test_exit_codes_and_reasons(arguments: tuple[str, ...], code: int, text: str, tmp_path: Path) -> None:
    picture = tmp_path / "example.svg"
    found, output = run_app(*arguments, "--svg", str(picture))
    assert found == code, f"expected {code}, got {found}: {output}"
    assert text in " ".join(output.split()), f"expected {text!r} in {output[-400:]}"
    assert picture.exists() == (code == 0), f"the file is written after a success alone: {picture.exists()}"
    assert (f"{len(HOST_PART.steps)}  {HOST_PART.steps[-1].title}" in output) == (code == 0), f"steps of {output}"


def test_a_step_alone_does_not_say_what_the_others_need() -> None:
    code, output = run_app("--adapter", NO_STORAGE, "--step", "1")
    assert code == 0, f"expected 0, got {code}: {output}"
    assert "the steps with storage need" not in output, f"only the step is shown: {output}"


def drawn_rows(*, is_writing: bool, fetched: bytes) -> list[str]:
    """The cells of a node of two tokens, FULL of which is locked on the device, and of a stored prompt beside it."""
    slots, tokens, other = np.array([2, 3]), np.array([1, 2], "<i4").tobytes(), np.array([5, 6], "<i4").tobytes()
    names = ("full", "swa", "mamba")
    none, every, once = dict.fromkeys(names), dict.fromkeys(names, slots), dict.fromkeys(names, 1)
    node = NodeView(-1, SHARED, tokens, 0, 2, {**none, "full": slots}, once, hits=0)
    pools = dict.fromkeys(names, PoolView(8, slots))
    host = HostView((HostNodeView(every, once, dict.fromkeys(names, 0), once),), pools, (), {"full": slots})
    fetches = (FetchView({"full": slots, "swa": NO_SLOTS}),)
    snapshot = Snapshot((node,), pools, host, StorageView(None, fetches))
    stored = StoredPages([other], fetched, lambda name, prefix: [name == "full" and prefix == other], is_writing, 8)
    rows = TreeRows(snapshot, host, lambda _: ("two words",), stored, {}).rows()
    assert next(pool_lines(snapshot, host, 2))[1] == "F ■○□·", "of four pages one is kept for a reader"
    return [" ".join("".join(one.split()) for one in row.cells.values()) for row in rows]


def test_only_what_is_there_is_locked_and_only_what_is_written_arrives() -> None:
    assert drawn_rows(is_writing=False, fetched=b"") == ["[■]†† [■][■][■] ···", "··· ··· ■††"], "nothing is under way"
    expected = ["[■]†† [■][■][■] ○○○", "··· ○·· ■††"]
    found = drawn_rows(is_writing=True, fetched=np.array([5, 6, 7, 8], "<i4").tobytes())
    assert found == expected, f"one is written and one is read, without SWA: expected {expected}, got {found}"
