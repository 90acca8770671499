"""Configurations: tables are read from three formats, and what cannot be served or read is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hicache.config import SINGLE_RANK, CacheConfig, EvictionPolicy, Layout, read_table
from hicache.errors import ConfigurationError
from hicache.testing.hybrid_model import TINY_MODEL, reshaped, tiny_model

VALID = CacheConfig(
    components=("full", "swa", "mamba"),
    page_size=16,
    capacity_tokens={"full": 64, "swa": 32, "mamba": 3},
    sliding_window_size=24,
    mamba_chunk_size=16,
    policy=EvictionPolicy.LRU,
    bigram=False,
    events=True,
    layout=Layout.LAYER_FIRST,
    device="cpu",
    model=tiny_model(("indexer",)),
    topology=SINGLE_RANK,
)

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a component twice": ({"components": ("full", "full")}, "names one twice"),
    "no FULL": ({"components": ("swa",)}, "lacks 'full'"),
    "SWA without a window": ({"sliding_window_size": None}, "positive sliding_window_size, got None"),
    "a window of zero": ({"sliding_window_size": 0}, "positive sliding_window_size, got 0"),
    "MAMBA without a chunk": ({"mamba_chunk_size": None}, "positive mamba_chunk_size, got None"),
    "a model that lacks the pool of a component": (
        {"model": reshaped(TINY_MODEL, swa_layers=0)},
        "components has 'swa', but no pool of the model follows it",
    ),
    "a page of zero": ({"page_size": 0}, "page_size must be a positive integer, got 0"),
    "a bool as page size": ({"page_size": True}, "page_size must be a positive integer, got True"),
    "a component without capacity": ({"capacity_tokens": {"full": 64}}, "capacity_tokens is given for ['full']"),
    "half a page": ({"capacity_tokens": {"full": 60, "swa": 32, "mamba": 3}}, "['full']=60 is no positive multiple"),
    "no states": ({"capacity_tokens": {"full": 64, "swa": 32, "mamba": 0}}, "['mamba']=0 is no positive multiple"),
}

TABLES = {
    "json": '{"page_size": 16, "policy": {"name": "lru"}}',
    "toml": 'page_size = 16\n[policy]\nname = "lru"\n',
    "yaml": "page_size: 16\npolicy:\n  name: lru\n",
    "yml": "page_size: 16\npolicy: {name: lru}\n",
}

UNREADABLE = {
    "bad json": ("table.json", "{", "table.json: "),
    "bad toml": ("table.toml", "page_size = ", "table.toml: "),
    "bad yaml": ("table.yaml", "a: [1", "table.yaml: "),
    "another ending": ("table.ini", "[a]", "known: .json .toml .yaml .yml"),
    "no ending": ("table", "{}", "known: .json .toml .yaml .yml"),
    "a list in json": ("table.json", "[1]", "the top level is a list, not a table"),
    "nothing in yaml": ("table.yml", "", "the top level is a NoneType, not a table"),
    "not utf-8": ("table.json", "\udcff", "table.json: "),
}


@pytest.mark.parametrize(("change", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_configuration_that_cannot_be_served_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        replace(VALID, **change)
    assert reason in str(refusal.value), f"COMP-2: expected {reason!r} in {str(refusal.value)!r}"


def test_the_name_tells_configurations_apart() -> None:
    assert VALID.name == "full+swa+mamba+indexer/page16/lru", f"got {VALID.name!r}"
    bigram = replace(VALID, bigram=True, policy=EvictionPolicy.SLRU)
    assert bigram.name == "full+swa+mamba+indexer/page16/slru/bigram", f"got {bigram.name!r}"


@pytest.mark.parametrize(("rank", "size"), [(1, 1), (-1, 1), (0, 0)])
def test_a_rank_outside_its_group_is_refused(rank: int, size: int) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        replace(SINGLE_RANK, cp_rank=rank, cp_size=size)
    expected = f"cp_rank {rank} is not in range(cp_size={size})"
    assert str(refusal.value) == expected, f"expected {expected!r}, got {str(refusal.value)!r}"


@pytest.mark.parametrize(("ending", "text"), TABLES.items(), ids=TABLES)
def test_the_same_table_is_read_from_every_format(tmp_path: Path, ending: str, text: str) -> None:
    path = tmp_path / f"table.{ending}"
    path.write_text(text, encoding="utf-8")
    expected = {"page_size": 16, "policy": {"name": "lru"}}
    table = read_table(f"@{path}")
    assert table == expected, f"CONF-1: expected {expected} from {text!r}, got {table}"


def test_a_table_is_read_from_a_string() -> None:
    table = read_table('{"page_size": 1}')
    assert table == {"page_size": 1}, f"CONF-1: got {table}"


@pytest.mark.parametrize(("name", "text", "reason"), UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_file_is_named(tmp_path: Path, name: str, text: str, reason: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(ConfigurationError) as refusal:
        read_table(f"@{path}")
    message = str(refusal.value)
    assert message.startswith(f"{path}: "), f"CONF-1: expected the file {path} first in {message!r}"
    assert reason in message, f"CONF-1: expected {reason!r} in {message!r}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing.toml"
    with pytest.raises(ConfigurationError) as refusal:
        read_table(f"@{path}")
    assert str(path) in str(refusal.value), f"CONF-1: expected {path} in {str(refusal.value)!r}"


@pytest.mark.parametrize("source", ["{", "[]", "16", "NaN"])
def test_a_string_that_is_no_table_is_refused(source: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        read_table(source)
    assert str(refusal.value).startswith("inline JSON: "), f"CONF-1: got {str(refusal.value)!r}"
