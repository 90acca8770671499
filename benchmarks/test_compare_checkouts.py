"""compare_checkouts runs a verb in two processes by turns, and prints the ratio of their times and their counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .compare_checkouts import HEADER, has_verb, imported, main

CHECKOUT = Path(__file__).parent.parent

NUMBERS = r"( +\d+\.\d+)"


def test_a_checkout_beside_itself_has_a_ratio_and_equal_counts(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--pairs", "2", "--verbs", "lock_long", "--configurations", "full/page1/device"]
    assert main([str(CHECKOUT), *options]) == 0, "the counts of a checkout equal its own"
    header, times, counts = capsys.readouterr().out.splitlines()
    assert header == HEADER
    assert re.fullmatch(rf"lock_long +full/page1/device{NUMBERS}{{8}}( +slower)?", times), (
        f"two times, six ratios: {times}"
    )
    # 256 times a lock and an unlock of 64 nodes.
    assert counts == "    counts equal: nodes_locked 32768"


def test_a_folder_without_a_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=rf"the worker of {tmp_path.resolve()} imported "):
        main([str(tmp_path), "--pairs", "2"])


def test_a_verb_is_measured_where_its_tier_and_its_component_are() -> None:
    assert has_verb("full+swa+mamba/page16/device", "fork_state")
    assert has_verb("full/page1/storage", "evict_host"), "storage has a host tier above it"
    assert not has_verb("full/page1/device", "evict_host")
    assert not has_verb("full/page1/host", "release_window")


def test_what_has_moved_is_found_in_either_checkout() -> None:
    earlier, now = "hicache.testing.caches_of_before", "hicache.testing.configurations"
    assert imported("with_host", earlier, now) is imported("with_host", now, earlier), "one of the two modules has it"
    with pytest.raises(ImportError, match=f"this checkout has no with_host in {earlier}"):
        imported("with_host", earlier)
