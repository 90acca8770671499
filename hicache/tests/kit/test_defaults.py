"""Each default of a configuration is opened by a test of the conformance suite, which holds it to its clause."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any

import conformance.test_defaults as suite
from conformance.test_extra_config import DEFAULTS
from hicache.config import CacheConfig, ExtraConfig, HostConfig
from hicache.config_mapping import keys_of


def keys_with_a_default(kind: Any) -> Iterator[str]:
    """The keys that a configuration may lack, by their paths."""
    for path, one in keys_of(kind):
        if one.default is not MISSING or one.default_factory is not MISSING:
            yield path


def not_opened(kind: Any) -> set[str]:
    """The defaults that no test leaves out, and the keys without a default that one does."""
    return {*keys_with_a_default(kind)} ^ {key for keys in suite.LEFT_OUT.values() for key in keys}


def test_each_default_is_opened_by_a_test() -> None:
    assert not not_opened(CacheConfig), f"conformance/test_defaults.py, LEFT_OUT: {not_opened(CacheConfig)}"
    own = {one.name for one in fields(ExtraConfig)} - {"options"}
    assert own == DEFAULTS.keys(), f"conformance/test_extra_config.py, DEFAULTS: expected {own}, got {set(DEFAULTS)}"


def test_each_entry_is_opened_by_a_test_of_a_clause() -> None:
    tests = [inspect.getsource(one) for name, one in vars(suite).items() if name.startswith("test_")]
    found = {name for text in tests for name in re.findall(r'opened_without\(driver, "([^"]+)"', text)}
    assert found == suite.LEFT_OUT.keys(), f"LEFT_OUT has {[*suite.LEFT_OUT]}, the tests open {sorted(found)}"


def test_a_new_default_is_noticed() -> None:
    @dataclass(frozen=True)
    class Larger(HostConfig):
        new: int = 3

    assert "new" in {*keys_with_a_default(Larger)}, "expected a new field with a default among the keys"
