"""load_adapter with a device: each configuration is opened there, or the device is missing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from hicache.testing import load
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.caches.reference import ModelledReference, ReferenceAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.devices import missing_device
from hicache.testing.load import load_adapter, moved

REFERENCE = "hicache.testing.caches.reference:ReferenceAdapter"
MODELLED = f"{ModelledReference.__module__}:{ModelledReference.__name__}"

CONFIGURATIONS = {config.name: config for config in standard_configurations(ModelledReference.capabilities)}
THREADED = CONFIGURATIONS["full/page16/lru/write_through-page_first-threaded"]
STREAMS = CONFIGURATIONS["full/page16/lru/write_through-page_first-streams"]


@pytest.mark.skipif(not missing_device("cuda"), reason="this machine has a GPU")
def test_a_device_that_is_missing_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"ReferenceAdapter on cuda: torch finds no CUDA device for 'cuda'"):
        load_adapter(f"{REFERENCE}@cuda")


def test_a_configuration_is_opened_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "missing_device", lambda _: "")
    found = load_adapter(f"{MODELLED}@cuda:1")
    lost = ModelledReference.capabilities - found.capabilities
    assert lost == {Capability.STEPPED, Capability.STEPPED_STORAGE, Capability.HELD}, f"got {lost}"
    name, expected = [(one.__module__, one.__qualname__) for one in (found, ModelledReference)]
    assert name == expected, f"expected {expected}, got {name}"
    cache: Any = found(THREADED)
    assert {str(stream.device) for stream in cache.cuda.streams} == {"cuda:1"}, f"got {cache.cuda.streams}"
    cache.close()


def test_on_a_gpu_streams_copy_and_on_a_cpu_threads() -> None:
    pairs = {"cuda:1": (THREADED, STREAMS), "cpu": (STREAMS, THREADED)}
    for device, (given, wanted) in pairs.items():
        expected, got = replace(wanted, device=device), moved(given, device)
        assert got == expected, f"expected {expected}, got {got}"


def test_the_cpu_takes_no_capability() -> None:
    found = load_adapter(f"{REFERENCE}@cpu")
    assert found.capabilities == load_adapter(REFERENCE).capabilities, f"got {found.capabilities}"


WRONG = {
    "profile": ({"profile": "tre"}, "profile 'tre' is none of tree, blocks, offload"),
    "departure": ({"departures": frozenset({"EVICT-99"})}, "departures: the contract has no clause EVICT-99"),
    "capability": ({"capabilities": {"VERBS"}}, "capabilities must be members of Capability, got 'VERBS'"),
}


SHOWN = {
    "snapshot": ("tree", {Capability.SNAPSHOT}, "SNAPSHOT without snapshot()"),
    "blocks": (
        "blocks",
        {Capability.SNAPSHOT, Capability.TABLES},
        "SNAPSHOT without block_snapshot(), TABLES ",
    ),
    "sizes": ("tree", {Capability.SIZES}, "SIZES without sizes()"),
    "bytes": ("tree", {Capability.BYTES}, "BYTES without layers(), slot_bytes(), write(), read()"),
    "tables": ("offload", {Capability.TABLES}, "TABLES without tables()"),
}


@pytest.mark.parametrize(("profile", "capabilities", "expected"), SHOWN.values(), ids=SHOWN)
def test_what_the_driver_reads_after_each_verb_must_be_there(
    profile: str, capabilities: set[Capability], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = {"interface": 2, "profile": profile, "capabilities": frozenset({Capability.REQUESTS, *capabilities})}
    monkeypatch.setattr(load, "Declared", type("Declared", (CacheAdapter,), declared), raising=False)
    with pytest.raises(ValueError, match=re.escape(f"{load.__name__}:Declared' declares {expected}")):
        load_adapter(f"{load.__name__}:Declared")


@pytest.mark.parametrize(("declared", "expected"), WRONG.values(), ids=WRONG)
def test_what_does_not_exist_cannot_be_declared(
    declared: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "Declared", type("Declared", (ReferenceAdapter,), declared), raising=False)
    with pytest.raises(ValueError, match=f"{load.__name__}:Declared': {expected}"):
        load_adapter(f"{load.__name__}:Declared")


def test_an_old_name_is_loaded_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = load_adapter("hicache.testing." + "adapters.reference:ReferenceAdapter")
    assert found is ReferenceAdapter, f"got {found}"
    assert REFERENCE.partition(":")[0] in capsys.readouterr().err, "expected the new name on the standard error"
