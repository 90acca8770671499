"""The wheel contains every package, suite and data file, and none of our own tests; it requires what it imports."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from configparser import ConfigParser
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from hicache.config import read_table
from hicache.storage.registry import BACKENDS
from hicache.testing import requirements
from hicache.testing.plugin.tags import SUITES
from hicache.tests.architecture.layers import read_imports

ROOT = Path(__file__).parents[3]
TABLE: dict[str, Any] = read_table(f"@{ROOT / 'pyproject.toml'}")
PROJECT, SETUPTOOLS = TABLE["project"], TABLE["tool"]["setuptools"]
EXTRAS = PROJECT["optional-dependencies"]
IMPORTED_AS = {
    "mooncake-transfer-engine-non-cuda": "mooncake",
    "prometheus-client": "prometheus_client",
    "pyyaml": "yaml",
    "pytest-benchmark": "pytest_benchmark",
    "pytest-xdist": "xdist",
}
"""Libraries by the name that they are installed under, where it is not the one that they are imported under."""

KIT = ("testing", "tests", "cli")
OF_THE_CACHE = ("metrics", "torch", "yaml")
"""The extras of the cache itself. The others are those of the kit."""


def folders_of_packages(root: Path) -> dict[str, Path]:
    """The folder of each package that the wheel should contain, by its name there."""
    folders = {"hicache": root / "hicache"} | {f"hicache.suites.{suite}": root / suite for suite in SUITES}
    return {
        ".".join([name, *path.parent.relative_to(folder).parts]): path.parent
        for name, folder in folders.items()
        for path in folder.rglob("*.py")
        if path.relative_to(root).parts[:2] != ("hicache", "tests")
    }


def data_files(package: Path) -> Iterator[Path]:
    """Every file of a package that is not a module, in its folder and in subfolders without modules."""
    for path in package.iterdir():
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            yield path
        elif path.is_dir() and not any(path.rglob("*.py")):
            yield from data_files(path)


def test_the_wheel_holds_every_package() -> None:
    expected, listed = sorted(folders_of_packages(ROOT)), SETUPTOOLS["packages"]
    missing, gone = set(expected) - set(listed), set(listed) - set(expected)
    assert listed == expected, f"pyproject.toml, packages, in order: missing {missing}, not there {gone} in {listed}"


def test_each_suite_ships_below_hicache() -> None:
    expected = {suite: ROOT / suite for suite in SUITES if (ROOT / suite).exists()}
    linked = {path.name: path.resolve() for path in (ROOT / "hicache" / "suites").iterdir() if path.is_symlink()}
    assert linked == expected, f"hicache/suites: expected links {expected}, got {linked}"


def test_an_editable_install_puts_nothing_but_the_package_on_the_import_path() -> None:
    """Type checkers find the package in a folder of the import path, not by an import hook."""
    mapped = SETUPTOOLS["package-dir"]
    assert list(mapped) == [""], f"with any other key setuptools installs an import hook, got {mapped}"
    modules = {path.name: path.resolve() for path in (ROOT / mapped[""]).iterdir() if path.suffix != ".egg-info"}
    assert modules == {"hicache": ROOT / "hicache"}, f"{mapped['']}: expected the package alone, got {modules}"


def test_the_wheel_holds_every_data_file() -> None:
    patterns = SETUPTOOLS["package-data"]["*"]
    packages = folders_of_packages(ROOT).values()
    taken = {path for folder in packages for pattern in patterns for path in folder.glob(pattern)}
    left_out = {path for folder in packages for path in data_files(folder)} - taken
    assert not left_out, f"pyproject.toml, package-data: no pattern of {patterns} takes {left_out}"


def test_packages_are_found_by_their_name_in_the_wheel(tmp_path: Path) -> None:
    for module in ("hicache/tree/node.py", "hicache/tests/cache/core/test_a.py", "conformance/keys/test_b.py"):
        (tmp_path / module).parent.mkdir(parents=True)
        (tmp_path / module).touch()
    found = folders_of_packages(tmp_path)
    expected = {
        "hicache.tree": tmp_path / "hicache/tree",
        "hicache.suites.conformance.keys": tmp_path / "conformance/keys",
    }
    assert found == expected, f"expected {expected}, got {found}"


def test_data_files_are_found_beside_and_below_the_modules(tmp_path: Path) -> None:
    for name in ("a.py", "a.toml", "templates/a.html", "deeper/b.py", "deeper/b.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found, expected = set(data_files(tmp_path)), {tmp_path / "a.toml", tmp_path / "templates/a.html"}
    assert found == expected, f"expected {expected}, got {found}"


def imported_names(listed: Iterable[str]) -> set[str]:
    """What the requirements of a list are imported as. Leaves out extras of hicache."""
    names = (re.match(r"[\w-]+", requirement) for requirement in listed)
    return {IMPORTED_AS.get(found[0], found[0]) for found in names if found is not None} - {"hicache"}


def test_a_cache_requires_what_it_imports() -> None:
    core = [one for one in read_imports(ROOT, ("hicache",)) if one.path.split("/")[1] not in KIT]
    imported = {one.target.partition(".")[0] for one in core} - sys.stdlib_module_names
    # tomllib is in the standard library from Python 3.11 on.
    imported -= {"hicache", "tomllib"}
    extras = (*OF_THE_CACHE, *sorted(EXTRAS.keys() & BACKENDS.keys()))
    optional = {name for extra in extras for name in imported_names(EXTRAS[extra])}
    listed = imported_names(PROJECT["dependencies"]) | optional
    assert listed == imported, f"pyproject.toml, dependencies: expected {imported}, found {listed}"


TORCH_SINCE = {"abort": "2.7", "destroy_process_group": "2.8"}
"""What the core calls of torch that does not work in every release, by its name: the first release in which it does.

Before 2.8 the end of a group of gloo holds Python's lock while it waits for a thread that needs it: the process hangs.
"""


def test_the_oldest_torch_that_is_required_has_what_a_cache_calls() -> None:
    modules = [path for path in (ROOT / "hicache" / "parallel").glob("*.py") if "torch" in path.read_text("utf-8")]
    called = {
        node.attr
        for path in modules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in TORCH_SINCE
    }
    assert called == TORCH_SINCE.keys(), f"expected calls of {sorted(TORCH_SINCE)}, found {sorted(called)}"
    needed = max(TORCH_SINCE.values(), key=lambda release: [int(part) for part in release.split(".")])
    (required,) = EXTRAS["torch"]
    assert required == f"torch>={needed}", f"pyproject.toml: {sorted(called)} need torch {needed}, found {required}"
    tox = ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    tested = tox["testenv:oldest-torch"]["deps"].split()
    assert f"torch=={needed}.0" in tested, f"tox.ini, oldest-torch: expected torch=={needed}.0, found {tested}"


def test_torch_is_brought_by_the_extras_that_need_it_alone() -> None:
    listed = {"hicache": PROJECT["dependencies"], **EXTRAS}
    brought = {
        name for name, own in listed.items() if any(re.match(r"torch\b|hicache\[.*\btorch\b", one) for one in own)
    }
    assert brought == {"accuracy", "dev", "ranks", "torch"}, f"a cache of slots and the kit need none, got {brought}"


def test_the_kit_looks_for_what_its_extra_installs() -> None:
    expected, found = imported_names(EXTRAS["testing"]), set(requirements.LIBRARIES)
    assert found == expected, f"hicache/testing/requirements.py: expected {expected}, found {found}"


def test_a_library_that_is_missing_is_named() -> None:
    found = requirements.missing_libraries(("pytest", "hicache_has_no_such_library"))
    assert found == ["hicache_has_no_such_library"], f"expected the one that is not installed, found {found}"


def test_the_range_of_transformers_is_the_one_of_the_extra() -> None:
    expected = f"transformers>={requirements.OLDEST_TRANSFORMERS},<{requirements.BEFORE_TRANSFORMERS}"
    assert expected in EXTRAS["accuracy"], f"expected {expected} in {EXTRAS['accuracy']}"


@pytest.mark.parametrize(
    ("release", "is_supported"),
    [("4.57.6", False), ("5.18.0", False), ("5.19.0", True), ("5.23.0", True), ("5.24.0.dev0", True), ("6.0.0", False)],
)
def test_a_release_of_transformers_is_supported_or_named(
    monkeypatch: pytest.MonkeyPatch, release: str, is_supported: bool
) -> None:
    monkeypatch.setattr(requirements, "version", lambda _: release)
    words = requirements.unsupported_transformers()
    expected = "" if is_supported else f"transformers {release} is not supported, 5.19 or later and before 6 is"
    assert words.partition(":")[0] == expected, f"expected {expected!r}, found {words!r}"


def test_transformers_that_is_not_installed_is_no_unsupported_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(requirements, "version", missing)
    assert not requirements.unsupported_transformers(), "expected nothing to be said of a release"
