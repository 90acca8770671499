"""Configurations of a cache, of storage and extra ones: equal in every format, whole or refused by name."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.config import (
    OWN_KEYS,
    SINGLE_RANK,
    CacheConfig,
    EvictionPolicy,
    ExecutorKind,
    ExtraConfig,
    HostConfig,
    StorageConfig,
    read_extra_config,
    read_table,
)
from hicache.errors import ConfigurationError
from hicache.testing.hybrid_model import TINY_MODEL, reshaped, tiny_model
from hicache.types import StopPolicy

# CacheConfig, and tables in files.

VALID = CacheConfig(
    components=("full", "swa", "mamba"),
    page_size=16,
    capacity_tokens={"full": 64, "swa": 32, "mamba": 3},
    sliding_window_size=24,
    mamba_chunk_size=16,
    events=True,
    model=tiny_model(("indexer",)),
)

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a component twice": ({"components": ("full", "full")}, "names one twice"),
    "no FULL": ({"components": ("swa",)}, "lacks 'full'"),
    "SWA without a window": ({"sliding_window_size": None}, "positive sliding_window_size, got None"),
    "a window of zero": ({"sliding_window_size": 0}, "positive sliding_window_size, got 0"),
    "MAMBA without a chunk": ({"mamba_chunk_size": None}, "positive mamba_chunk_size, got None"),
    "an interval between two states that a model gives": (
        {"mamba_chunk_size": 24, "mamba_checkpoint_interval": 32},
        "mamba_checkpoint_interval must be a multiple of page_size and of mamba_chunk_size, so of 48, got 32",
    ),
    "a path of no state": ({"mamba_max_states_per_path": 0}, "mamba_max_states_per_path must be an integer from 1"),
    "a limit of states without MAMBA": (
        {"components": ("full",), "mamba_max_states_per_path": 1},
        "mamba_max_states_per_path is 1, but components has no 'mamba'",
    ),
    "a model that lacks the pool of a component": (
        {"model": reshaped(TINY_MODEL, swa_layers=0)},
        "components has 'swa', but no pool of the model follows it",
    ),
    "a page of zero": ({"page_size": 0}, "page_size must be an integer from 1 to 1099511627776, got 0"),
    "a bool as page size": ({"page_size": True}, "page_size must be an integer from 1 to 1099511627776, got True"),
    "a component without capacity": ({"capacity_tokens": {"full": 64}}, "capacity_tokens is given for ['full']"),
    "half a page": ({"capacity_tokens": {"full": 60, "swa": 32, "mamba": 3}}, "['full']=60 is not a positive multiple"),
    "no states": ({"capacity_tokens": {"full": 64, "swa": 32, "mamba": 0}}, "['mamba']=0 is not a positive multiple"),
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


# IoBackend.


def with_io_backend(io_backend: Any, device: str, layout: str = "layer_first", host: str = "page_first") -> CacheConfig:
    """A host tier with an I/O backend, on a device, with a layout on each tier."""
    executor = ExecutorKind.THREADED if device == "cpu" else ExecutorKind.STREAMS
    below = HostConfig({"full": 16}, layout=host, executor=executor, io_backend=io_backend)  # type: ignore[arg-type]
    return CacheConfig({"full": 16}, device=device, layout=layout, host=below)  # type: ignore[arg-type]


@pytest.mark.parametrize(("device", "expected"), [("cpu", "direct"), ("cuda", "kernel"), ("cuda:1", "kernel")])
def test_bytes_cross_as_suits_the_device_or_as_configured(device: str, expected: str) -> None:
    assert with_io_backend(None, device).io_backend == expected, f"the default on {device}"
    for io_backend in ("direct", "kernel"):
        config = with_io_backend(io_backend, device, host="page_first_direct")
        assert config.io_backend == io_backend, f"{io_backend} on {device} was configured"
        assert config.host is not None, "it has a host tier"
        assert config.host.name.endswith(f"-{io_backend}"), f"a name says what was configured, got {config.host.name}"


@pytest.mark.parametrize("wrong", ["kernel_ascend", "", 1, True, object()])
def test_an_unknown_io_backend_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"host\.io_backend must be one of 'kernel', 'direct', got "):
        with_io_backend(wrong, "cpu")


@pytest.mark.parametrize("layouts", [("layer_first", "page_first"), ("page_first", "page_first_direct")])
def test_a_gpu_copies_no_slot_alone(layouts: tuple[str, str]) -> None:
    message = f"'direct' on 'cuda' needs .* got layout='{layouts[0]}' and host.layout='{layouts[1]}': take"
    with pytest.raises(ConfigurationError, match=message):
        with_io_backend("direct", "cuda", *layouts)
    assert with_io_backend("direct", "cpu", *layouts).io_backend == "direct", "the CPU copies slots as well"
    assert with_io_backend("kernel", "cuda", *layouts).io_backend == "kernel", "a kernel takes any layout"


# StorageConfig.

VALID_STORAGE = StorageConfig(
    backend="memory",
    model="org/model",
    stop_policy=StopPolicy.TIMEOUT,
    timeout_cap_s=30,
    limit_tokens=1024,
    executor=ExecutorKind.THREADED,
)

REFUSED_STORAGE: list[tuple[str, Any]] = [
    ("backend", ""),
    ("model", ""),
    *[("timeout_cap_s", value) for value in (-1, math.nan, math.inf, True, "30", None)],
    *[("answer_timeout_s", value) for value in (0, -1.0, True, "soon", float("inf"), float("nan"))],
    *[("limit_tokens", value) for value in (0, -1, True, 1.5)],
    ("executor", ExecutorKind.STREAMS),
]


@pytest.mark.parametrize(
    ("field", "value"), REFUSED_STORAGE, ids=[f"{field}={value!r}" for field, value in REFUSED_STORAGE]
)
def test_what_cannot_be_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        replace(VALID_STORAGE, **{field: value})


def test_a_name_says_what_differs() -> None:
    elsewhere = replace(VALID_STORAGE, backend="package.module:TheirStorage")
    assert elsewhere.name == "TheirStorage-timeout-threaded", f"without the path of the class, got {elsewhere.name}"


# ExtraConfig. Its formats are read on Python 3.10 too.

SEPARATORS = {"toml": " = ", "yaml": ": ", "yml": ": "}


def written(table: Mapping[str, Any], ending: str) -> str:
    """A table of tables, lists, text, numbers and bools in the format of an ending: without the libraries that read."""
    if ending == "json" or (ending != "toml" and not table):  # empty text is not a table in YAML
        return json.dumps(table)
    return "".join(f"{line}\n" for line in _entries(table, SEPARATORS[ending]))


def _entries(table: Mapping[str, Any], separator: str) -> Iterator[str]:
    for key, value in table.items():
        yield f"{_quoted(key)}{separator}{_inline(value, separator)}"


def _inline(value: Any, separator: str) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(_entries(value, separator)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(one, separator) for one in value) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return str(value).lower()
    return _with_point(repr(value)) if isinstance(value, float) else str(value)


def _quoted(text: str) -> str:
    return '"' + "".join(char if char.isalnum() else f"\\U{ord(char):08x}" for char in text) + '"'


def _with_point(number: str) -> str:
    """1.0e+22 for 1e+22, which YAML would read as text."""
    digits, exponent, power = number.partition("e")
    return f"{digits}{'' if '.' in digits else '.0'}{exponent}{power}"


ENDINGS = ("json", "toml", "yaml", "yml")

BY_DEFAULT = ExtraConfig(256, 1.0, 0.25, hicache_storage_pass_prefix_keys=False, options={})

OWN: dict[str, Any] = {
    "prefetch_threshold": 512,
    "prefetch_timeout_base": 2.5,
    "prefetch_timeout_per_ki_token": 1,
    "hicache_storage_pass_prefix_keys": True,
}

TEXTS = {
    "json": '{"prefetch_threshold": 512, "path": "/cache", "depth": {"levels": [1, 2]}}',
    "toml": 'prefetch_threshold = 512\npath = "/cache"\n[depth]\nlevels = [1, 2]\n',
    "yaml": "prefetch_threshold: 512\npath: /cache\ndepth:\n  levels: [1, 2]\n",
    "yml": "prefetch_threshold: 512\npath: /cache\ndepth:\n  levels:\n  - 1\n  - 2\n",
}

INTEGER, NUMBER, FLAG = "an integer, 0 or above", "a finite number, 0 or above", "true or false"

WRONG: list[tuple[str, Any, str, str]] = [
    ("prefetch_threshold", True, "bool", INTEGER),
    ("prefetch_threshold", 256.0, "float", INTEGER),
    ("prefetch_threshold", "256", "str", INTEGER),
    ("prefetch_threshold", None, "NoneType", INTEGER),
    ("prefetch_threshold", -1, "int", INTEGER),
    ("prefetch_timeout_base", False, "bool", NUMBER),
    ("prefetch_timeout_base", math.nan, "float", NUMBER),
    ("prefetch_timeout_base", math.inf, "float", NUMBER),
    ("prefetch_timeout_base", -math.inf, "float", NUMBER),
    ("prefetch_timeout_base", -0.5, "float", NUMBER),
    ("prefetch_timeout_base", 10**400, "int", NUMBER),
    ("prefetch_timeout_per_ki_token", math.nan, "float", NUMBER),
    ("prefetch_timeout_per_ki_token", "0.25", "str", NUMBER),
    ("prefetch_timeout_per_ki_token", [0.25], "list", NUMBER),
    ("prefetch_timeout_per_ki_token", {"s": 1}, "dict", NUMBER),
    ("hicache_storage_pass_prefix_keys", 1, "int", FLAG),
    ("hicache_storage_pass_prefix_keys", "true", "str", FLAG),
]

NOT_FINITE = {
    "nan.json": '{"prefetch_timeout_base": NaN}',
    "inf.json": '{"prefetch_timeout_base": Infinity}',
    "nan.toml": "prefetch_timeout_base = nan",
    "inf.toml": "prefetch_timeout_base = inf",
    "nan.yaml": "prefetch_timeout_base: .nan",
    "inf.yml": "prefetch_timeout_base: .inf",
}

REPEATED = {
    "json": '{"path": "/a", "path": "/b"}',
    "toml": 'path = "/a"\npath = "/b"\n',
    "yaml": "path: /a\npath: /b\n",
    "yml": "{path: /a, 'path': /b}",
}

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
SECONDS = st.one_of(st.integers(0, 2**63 - 1), st.floats(0, allow_infinity=False))
OWN_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "prefetch_threshold": st.integers(0, 2**63 - 1),
        "prefetch_timeout_base": SECONDS,
        "prefetch_timeout_per_ki_token": SECONDS,
        "hicache_storage_pass_prefix_keys": st.booleans(),
    },
)
OPTIONS = st.dictionaries(TEXT.filter(lambda key: key not in OWN_KEYS), VALUES, max_size=4)


def in_file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return f"@{path}"


def refusal_of(source: str) -> str:
    with pytest.raises(ConfigurationError) as refusal:
        read_extra_config(source)
    return str(refusal.value)


def test_what_is_not_said_is_as_by_default() -> None:
    found = read_extra_config("{}")
    assert found == ExtraConfig() == BY_DEFAULT, (
        f"CONF-3: expected {BY_DEFAULT}, got {found}, and {ExtraConfig()} unread"
    )


def test_an_extra_configuration_that_is_not_given_is_as_by_default() -> None:
    for source in (None, ""):
        found = read_extra_config(source)
        assert found == BY_DEFAULT, f"CONF-1: {source!r}: expected {BY_DEFAULT}, got {found}"


def test_the_own_keys_are_the_fields_but_the_options() -> None:
    names = tuple(field.name for field in fields(ExtraConfig))
    assert names == (*OWN_KEYS, "options") == (*OWN, "options"), f"CONF-3: four keys are the cache's, got {OWN_KEYS}"


@pytest.mark.parametrize("key", OWN)
def test_a_key_is_set_by_itself(key: str) -> None:
    expected = replace(BY_DEFAULT, **{key: OWN[key]})
    found = read_extra_config(json.dumps({key: OWN[key]}))
    assert found == expected, f"CONF-3: expected {expected}, got {found}"


def test_what_is_not_the_caches_goes_to_the_backend_and_nothing_else_does() -> None:
    options = {"path": "/cache", "prefetch_treshold": 1, "options": {"prefetch_threshold": 2}}
    found = read_extra_config(json.dumps({**OWN, **options}))
    assert found == ExtraConfig(**OWN, options=options), f"CONF-3: expected options {options}, got {found}"


@pytest.mark.parametrize("ending", ENDINGS)
def test_equal_content_is_an_equal_configuration(tmp_path: Path, ending: str) -> None:
    expected = replace(BY_DEFAULT, prefetch_threshold=512, options={"path": "/cache", "depth": {"levels": [1, 2]}})
    found = read_extra_config(in_file(tmp_path, f"extra.{ending}", TEXTS[ending]))
    clause = "CONF-2" if ending == "toml" else "CONF-1"
    assert found == expected, f"{clause}: Python {platform.python_version()}: expected {expected}, got {found}"


@given(own=OWN_VALUES, options=OPTIONS)
def test_any_table_is_the_same_in_all_formats(
    tmp_path_factory: pytest.TempPathFactory, own: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    expected = repr(replace(BY_DEFAULT, **own, options=options))  # tells 1 from 1.0 and from True, as == does not
    texts = {ending: written({**own, **options}, ending) for ending in ENDINGS}
    found = {ending: repr(read_extra_config(in_file(folder, f"drawn.{ending}", texts[ending]))) for ending in ENDINGS}
    found["inline"] = repr(read_extra_config(texts["json"]))
    wrong = {ending: config for ending, config in found.items() if config != expected}
    assert not wrong, f"CONF-1: expected {expected}, got {wrong} from {texts}"


@pytest.mark.parametrize(("key", "value", "name", "kind"), WRONG)
def test_a_value_of_another_kind_is_refused_by_hand(key: str, value: Any, name: str, kind: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        replace(BY_DEFAULT, **{key: value})
    expected = f"{key} is {value!r} ({name}), not {kind}"
    assert str(refusal.value) == expected, f"CONF-4: expected {expected!r}, got {str(refusal.value)!r}"


@pytest.mark.parametrize(("key", "value", "name", "kind"), WRONG)
def test_a_value_of_another_kind_is_refused_with_its_source(
    tmp_path: Path, key: str, value: Any, name: str, kind: str
) -> None:
    text = json.dumps({**OWN, "path": "/cache", key: value})
    problem = f"{key} is {value!r} ({name}), not {kind}"
    file = in_file(tmp_path, "extra.json", text)
    for source, place in ((text, "inline JSON"), (file, file[1:])):
        message = refusal_of(source)
        assert message == f"{place}: {problem}", f"CONF-4: expected {place}: {problem!r}, got {message!r}"


@pytest.mark.parametrize("name", NOT_FINITE)
def test_what_is_not_finite_is_refused_in_every_format(tmp_path: Path, name: str) -> None:
    file = in_file(tmp_path, name, NOT_FINITE[name])
    expected = f"{file[1:]}: prefetch_timeout_base is {name[:3]} (float), not {NUMBER}"
    assert refusal_of(file) == expected, f"CONF-4: expected {expected!r}, got {refusal_of(file)!r}"


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_key_that_is_given_twice_is_refused(tmp_path: Path, ending: str) -> None:
    file = in_file(tmp_path, f"extra.{ending}", REPEATED[ending])
    message = refusal_of(file)
    assert message.startswith(f"{file[1:]}: "), f"CONF-4: expected the file first in {message!r}"
    twice = "Cannot overwrite a value" if ending == "toml" else "the key 'path' is given twice"
    assert twice in message, f"CONF-4: expected {twice!r} in {message!r}"


def test_a_key_may_be_given_again_in_another_table() -> None:
    options = {"path": "/a", "inner": {"path": "/b"}}
    found = read_extra_config(json.dumps(options)).options
    assert found == options, f"CONF-1: expected {options}, got {found}"


def test_a_merged_table_of_yaml_may_be_overridden(tmp_path: Path) -> None:
    source = in_file(tmp_path, "extra.yaml", "near: &near {path: /a, size: 1}\nfar: {<<: *near, path: /b}\n")
    expected = {"near": {"path": "/a", "size": 1}, "far": {"path": "/b", "size": 1}}
    found = read_extra_config(source).options
    assert found == expected, f"CONF-1: expected {expected}, got {found}"


@pytest.mark.parametrize(("text", "name"), [("1: a", "int"), ("on: a", "bool")])
def test_a_key_that_is_no_text_is_refused(tmp_path: Path, text: str, name: str) -> None:
    file = in_file(tmp_path, "extra.yaml", text)
    expected = f"is of type {name}, not a string"
    message = refusal_of(file)
    assert message.startswith(f"{file[1:]}: the key "), f"CONF-4: expected the file first in {message!r}"
    assert message.endswith(expected), f"CONF-4: expected {expected!r} at the end of {message!r}"


@pytest.mark.parametrize("key", OWN)
def test_an_own_key_is_no_option(key: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        replace(BY_DEFAULT, options={key: OWN[key]})
    expected = f"{key} is the cache's own key, not an option of the backend"
    assert str(refusal.value) == expected, f"CONF-3: expected {expected!r}, got {str(refusal.value)!r}"


def test_a_table_that_is_too_deep_is_refused() -> None:
    message = refusal_of('{"depth": ' + "[" * 100_000)
    assert message.startswith("inline JSON: "), f"CONF-4: expected a refusal of the source, got {message!r}"


def test_what_was_read_does_not_change_what_is_read_next() -> None:
    first = read_extra_config('{"path": "/cache"}')
    refused = refusal_of('{"prefetch_threshold": 1, "path": "/other", "prefetch_timeout_base": -1}')
    assert first.options == {"path": "/cache"}, f"CONF-4: {refused} changed what was read before to {first}"
    found = read_extra_config("{}")
    assert found == BY_DEFAULT, f"CONF-4: {refused}, but what is read next is {found}"


@pytest.mark.parametrize("key", OWN_KEYS)
def test_the_documentation_names_the_default(key: str) -> None:
    text = (Path(__file__).parents[4] / "docs" / "architecture.md").read_text(encoding="utf-8")
    row = f"| `{key}` | `{json.dumps(getattr(ExtraConfig(), key))}` | "
    assert row in text, f"CONF-3: expected a row that begins with {row!r} in the section on configuration"


# StorageConfig with an extra configuration.

EXTRA = '{"prefetch_threshold": 512, "hicache_storage_pass_prefix_keys": true, "root": "/a"}'


def stored(**changes: Any) -> StorageConfig:
    return StorageConfig("file", "org/name", **changes)


def test_an_extra_configuration_gives_keys_and_options(tmp_path: Path) -> None:
    expected = stored(prefetch_threshold=512, hicache_storage_pass_prefix_keys=True, options={"root": "/a"})
    for source in (EXTRA, in_file(tmp_path, "extra.json", EXTRA)):
        found = stored(extra_config=source)
        assert found == expected, f"CONF-3: {source}: expected {expected}, got {found}"
        assert replace(found, limit_tokens=1) == replace(expected, limit_tokens=1), "it is read once"
    assert stored(extra_config="") == stored(extra_config=None) == stored(), "CONF-1: it is not given"


def test_keys_beside_an_extra_configuration_stay() -> None:
    found = stored(extra_config=EXTRA, options={"fsync": True}, prefetch_timeout_base=3.0, prefetch_threshold=512)
    assert found.options == {"root": "/a", "fsync": True}, f"CONF-3: options of both, got {dict(found.options)}"
    assert (found.prefetch_timeout_base, found.prefetch_threshold) == (3.0, 512), f"CONF-3: got {found}"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"options": {"root": "hunter2"}}, "storage.extra_config and storage.options both have 'root'"),
        ({"prefetch_threshold": 7}, "storage.extra_config and storage both have prefetch_threshold: 512 and 7"),
        ({"extra_config": "{"}, "storage.extra_config: inline JSON: "),
        ({"extra_config": '{"prefetch_threshold": true}'}, "storage.extra_config: inline JSON: prefetch_threshold is"),
        ({"extra_config": "@nowhere.toml"}, "storage.extra_config: nowhere.toml: "),
        ({"extra_config": {"root": "hunter2"}}, "storage.extra_config must be a str or None, got a dict"),
    ],
)
def test_an_extra_configuration_that_cannot_be_taken_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        stored(**{"extra_config": EXTRA} | changes)
    assert str(refusal.value).startswith(reason), f"CONF-4: expected {reason!r}, got {str(refusal.value)!r}"
    assert "hunter2" not in str(refusal.value), f"SEC: the value of an option is in {refusal.value}"
