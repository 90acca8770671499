"""The interface of an engine's source: which adapter drives it, and what it lacks by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache.engines import interface
from hicache.engines.source import Source
from hicache.engines.vllm.adapter import Vllm0320, Vllm0330
from hicache.testing.load import load_adapter
from hicache.testing.plugin.options import ENGINE_SOURCE

CACHE = """
from engine.params import EvictParams as Asked, Handle
from .params import *
from somewhere_else import External

class Base(External):
    def evict(self, params: Asked, *, timeout=1.0): ...

class Cache(Base):
    size: int = 0
    if size:
        def step(self): ...

    def __init__(self, params, rows, width=1, *, kind, mode=None):
        self.root_node = params

    def ready(self, **options): ...

try:
    from engine.params import prepare
except ImportError:
    prepare = None
"""

PARAMS = "class EvictParams:\n    tokens: int = 0\n\nHandle = int\n\ndef prepare(cache): ...\n"

LACKED = {
    "Cache": "",
    "Cache.size": "",
    "Cache.step()": "",
    "Cache.root_node": "",
    "Cache.evict(timeout)": "",
    "Cache.ready(anything)": "",
    "Cache(kind)": "",
    "Cache(!width)": "",
    "Cache(!mode)": "",
    "Cache(!other)": "",
    "Asked(tokens)": "",
    "Handle": "",
    "External.anything()": "",
    "prepare(cache)": "",
    "Cash": "engine.cache has no Cash",
    "Cache.length": "Cache has no field length",
    "Cache.insert()": "Cache has no method insert",
    "Cache.evict(limit)": "Cache.evict has no parameter limit",
    "Cache(depth)": "Cache has no parameter depth",
    "Cache(!rows)": "Cache requires the parameter rows",
    "Cache(!kind)": "Cache requires the parameter kind",
    "Asked.num_tokens": "Asked has no field num_tokens",
    "Asked(num_tokens)": "Asked has no parameter num_tokens",
}
"""Names, and what a source with these two modules lacks of each."""


def write(root: Path, **modules: str) -> Path:
    """Write a package `engine` with these modules; returns its root."""
    (root / "engine").mkdir(parents=True)
    for name, text in modules.items():
        (root / "engine" / f"{name}.py").write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize("name", LACKED)
def test_what_a_source_lacks_is_named(tmp_path: Path, name: str) -> None:
    source = Source(write(tmp_path, cache=CACHE, params=PARAMS))
    found = list(source.lacking([("engine.cache", name)]))
    assert found == [LACKED[name]] * bool(LACKED[name]), f"{name}: got {found}"


def test_a_module_is_a_name_too(tmp_path: Path) -> None:
    source = Source(write(tmp_path, cache=""))
    found = list(source.lacking([("engine.cache", ""), ("engine.tree", ""), ("engine.tree", "Node")]))
    assert found == ["there is no module engine.tree"] * 2, f"got {found}"


def rows(*names: str) -> tuple[interface.Interface, ...]:
    """Interfaces of releases 1, 2, ...; each with a name more than the one before it."""
    needed = [frozenset(("engine.cache", name) for name in names[:count]) for count in range(1, len(names) + 1)]
    return tuple(interface.Interface({str(count): "module:Engine"}, {}, has) for count, has in enumerate(needed, 1))


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with one engine of three interfaces, and no source."""
    monkeypatch.setattr(interface, "interfaces", lambda: {"engine": rows("a", "b", "c")})
    monkeypatch.delenv(ENGINE_SOURCE.variable, raising=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = b = c = d = 1", "3"),
        ("a = b = 1", "2"),
        ("a = c = 1", "1"),
        (
            "b = c = 1",
            "that no adapter drives: engine.cache has no a (the nearest is that of 3)",
        ),
        ("a: int = (", "cache.py:1 is not for Python"),
        (None, "has no package engine"),
    ],
)
@pytest.mark.usefixtures("engines")
def test_the_newest_interface_that_a_source_has_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, expected: str
) -> None:
    other = {} if text is None else {"cache": text}
    root = write(tmp_path / "python", **other)
    (root / "beside").mkdir()
    (root / "beside" / "__init__.py").touch()
    monkeypatch.setenv(ENGINE_SOURCE.variable, str(tmp_path))
    if expected.isdecimal():
        found = interface.find_interface("engine").require("engine").release
        assert found == expected, f"{text}: expected the interface of {expected}, got that of {found}"
    else:
        with pytest.raises(ImportError) as raised:
            interface.find_interface("engine").require("engine")
        assert expected in str(raised.value), f"{text}: expected {expected}, got {raised.value}"


def test_an_adapter_refuses_another_interface(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    *_, newest = interface.interfaces()["vllm"]
    monkeypatch.setattr(interface, "package_root", lambda _: tmp_path)
    monkeypatch.setattr(interface, "_find", lambda *_: interface.FoundInterface(newest, tmp_path, ()))
    interface.require_interface("vllm", Vllm0330)
    with pytest.raises(ImportError, match=r"Vllm0320 drives .* vllm 0\.32\.0, but .* has that of 0\.33\.0"):
        interface.require_interface("vllm", Vllm0320)
    assert load_adapter("hicache.engines.vllm:Checkout") is Vllm0330, "a checkout is driven by the adapter that fits"


@pytest.mark.parametrize("engine", interface.interfaces())
def test_each_adapter_of_the_table_can_be_loaded(engine: str) -> None:
    for row in interface.interfaces()[engine]:
        for path in (*row.releases.values(), *row.checkouts.values()):
            assert load_adapter(path).interface == 2, f"{path} is not an adapter of this interface"
