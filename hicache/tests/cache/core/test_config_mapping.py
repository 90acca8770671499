"""Whole configurations as files and mappings: equal after a round trip, refused by path, and as the page says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import MISSING
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from hicache.config import (
    CacheConfig,
    EvictionPolicy,
    HostConfig,
    IoBackend,
    Layout,
    StorageConfig,
    Topology,
    WritePolicy,
)
from hicache.config_mapping import config_to_mapping, keys_of, read_config, warn_of_selective_hits
from hicache.errors import ConfigurationError
from hicache.testing.hybrid_model import reshaped, tiny_model
from hicache.types import Component, StopPolicy

WHOLE = CacheConfig(
    capacity_tokens={Component.FULL: 64, "swa": 32, "mamba": 3},
    page_size=16,
    components=("full", "swa", "mamba"),
    sliding_window_size=24,
    mamba_chunk_size=16,
    policy=EvictionPolicy.SLRU,
    bigram=True,
    model=reshaped(tiny_model(("indexer",)), kv_heads=2),
    topology=Topology(tp_rank=1, tp_size=2),
    host=HostConfig(
        {"full": 64, "swa": 32, "mamba": 3}, Layout.PAGE_FIRST, WritePolicy.WRITE_BACK, io_backend=IoBackend.KERNEL
    ),
    storage=StorageConfig("file", "org/model", {"root": "/a", "deep": {"levels": [1, None]}}, 512, 2, 0.5),
)

TAKEN: dict[str, tuple[Any, ...]] = {
    "page_size": (1,),
    "mamba_chunk_size": (1,),
    "sliding_window_size": (1,),
    "mamba_checkpoint_interval": (None,),
    "mamba_max_states_per_path": (None, 1),
    "bigram": (True, False),
    "events": (True, False),
    "model.is_mla": (True, False),
    "model.pools[].name": ("text", "1"),
    "model.pools[].layers": (1,),
    "model.pools[].tokens_per_entry": (1,),
    "model.pools[].buffers[].name": ("text", "1", "\0"),
    "model.pools[].buffers[].shape": ([1],),
    "model.pools[].buffers[].tp_axis": (None, 0),
    "topology": ({},),
    **{f"topology.{axis}_rank": (0,) for axis in ("cp", "pp", "dp")},
    "topology.tp_rank": (0, 1),
    **{f"topology.{axis}_size": (1,) for axis in ("cp", "pp", "dp")},
    "host.selective_hits": (1, 10**30),
    "host.load_back_threshold_tokens": (0, 1, 10**30),
    "host.io_backend": (None,),
    "storage": (None,),
    "storage.backend": ("text", "1", "\0"),  # its names are registered, and checked by the opening
    "storage.model": ("text", "1", "\0"),
    "storage.options": ({}, {"a": 1}),
    "storage.prefetch_threshold": (0, 1, 10**30),
    "storage.prefetch_timeout_base": (0, 1, 1.0, 1.5, 10**30),
    "storage.prefetch_timeout_per_ki_token": (0, 1, 1.0, 1.5, 10**30),
    "storage.hicache_storage_pass_prefix_keys": (True, False),
    "storage.timeout_cap_s": (0, 1, 1.0, 1.5, 10**30),
    "storage.limit_tokens": (1, 10**30),
    "storage.answer_timeout_s": (1, 1.0, 1.5, 10**30),
    "storage.model_fingerprint": (None, "text", "1", "\0"),
    "storage.extra_config": (None, ""),
}
"""By key: what it takes of VALUES, where all other keys are those of WHOLE."""

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 10**30, 1.0, 1.5, float("nan"), float("inf")),
    *("", "text", "1", "\0", [], [0], [1], [True], [1.0], ["text"], [[1]], {}, {"a": 1}, {1: 2}),
)
"""Of each kind that a file can have."""

SECRET = ("storage.options", "storage.extra_config")
"""Keys whose values are in no message."""

SMALL: dict[str, Any] = {"capacity_tokens": {"full": 16}}
HOST: dict[str, Any] = {"capacity_tokens": {"full": 16}}
KV: dict[str, Any] = {
    "name": "kv",
    "follows": "every_page",
    "layers": 1,
    "buffers": [{"name": "kv", "shape": [2, 1, 4], "dtype": "float32"}],
}


def of_kv(**changes: Any) -> dict[str, Any]:
    """A model with KV alone, whose buffer is changed."""
    return {"model": {"pools": [{**KV, "buffers": [{**KV["buffers"][0], **changes}]}]}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"polici": "lru"}, "the configuration has no key 'polici'; the nearest is 'policy'; known: "),
    "a key of another part": ({"write_policy": "write_back"}, "the nearest is 'host.write_policy'"),
    "an unknown key of a part": ({"host": {**HOST, "layot": 1}}, "host has no key 'layot'; the nearest is 'layout'"),
    "an unknown key of an item": (
        {"model": {"pools": [{**KV, "buffers": [{"shapes": []}]}]}},
        "model.pools[0].buffers[0] has no key 'shapes'; the nearest is 'shape'",
    ),
    "a key that is no text": ({"topology": {1: 2}}, "topology has no key 1; the nearest is "),
    "a part that lacks a key": ({"host": {}}, "host lacks 'capacity_tokens'"),
    "a part that is no table": ({"host": 5}, "host must be a table, got 5"),
    "a list for a part": ({"storage": ["secret"]}, "storage must be a table, got a list"),
    "no list": ({"components": "full"}, "components must be a list, got 'full'"),
    "an item of another type": ({"components": [1]}, "components[0] must be a string, got 1"),
    "a text of another type": ({"device": 1}, "device must be a string, got 1"),
    "an unknown choice": ({"host": {**HOST, "layout": "rows"}}, "host.layout must be one of 'layer_first', "),
    "a value of a part": (
        {"host": HOST, "model": {"pools": [KV]}, "storage": {"backend": "a", "model": "b", "prefetch_threshold": True}},
        "storage: prefetch_threshold is True (bool), not an integer",
    ),
    "a value of an item": (
        {"model": {"pools": [{**KV, "layers": -1}]}},
        "model.pools[0]: pool 'kv': layers must be an integer from 0",
    ),
    "no layers": ({"model": {"pools": [{**KV, "layers": 0}]}}, "model.pools: layers is 0 in all of ['kv']"),
    "no layers of a sidecar": (
        {"model": {"pools": [KV, {**KV, "name": "index", "layers": 0}]}},
        "model.pools[1]: pool 'index': layers must be an integer from 1 to ",
    ),
    "an unknown dtype": (of_kv(dtype="bf16"), "buffers[0]: buffer 'kv': dtype 'bf16' is not a dtype of torch"),
    "a dtype that is almost right": (of_kv(dtype="bfloat61"), "the nearest is 'bfloat16'"),
    "a dtype of half a byte": (
        of_kv(dtype="int4"),
        "dtype 'int4' is not a dtype of torch with elements of whole bytes",
    ),
    "an item of nothing": (of_kv(shape=[2, 0, 4]), "shape must be one integer or more, each from 1 to "),
    "an axis that is not there": (of_kv(tp_axis=3), "tp_axis must be None or an axis of (2, 1, 4), from 0, got 3"),
    "an axis that ranks cannot divide": (
        {**of_kv(tp_axis=1), "topology": {"tp_size": 2}},
        "axis 1 of kv.kv (2, 1, 4) cannot be divided over tp_size=2",
    ),
    "two buffers of one name": (
        {"model": {"pools": [{**KV, "buffers": KV["buffers"] * 2}]}},
        "model.pools[0]: pool 'kv': buffers has two of the name 'kv'",
    ),
    "two pools of one name": ({"model": {"pools": [KV, KV]}}, "model.pools has two of the name 'kv'"),
    "a pool that no key can name": (
        {"model": {"pools": [KV, {**KV, "name": "draft/kv"}]}},
        "model.pools[1]: pool name must be up to 100 letters, digits and ._-, the first of them not a dot, got 'draft",
    ),
    "an unknown device": ({"device": "cdua"}, "device 'cdua' is not a device of torch: "),
    "a device that is almost right": ({"device": "cdua:0"}, "the nearest is 'cuda'"),
    "a device in capitals": ({"device": "CPU"}, "device 'CPU' is not a device of torch: "),
    "an index below 0": ({"device": "cuda:-1"}, "device 'cuda:-1' is not a device of torch: "),
    "an index that torch takes for 0": ({"device": "cuda:256"}, "with an index from 0 to 127, such as 'cuda:0'"),
    "a device with two indices": ({"device": "cuda:0:1"}, "device 'cuda:0:1' is not a device of torch: "),
    "a component twice": ({"components": ["full", "full"]}, "components ('full', 'full') names one twice"),
    "a rank": ({"topology": {"tp_rank": 2}}, "topology: tp_rank 2 is not in range(tp_size=1)"),
}

WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**60,
    0.5,
    float("nan"),
    "",
    "text",
    [],
    ["text"],
    [[1]],
    {},
    {"a": 1},
    {1: 2},
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each table and list in a table, with each key and place of it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in list(inner):
        yield value, key
        yield from places(one)


def test_a_configuration_is_equal_after_a_round_trip() -> None:
    table = config_to_mapping(WHOLE)
    for form, read in {"mapping": read_config(table), "json": read_config(json.dumps(table))}.items():
        assert read == WHOLE, f"CONF-6: {form}: expected {WHOLE}, got {read}"
        assert read.storage is not None, "CONF-6: its storage is read"
        assert read.storage.options == {"root": "/a", "deep": {"levels": [1, None]}}, f"got {read.storage.options}"
        assert config_to_mapping(read) == table, f"CONF-6: {form}: what is written of it again differs from {table}"


def test_what_is_not_given_is_as_by_default() -> None:
    assert read_config(SMALL) == CacheConfig({"full": 16}), f"CONF-6: got {read_config(SMALL)}"
    assert read_config({**SMALL, "host": None}) == CacheConfig({"full": 16}), "CONF-6: null means no host tier"


def test_the_former_default_of_selective_hits_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_selective_hits.cache_clear()
    selective = {**HOST, "write_policy": "write_through_selective"}
    for hits in (1, 2, 2, 3):
        read = read_config({**SMALL, "host": {**selective, "selective_hits": hits}})
        assert read.host is not None, "the host tier is read"
        assert read.host.selective_hits == hits, f"HOST-1: expected {hits}, got {read.host.selective_hits}"
    read_config({**SMALL, "host": {**HOST, "selective_hits": 2}})
    (warning,) = caplog.messages
    assert warning.startswith("host.selective_hits = 2 backs up at the third request"), f"got {warning!r}"


@pytest.mark.parametrize(("change", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_served_is_refused_by_path(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        read_config({**SMALL, **change})
    assert str(refusal.value).startswith(reason) or reason in str(refusal.value), f"CONF-7: got {refusal.value}"
    path = tmp_path / "cache.json"
    path.write_text(json.dumps({**SMALL, **change}), encoding="utf-8")
    with pytest.raises(ConfigurationError) as refusal:
        read_config(f"@{path}")
    assert str(refusal.value).startswith(f"{path}: "), f"CONF-7: expected the file first in {refusal.value}"


def test_no_value_at_any_place_raises_another_error() -> None:
    table = config_to_mapping(WHOLE)
    for part, key in list(places(table)):
        kept = part[key]
        for wrong in WRONG:
            part[key] = deepcopy(wrong)
            with suppress(ConfigurationError):
                read_config(table)
        part[key] = kept
    assert read_config(table) == WHOLE, "every value was put back"


KEYS = [path for path, _ in keys_of(CacheConfig)]


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, and of one type: True is not 1, and 1.0 is not 1."""
    return repr(one) == repr(other)


@pytest.mark.parametrize("path", KEYS)
def test_a_key_takes_values_of_its_kind_alone(path: str) -> None:
    table = {**config_to_mapping(WHOLE), "storage": {**config_to_mapping(WHOLE)["storage"], "extra_config": "{}"}}
    *parts, key = path.split(".")
    part: Any = table
    for name in parts:
        part = part[name.removesuffix("[]")][-1] if name.endswith("[]") else part[name]
    for value in VALUES:
        part[key] = deepcopy(value)
        if any(is_same(value, taken) for taken in TAKEN.get(path, ())):
            read_config(table)
            continue
        with pytest.raises(ConfigurationError) as refusal:
            read_config(table)
        message = str(refusal.value)
        assert key in message or "the key 1 " in message, f"CONF-7: {path} = {value!r}: no key in {message!r}"
        is_shown = value is None or isinstance(value, list | dict) or path in SECRET or repr(value) in message
        assert is_shown, f"CONF-7: {path} = {value!r}: expected the value in {message!r}"


def test_the_options_of_a_backend_are_in_no_message() -> None:
    secret = {"backend": "file", "model": "m", "options": {"password": "hunter2hunter2"}, "limit_token": 1}
    with pytest.raises(ConfigurationError) as refusal:
        read_config({**SMALL, "host": HOST, "storage": secret})
    assert "hunter2" not in str(refusal.value), f"SEC: the secret is in {refusal.value}"


def test_a_path_is_read_as_its_file(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    path.write_text(json.dumps(SMALL), encoding="utf-8")
    assert read_config(path) == read_config(f"@{path}") == CacheConfig({"full": 16}), "CONF-6: a Path is its file"
    with pytest.raises(ConfigurationError) as refusal:
        read_config(path.with_name("missing.toml"))
    assert str(refusal.value).startswith(f"{path.with_name('missing.toml')}: [Errno 2]"), f"got {refusal.value}"


SOURCES: dict[str, tuple[Any, str]] = {
    "a file that is missing": ("x.toml", "x.toml: no such file; "),
    "a file that is there": (
        "here.yaml",
        "here.yaml: a file is given as '@here.yaml' or as a pathlib.Path, a str with",
    ),
    "a name that is too long": (f"{'x' * 5000}.json", "File name too long"),
    "a text of another kind": ("cache", "; a file is given as '@PATH' or as a pathlib.Path"),
    "an empty text": ("", "; a file is given as '@PATH' or as a pathlib.Path"),
    "JSON that is cut": ('{"capacity_tokens": ', "inline JSON: Expecting value: line 1 column 21"),
    "None": (None, "a configuration is read from a str, a Path or a mapping, got None"),
    "bytes": (b"{}", "a configuration is read from a str, a Path or a mapping, got b'{}'"),
}


@pytest.mark.parametrize(("source", "reason"), SOURCES.values(), ids=SOURCES)
def test_what_is_no_source_names_the_right_form(
    source: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.yaml").touch()
    with pytest.raises(ConfigurationError) as refusal:
        read_config(source)
    assert reason in str(refusal.value), f"CONF-6: expected {reason!r} in {str(refusal.value)!r}"


def test_yaml_without_pyyaml_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.yaml"
    path.write_text("capacity_tokens: {full: 16}", encoding="utf-8")
    assert read_config(f"@{path}") == CacheConfig({"full": 16}), "with pyyaml it is read"
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError) as refusal:
        read_config(f"@{path}")
    expected = f"{path}: YAML needs pyyaml: pip install 'hicache[yaml]'"
    assert str(refusal.value) == expected, f"expected {expected!r}, got {str(refusal.value)!r}"


# The page.

PAGE = (Path(__file__).parents[4] / "docs" / "configuration.md").read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, list[str]]:
    """The rows of the table below a heading, by what stands in their first cell between backquotes."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if line[:3] == "| `"
    ]
    return {one[0].strip("`"): one[1:] for one in cells}


def by_default(default: object) -> str:
    """How the page writes a default."""
    if default is MISSING:
        return "needed"
    return f"`{json.dumps(default.value if isinstance(default, Enum) else default)}`"


def test_the_page_has_each_key_with_its_default() -> None:
    expected = {}
    for path, one in keys_of(CacheConfig):
        is_part = isinstance(one.default, Topology) or one.default_factory is not MISSING
        expected[path] = "`{}`" if is_part else by_default(one.default)
    found = {path: cells[0] for path, cells in rows("Keys").items()}
    assert found == expected, f"docs/configuration.md, Keys: expected {expected}, found {found}"


SGLANG = (
    *("enable-hierarchical-cache", "hicache-host-memory-mode", "hicache-ratio", "hicache-size"),
    *("hicache-host-memory-fraction", "hicache-write-policy", "hicache-io-backend", "hicache-mem-layout"),
    *("hicache-storage-backend", "hicache-storage-prefetch-policy", "hicache-storage-backend-extra-config"),
    *("hicache-storage-prefetch-retry-poll-interval", "hicache-storage-prefetch-retry-max-attempts"),
    *(
        "page-size",
        "radix-eviction-policy",
        "radix-eviction-policy-config",
        "mamba-max-states-per-path",
        "mamba-track-interval",
        "swa-full-tokens-ratio",
    ),
)
"""Options of SGLang 0.5.23: those of its class ServerArgs about the hierarchical cache, and those that it shares."""

CHOICES: Mapping[str, type[Enum]] = {
    "hicache-write-policy": WritePolicy,
    "hicache-mem-layout": Layout,
    "hicache-io-backend": IoBackend,
    "hicache-storage-prefetch-policy": StopPolicy,
    "radix-eviction-policy": EvictionPolicy,
}


def test_the_page_has_each_option_of_sglang_with_our_key_or_a_reason() -> None:
    found, known = rows("From SGLang's options"), {path for path, _ in keys_of(CacheConfig)}
    assert list(found) == [f"--{name}" for name in SGLANG], f"expected {SGLANG}, found {list(found)}"
    for option, (_, ours, note) in found.items():
        named = set(re.findall(r"`([\w.]+)`", ours))
        assert named <= known, f"{option}: {named - known} is not a key of a configuration"
        assert named or note, f"{option} has neither a key nor a reason"


@pytest.mark.parametrize("option", CHOICES)
def test_the_page_has_each_choice_of_sglang_with_ours_or_a_reason(option: str) -> None:
    found = {cells[0].strip("`"): cells[1:] for cells in choices(option)}
    ours = {one[0].strip("`") for one in found.values() if one[0] != "none"}
    known = {choice.value for choice in CHOICES[option]}
    assert ours <= known, f"{option}: expected choices among {known}, found {ours}"
    assert all(one[0] != "none" or one[1] for one in found.values()), f"{option}: a reason is missing in {found}"
    only_here = known - ours
    assert only_here <= {"fifo", "filo", "mru"}, f"{option}: {only_here} have no counterpart on the page"


def choices(option: str) -> list[list[str]]:
    """The rows of an option in the table of choices: the choice of SGLang, ours, and the note."""
    section = PAGE.partition("\n## Choices\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines()]
    found = [one[1:] for one in cells if one[0].strip("` ") == f"--{option}"]
    assert found, f"the page has no choices of --{option}"
    return found
