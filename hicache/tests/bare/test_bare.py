"""The wheel without extras: the cache works, pytest is not disturbed, and the kit's commands name the extra."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, cast

import pytest

import hicache
from hicache.storage.file import FileStorage
from hicache.testing.requirements import LIBRARIES

MODELS = ("datasets", "lm_eval", "safetensors", "torch", "transformers")
KIT = ("hicache.cli", "hicache.suites", "hicache.testing")
INSTALL = "pip install 'hicache[testing]'"
SUITES = ("conformance", "distributed_tests", "properties")


def core_modules() -> Iterator[str]:
    """Every module of the wheel that does not belong to the kit."""
    for package in walk_packages(hicache.__path__, "hicache."):
        if not package.name.startswith(KIT):
            yield package.name


def run(folder: Path, *command: str) -> tuple[int, str]:
    """Run a Python of this environment in a folder. Returns the exit code and everything it printed."""
    done = subprocess.run([sys.executable, *command], cwd=folder, check=False, text=True, capture_output=True)
    return done.returncode, done.stdout + done.stderr


def script(name: str) -> str:
    """The path of a console script of this environment."""
    return str(Path(sys.executable).with_name(name))


def test_the_wheel_is_tested_and_not_the_checkout() -> None:
    assert "site-packages" in hicache.__file__, f"hicache is imported from {hicache.__file__}"


@pytest.mark.parametrize("library", [*sorted(set(LIBRARIES) - {"pytest"}), *MODELS])
def test_no_library_of_an_extra_is_installed(library: str) -> None:
    assert find_spec(library) is None, f"{library} is installed: the tests of this folder prove nothing"


def test_importing_hicache_loads_neither_torch_nor_numpy(tmp_path: Path) -> None:
    program = "import sys, hicache; print(sorted({'torch', 'numpy', 'yaml', 'xxhash'} & set(sys.modules)))"
    code, output = run(tmp_path, "-c", program)
    assert (code, output) == (0, "[]\n"), f"expected 0 and [], got {code}: {output}"


def test_every_module_of_the_core_can_be_imported() -> None:
    names = list(core_modules())
    assert "hicache.cache" in names, f"hicache.cache is not among the modules of the core: {names}"
    for name in names:
        import_module(name)


OPENINGS: Mapping[str, Callable[[], object]] = {
    "a cache with a model": lambda: hicache.open_cache(
        capacity_tokens=64, model=hicache.ModelShape.hybrid(full_layers=1, kv_heads=1, head_dim=8, dtype="bfloat16")
    ),
    "device 'cuda:1'": lambda: hicache.open_cache(capacity_tokens=64, device="cuda:1"),
    "open_groups": lambda: hicache.open_groups(hicache.Topology(tp_size=2), cast(Any, None), "cpu", 1.0),
}


@pytest.mark.parametrize("user", OPENINGS)
def test_what_needs_torch_names_the_extra(user: str) -> None:
    with pytest.raises(hicache.HiCacheError) as refusal:
        OPENINGS[user]()
    expected = f"{user} needs torch, which is not installed: pip install 'hicache[torch]'"
    assert str(refusal.value) == expected, f"expected {expected!r}, got {str(refusal.value)!r}"


def test_slots_without_tensors_go_to_the_host_and_come_back() -> None:
    prompt = list(range(128))
    host = hicache.HostConfig(capacity_tokens={"full": 128})
    with hicache.open_cache(page_size=16, capacity_tokens=128, host=host) as cache:
        requests = hicache.RequestManager(cache)
        request = requests.admit(prompt)
        assert request is not None, "the cache has room"
        requests.finish(request)
        cache.drain()
        evicted = cache.evict("full", len(prompt)).freed["full"]
        found = cache.match(cache.key(prompt))
    expected = (len(prompt), len(prompt))
    assert (evicted, found.host_hit_length) == expected, f"expected {expected}, got {evicted}, {found}"


def test_files_store_pages(tmp_path: Path) -> None:
    store, page = FileStorage("scope", {"root": str(tmp_path)}), bytearray(64)
    try:
        stored = store.set(["key"], [[memoryview(b"7" * 64)]], ())
        read = store.get(["key"], [[memoryview(page)]], ())
    finally:
        store.close()
    assert (stored, read, bytes(page)) == ([True], [True], b"7" * 64), f"got {stored}, {read}, {bytes(page)!r}"


def test_a_file_in_yaml_names_the_extra(tmp_path: Path) -> None:
    assert find_spec("yaml") is None, "pyyaml is installed: the test proves nothing"
    path = tmp_path / "cache.yaml"
    path.write_text("capacity_tokens: {full: 16}", encoding="utf-8")
    with pytest.raises(hicache.HiCacheError) as refusal:
        hicache.read_config(f"@{path}")
    expected = f"{path}: YAML needs pyyaml: pip install 'hicache[yaml]'"
    assert str(refusal.value) == expected, f"expected {expected!r}, got {str(refusal.value)!r}"


def test_metrics_name_the_extra() -> None:
    assert find_spec("prometheus_client") is None, "prometheus-client is installed: the test proves nothing"
    with pytest.raises(hicache.HiCacheError) as refusal:
        hicache.CacheMetrics()
    expected = "metrics need prometheus-client: pip install 'hicache[metrics]'"
    assert str(refusal.value) == expected, f"expected {expected!r}, got {str(refusal.value)!r}"


def test_the_plugin_is_registered_for_pytest() -> None:
    found = [one.value for one in entry_points(group="pytest11", name="hicache")]
    assert found == ["hicache.testing.plugin.hooks"], f"expected the plugin's module, found {found}"


def test_pytest_runs_an_unrelated_test(tmp_path: Path) -> None:
    (tmp_path / "test_unrelated.py").write_text("def test_passes():\n    assert True\n", encoding="utf-8")
    code, output = run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error")
    assert code == 0, f"expected 0, got {code}: {output}"
    assert "hicache-" in output, f"expected the plugin in the header: {output}"
    assert "1 passed" in output, f"expected one test to pass: {output}"


@pytest.mark.parametrize(
    "option", [("--hicache-adapter", "somewhere:Cache"), ("--hicache-report", "out"), ("--hicache-backend", "file")]
)
def test_an_option_of_the_plugin_names_the_extra(tmp_path: Path, option: tuple[str, str]) -> None:
    code, output = run(tmp_path, "-m", "pytest", *option)
    assert code == pytest.ExitCode.USAGE_ERROR, f"expected {pytest.ExitCode.USAGE_ERROR}, got {code}: {output}"
    assert output.count(INSTALL) == 1, f"expected {INSTALL} once: {output}"
    assert "Traceback" not in output, f"expected a message and no traceback: {output}"


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_names_the_extra(tmp_path: Path, suite: str) -> None:
    code, output = run(tmp_path, "-m", "pytest", "--pyargs", f"hicache.suites.{suite}", "-p", "no:cacheprovider")
    assert code == pytest.ExitCode.USAGE_ERROR, f"expected {pytest.ExitCode.USAGE_ERROR}, got {code}: {output}"
    assert INSTALL in output, f"expected {INSTALL}: {output}"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("verify",), ("replay", "trace.jsonl")])
def test_the_console_script_names_the_extra(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run([script("hicache"), *arguments], cwd=tmp_path, check=False, text=True, capture_output=True)
    expected = f"hicache: this command needs the kit: {INSTALL}\n"
    assert (done.returncode, done.stderr) == (2, expected), f"got {done.returncode}: {done.stderr}"
    assert not done.stdout, f"expected nothing on standard output, got {done.stdout}"
