"""Extra configurations: equal in every format, whole or refused by name. Without torch, on Python 3.10 too."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.config import OWN_KEYS, ExtraConfig, read_extra_config
from hicache.errors import ConfigurationError
from hicache.tests.core.written_tables import written

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
    text = (Path(__file__).parents[3] / "docs" / "architecture.md").read_text(encoding="utf-8")
    row = f"| `{key}` | `{json.dumps(getattr(ExtraConfig(), key))}` | "
    assert row in text, f"CONF-3: expected a row that begins with {row!r} in the section on configuration"
