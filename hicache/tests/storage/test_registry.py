"""open_backend: each way to name a backend, and what is said of a name that leads to none, or to no library."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from hicache.errors import ConfigurationError
from hicache.storage import registry
from hicache.storage.memory import MemoryStorage
from hicache.storage.registry import open_backend

from .conftest import SCOPE


class TheirStorage(MemoryStorage):
    """A third party's."""


NO_BACKEND = dict[str, int]
THEIRS = f"{__name__}:TheirStorage"


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package announces the backend `theirs`."""
    point = EntryPoint("theirs", THEIRS, registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == point.group else [])


@pytest.mark.usefixtures("announced")
@pytest.mark.parametrize(
    ("name", "expected"), [("memory", MemoryStorage), ("theirs", TheirStorage), (THEIRS, TheirStorage)]
)
def test_a_backend_is_found_by_each_kind_of_name(name: str, expected: type) -> None:
    opened = open_backend(name, SCOPE, {})
    assert type(opened) is expected, f"STORE-11: {name} is {expected.__name__}, got {type(opened).__name__}"


@pytest.mark.parametrize("name", registry.BACKENDS)
def test_each_name_of_ours_leads_to_a_class(name: str) -> None:
    assert registry.backend_class(name).__module__.startswith("hicache.storage."), f"{name} is one of ours"


@pytest.mark.usefixtures("announced")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "no_such_name",
            (
                "'no_such_name' is unknown",
                "known: memory, file, slotfile, hf3fs, redis, objects, nixl, nixl-objects, mooncake, audited, faulty",
                "theirs",
                "module:Class",
            ),
        ),
        (":Class", ("':Class' is unknown",)),
        ("no_such_module:Class", ("No module named 'no_such_module'",)),
        (f"{__name__}:Nothing", ("has no attribute 'Nothing'",)),
        (f"{__name__}:NO_BACKEND", ("no subclass of StorageBackend",)),
    ],
)
def test_a_name_that_leads_to_none_is_told(name: str, said: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        open_backend(name, SCOPE, {})
    for words in said:
        assert words in str(raised.value), f"STORE-11: expected {words!r} in {raised.value}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"capacity": 1}, ("no option 'capacity'", "capacity_bytes store")),
        ({"capacity_bytes": True}, ("'capacity_bytes'", "True (bool)")),
        ({"capacity_bytes": 0}, ("'capacity_bytes'", "0 (int)")),
        ({"capacity_bytes": "1"}, ("'capacity_bytes'", "'1' (str)")),
        ({"store": ""}, ("'store'", "''")),
    ],
)
def test_options_that_cannot_be_are_named(options: Mapping[str, Any], said: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        open_backend("memory", SCOPE, options)
    for words in ("'memory'", *said):
        assert words in str(raised.value), f"CONF-4: expected {words!r} in {raised.value}"


LIBRARIES: Mapping[str, tuple[str, str]] = {
    "redis": ("redis", ""),
    "objects": ("obstore", ""),
    "mooncake": ("mooncake.store", ""),
    "nixl": ("nixl._api", r"nixl\._api.*"),
    "nixl-objects": ("obstore", ""),
}
"""By backend and extra: the module of its client, and what is said before the extra."""


@pytest.mark.parametrize(("name", "library", "said"), [(name, *one) for name, one in LIBRARIES.items()])
def test_a_client_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, library: str, said: str
) -> None:
    for module in (library, library.partition(".")[0]) if name == "mooncake" else (library,):
        monkeypatch.setitem(sys.modules, module, None)
    options = {"nixl": {"root": str(tmp_path)}, "nixl-objects": {"bucket": "pages"}}.get(name, {})
    with pytest.raises(ConfigurationError, match=rf"{said}pip install 'hicache\[{name}\]'"):
        open_backend(name, SCOPE, options)
