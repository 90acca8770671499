"""The wheel contains every package, suite and data file of the project, and none of its own tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hicache.tables import read_table
from hicache.testing.plugin.tags import SUITES

ROOT = Path(__file__).parents[3]
SETUPTOOLS: dict[str, Any] = read_table(f"@{ROOT / 'pyproject.toml'}")["tool"]["setuptools"]


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
    expected = {f"hicache.suites.{suite}": suite for suite in SUITES if (ROOT / suite).exists()}
    mapped = SETUPTOOLS.get("package-dir", {})
    assert mapped == expected, f"pyproject.toml, package-dir: expected {expected}, got {mapped}"


def test_the_wheel_holds_every_data_file() -> None:
    patterns = SETUPTOOLS["package-data"]["*"]
    packages = folders_of_packages(ROOT).values()
    taken = {path for folder in packages for pattern in patterns for path in folder.glob(pattern)}
    left_out = {path for folder in packages for path in data_files(folder)} - taken
    assert not left_out, f"pyproject.toml, package-data: no pattern of {patterns} takes {left_out}"


def test_packages_are_found_by_their_name_in_the_wheel(tmp_path: Path) -> None:
    for module in ("hicache/tree/node.py", "hicache/tests/core/test_a.py", "conformance/keys/test_b.py"):
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
