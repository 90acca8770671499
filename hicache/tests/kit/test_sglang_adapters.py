"""The adapters of SGLang's releases, with and without SGLang, and their lists of known failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hicache.config import CacheConfig
from hicache.testing import adapters
from hicache.testing.adapter import Capability, load_adapter
from hicache.testing.adapters.sglang_import import sglang_version
from hicache.testing.adapters.sglang_view import extra_key
from hicache.testing.configurations import standard_configurations
from hicache.testing.driving.driver import Driver
from hicache.testing.plugin.known_failures import read_known_failures
from hicache.types import SHARED, Namespace

ADAPTERS = {"Sglang0513": "0.5.13.post1", "Sglang0523Python": "0.5.23", "Sglang0523Rust": "0.5.23"}
"""Each adapter class, and the release that it needs."""

LISTS = sorted((Path(adapters.__file__).parent / "known").glob("*.toml"))
ROOT = Path(__file__).parents[3]

EVERY_ADAPTER = pytest.mark.parametrize("name", ADAPTERS)


def tiny(name: str) -> CacheConfig:
    """The standard configuration of this name."""
    return next(config for config in standard_configurations(frozenset(Capability)) if config.name == name)


def path_of(name: str) -> str:
    """The adapter's path, as an option takes it."""
    return f"hicache.testing.adapters.sglang:{name}"


@EVERY_ADAPTER
def test_an_adapter_can_be_named_where_sglang_is_not_installed(name: str) -> None:
    adapter = load_adapter(path_of(name))
    assert Capability.SIZES in adapter.capabilities, f"{name} expected SIZES, got {adapter.capabilities}"


@EVERY_ADAPTER
def test_an_adapter_refuses_another_release(name: str) -> None:
    if sglang_version() == ADAPTERS[name]:
        pytest.skip(f"sglang {ADAPTERS[name]}, which {name} drives, is the one that is installed")
    with pytest.raises(ImportError, match="sglang"):
        load_adapter(path_of(name))(tiny("full/page1/lru"))


@EVERY_ADAPTER
@pytest.mark.parametrize("kind", ["full/page16/lru", "full+swa/page16/lru", "full+mamba/page16/lru"])
def test_what_is_put_is_found_and_read_back(name: str, kind: str) -> None:
    if sglang_version() != ADAPTERS[name]:
        pytest.skip(f"sglang {ADAPTERS[name]} is not installed: found {sglang_version() or 'none'}")
    config = tiny(kind)
    driver = Driver(load_adapter(path_of(name))(config), config)
    key = driver.key(driver.prompt([1, 2]), Namespace(lora="a", salt=None, tenant=None))
    driver.put(key)
    found = driver.match(key)
    assert len(found.device_indices) == 32, f"two pages of 16 were put, got {found}"
    assert not len(driver.match(replace(key, namespace=SHARED)).device_indices), "another namespace finds nothing"
    driver.verify_state(key, found)


def test_no_two_namespaces_are_one_text() -> None:
    named = [{"lora": "a"}, {"salt": "a"}, {"lora": "a", "salt": ""}, {"lora": "a", "salt": "b"}, {"lora": "ab"}]
    texts = [extra_key({"lora": one.get("lora"), "salt": one.get("salt")}) for one in named]
    assert len(set(texts)) == len(named), f"each namespace has a text of its own, got {texts}"
    assert extra_key({"lora": None, "salt": None}) is None, "expected None for the shared namespace"


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_a_list_of_known_failures_names_tests_that_there_are(path: Path) -> None:
    for entry in read_known_failures(path):
        file, _, name = entry.id.partition("::")
        if name:
            function = name.partition("[")[0].partition("*")[0]
            source = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {function}" in source, f"{entry.place}: no test in {file} begins with {function}"
