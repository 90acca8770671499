"""CONF: the extra configuration: how each format is read, which defaults apply, and which errors are raised."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import clause

DEFAULTS: dict[str, Any] = {
    "prefetch_threshold": 256,
    "prefetch_timeout_base": 1,
    "prefetch_timeout_per_ki_token": 0.25,
    "hicache_storage_pass_prefix_keys": False,
}

CHANGED: dict[str, Any] = {
    "prefetch_threshold": 512,
    "prefetch_timeout_base": 2.5,
    "prefetch_timeout_per_ki_token": 0,
    "hicache_storage_pass_prefix_keys": True,
}

OPTIONS: dict[str, Any] = {"path": "/cache", "size": 7, "share": 0.5, "direct": False, "depth": {"levels": [1, 2]}}

YAML = """
prefetch_threshold: 512
path: /cache
size: 7
share: 0.5
direct: no
depth:
  levels:
  - 1
  - 2
"""

TOML = """
prefetch_threshold = 512
path = "/cache"
size = 7
share = 0.5
direct = false
[depth]
levels = [1, 2]
"""

FILES = {"extra.json": json.dumps({"prefetch_threshold": 512, **OPTIONS}), "extra.yaml": YAML, "extra.yml": YAML}
IN_CAPITALS = {"extra.JSON": FILES["extra.json"], "extra.TOML": TOML, "extra.Yaml": YAML, "extra.YML": YAML}

MISNAMED = {
    "toml in json": ("extra.json", TOML),
    "yaml in toml": ("extra.toml", YAML),
    "toml in yaml": ("extra.yaml", TOML),
    "toml in yml": ("extra.yml", TOML),
}

WRONG: list[tuple[str, str, str]] = [
    ("prefetch_threshold", "true", "bool"),
    ("prefetch_threshold", "256.5", "float"),
    ("prefetch_threshold", '"256"', "str"),
    ("prefetch_threshold", "-1", "int"),
    ("prefetch_timeout_base", "false", "bool"),
    ("prefetch_timeout_base", "-0.5", "float"),
    ("prefetch_timeout_base", '"1"', "str"),
    ("prefetch_timeout_per_ki_token", "true", "bool"),
    ("prefetch_timeout_per_ki_token", "-0.5", "float"),
    ("prefetch_timeout_per_ki_token", "[0.25]", "list"),
    ("hicache_storage_pass_prefix_keys", "1", "int"),
    ("hicache_storage_pass_prefix_keys", '"true"', "str"),
]

NOT_FINITE = {
    "extra.toml": ["prefetch_timeout_base = nan", "prefetch_timeout_base = inf"],
    "extra.yaml": ["prefetch_timeout_base: .nan", "prefetch_timeout_base: .inf"],
}

NO_TABLE = {"extra.json": "[1]", "extra.yaml": "- 1", "extra.yml": "text"}


def _file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def _read(adapter_type: type[CacheAdapter], source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The cache's own keys, and the backend's options."""
    read = dict(adapter_type.extra_config(source))
    return read, dict(read.pop("options"))


def _refusal(adapter_type: type[CacheAdapter], source: str, clause_id: str) -> str:
    try:
        read = adapter_type.extra_config(source)
    except NotImplementedError:
        raise
    except Exception as refusal:  # noqa: BLE001 - which error it is, is the cache's choice
        return str(refusal)
    pytest.fail(f"{clause_id}: {source!r} was accepted, and read as {dict(read)}; expected an error")


@clause("CONF-1")
def test_a_string_is_read_as_json(adapter_type: type[CacheAdapter]) -> None:
    own, options = _read(adapter_type, json.dumps({**CHANGED, **OPTIONS}))
    assert own == CHANGED, f"CONF-1: expected the cache's own keys {CHANGED}, got {own}"
    assert options == OPTIONS, f"CONF-1: expected the backend's options {OPTIONS}, got {options}"


@clause("CONF-1")
@pytest.mark.parametrize("name", [*FILES, *IN_CAPITALS])
def test_a_file_is_read_by_its_extension(adapter_type: type[CacheAdapter], tmp_path: Path, name: str) -> None:
    path = _file(tmp_path, name, {**FILES, **IN_CAPITALS}[name])
    read, expected = _read(adapter_type, f"@{path}"), ({**DEFAULTS, "prefetch_threshold": 512}, OPTIONS)
    assert read == expected, f"CONF-1: expected {expected} from {name}, got {read}"


@clause("CONF-1", "CONF-2")
def test_toml_is_read_on_every_python(adapter_type: type[CacheAdapter], tmp_path: Path) -> None:
    path = _file(tmp_path, "extra.toml", TOML)
    read, expected = _read(adapter_type, f"@{path}"), ({**DEFAULTS, "prefetch_threshold": 512}, OPTIONS)
    assert read == expected, f"CONF-2: Python {platform.python_version()}: expected {expected}, got {read}"


@clause("CONF-1")
def test_an_unknown_extension_is_refused_with_the_file_name(adapter_type: type[CacheAdapter], tmp_path: Path) -> None:
    for name in ("extra.txt", "extra.ini", "extra.json.bak", "extra", "json"):
        path = _file(tmp_path, name, FILES["extra.json"])
        refusal = _refusal(adapter_type, f"@{path}", "CONF-1")
        assert str(path) in refusal, f"CONF-1: expected the file {path} in {refusal!r}"


@clause("CONF-1")
@pytest.mark.parametrize(("name", "text"), MISNAMED.values(), ids=MISNAMED)
def test_a_file_that_is_not_of_its_format_is_refused_with_its_name(
    adapter_type: type[CacheAdapter], tmp_path: Path, name: str, text: str
) -> None:
    path = _file(tmp_path, name, text)
    refusal = _refusal(adapter_type, f"@{path}", "CONF-1")
    assert str(path) in refusal, f"CONF-1: expected the file {path} in {refusal!r}"


@clause("CONF-1")
@pytest.mark.parametrize("name", [*FILES, "extra.toml"])
def test_a_missing_file_is_refused_with_its_name(adapter_type: type[CacheAdapter], tmp_path: Path, name: str) -> None:
    refusal = _refusal(adapter_type, f"@{tmp_path / name}", "CONF-1")
    assert str(tmp_path / name) in refusal, f"CONF-1: expected the file {tmp_path / name} in {refusal!r}"


@clause("CONF-3")
def test_a_missing_key_has_its_default(adapter_type: type[CacheAdapter]) -> None:
    read = _read(adapter_type, "{}")
    assert read == (DEFAULTS, {}), f"CONF-3: expected {DEFAULTS} and no options, got {read}"


@clause("CONF-1", "CONF-3")
def test_an_empty_text_is_a_configuration_without_keys(adapter_type: type[CacheAdapter]) -> None:
    read = _read(adapter_type, "")
    assert read == (DEFAULTS, {}), f"CONF-1: an option that is not given: expected {DEFAULTS}, got {read}"


@clause("CONF-3")
@pytest.mark.parametrize("key", CHANGED)
def test_each_key_can_be_changed_alone(adapter_type: type[CacheAdapter], key: str) -> None:
    read, expected = _read(adapter_type, json.dumps({key: CHANGED[key]})), {**DEFAULTS, key: CHANGED[key]}
    assert read == (expected, {}), f"CONF-3: expected {expected}, and nothing for the backend, got {read}"


@clause("CONF-3")
def test_unknown_keys_are_passed_to_the_backend_unchanged(adapter_type: type[CacheAdapter]) -> None:
    options = {**OPTIONS, "prefetch_thresholds": "-1", "options": {"prefetch_threshold": True}}
    read = _read(adapter_type, json.dumps(options))
    assert read == (DEFAULTS, options), f"CONF-3: expected {DEFAULTS} and {options}, got {read}"


@clause("CONF-4")
@pytest.mark.parametrize(("key", "value", "type_name"), WRONG)
@pytest.mark.parametrize(("name", "separator"), [("extra.json", ""), ("extra.toml", "="), ("extra.yaml", ": ")])
def test_a_wrong_value_is_refused_with_key_type_and_file(
    adapter_type: type[CacheAdapter], tmp_path: Path, key: str, value: str, type_name: str, name: str, separator: str
) -> None:
    text = f"{key}{separator}{value}" if separator else f'{{"{key}": {value}}}'
    path = _file(tmp_path, name, text)
    refusal = _refusal(adapter_type, f"@{path}", "CONF-4")
    missing = [part for part in (key, type_name, str(path)) if part not in refusal]
    assert not missing, f"CONF-4: {text!r} is refused without {missing} in {refusal!r}"


@clause("CONF-4")
@pytest.mark.parametrize(("key", "value", "type_name"), WRONG)
def test_a_wrong_value_in_a_string_is_refused_with_key_and_type(
    adapter_type: type[CacheAdapter], key: str, value: str, type_name: str
) -> None:
    refusal = _refusal(adapter_type, f'{{"{key}": {value}}}', "CONF-4")
    missing = [part for part in (key, type_name) if part not in refusal]
    assert not missing, f"CONF-4: {value} as {key} is refused without {missing} in {refusal!r}"


@clause("CONF-4")
@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in NOT_FINITE.items() for text in texts])
def test_a_value_that_is_not_finite_is_refused(
    adapter_type: type[CacheAdapter], tmp_path: Path, name: str, text: str
) -> None:
    path = _file(tmp_path, name, text)
    refusal = _refusal(adapter_type, f"@{path}", "CONF-4")
    missing = [part for part in ("prefetch_timeout_base", "float", str(path)) if part not in refusal]
    assert not missing, f"CONF-4: {text!r} is refused without {missing} in {refusal!r}"


@clause("CONF-4")
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_nan_and_infinity_in_json_are_refused(adapter_type: type[CacheAdapter], value: str) -> None:
    refusal = _refusal(adapter_type, f'{{"prefetch_timeout_base": {value}}}', "CONF-4")
    assert refusal, f"CONF-4: {value} is refused without a word"


@clause("CONF-4")
@pytest.mark.parametrize(("name", "text"), NO_TABLE.items(), ids=NO_TABLE)
def test_a_top_level_that_is_not_a_table_is_refused(
    adapter_type: type[CacheAdapter], tmp_path: Path, name: str, text: str
) -> None:
    path = _file(tmp_path, name, text)
    refusal = _refusal(adapter_type, f"@{path}", "CONF-4")
    missing = [part for part in ("str" if text == "text" else "list", str(path)) if part not in refusal]
    assert not missing, f"CONF-4: {text!r} is refused without {missing} in {refusal!r}"


@clause("CONF-4")
@pytest.mark.parametrize("wrong", CHANGED)
def test_a_refused_configuration_changes_nothing(adapter_type: type[CacheAdapter], wrong: str) -> None:
    before = _read(adapter_type, json.dumps(OPTIONS))
    text = json.dumps({**CHANGED, "path": "/other", wrong: "wrong"})
    refusal = _refusal(adapter_type, text, "CONF-4")
    assert wrong in refusal, f"CONF-4: expected the key {wrong} in {refusal!r}"
    after = _read(adapter_type, "{}")
    assert after == (DEFAULTS, {}), f"CONF-4: {text} was refused, but what is read next is {after}"
    assert before == (DEFAULTS, OPTIONS), f"CONF-4: {text} was refused, but what was read before became {before}"
