"""constraints-testing.txt pins what the extras `testing` and `torch` install, within the ranges of pyproject.toml."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

from hicache.config import read_table

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = read_table(f"@{ROOT / 'pyproject.toml'}")["project"]
EXTRAS = PROJECT["optional-dependencies"]
WANTED = [Requirement(one) for one in (*PROJECT["dependencies"], *EXTRAS["testing"], *EXTRAS["torch"])]


def pins(name: str) -> list[Requirement]:
    """The lines of a constraints file without the comments."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


LOCK = pins("constraints-testing.txt")


def pinned(locked: Iterable[Requirement], name: str) -> list[Requirement]:
    """The pins of one library; several where its version depends on the Python."""
    return [one for one in locked if canonicalize_name(one.name) == canonicalize_name(name)]


def version_of(pin: Requirement) -> str:
    (exact,) = pin.specifier
    return exact.version


def test_each_line_pins_one_release() -> None:
    wrong = [str(pin) for pin in LOCK if not re.fullmatch(r"==\d+(\.\d+)*(\.post\d+)?", str(pin.specifier))]
    assert not wrong, f"constraints-testing.txt: expected name==release in each line, got {wrong}"


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_each_dependency_is_pinned_within_its_range(wanted: Requirement) -> None:
    found = pinned(LOCK, wanted.name)
    assert found, f"constraints-testing.txt: no version of {wanted}"
    wrong = [str(pin) for pin in found if version_of(pin) not in wanted.specifier]
    assert not wrong, f"constraints-testing.txt: expected versions within {wanted}, got {wrong}"


def test_this_repository_pins_no_other_version() -> None:
    own = {pin.name: version_of(pin) for pin in pins("constraints.txt") if pinned(LOCK, pin.name)}
    assert "torch" in own, f"torch is pinned in both files, got {own}"
    locked = {name: {version_of(pin) for pin in pinned(LOCK, name)} for name in own}
    assert locked == {name: {version} for name, version in own.items()}, f"constraints.txt {own}, the lock {locked}"


@pytest.mark.parametrize("release", ["3.10.0", "3.11.7", "3.12.1", "3.13.0", "3.14.0"])
def test_one_version_of_each_applies_to_a_python(release: str) -> None:
    python = {"python_full_version": release, "python_version": release.rpartition(".")[0]}
    names = [pin.name for pin in LOCK if pin.marker is None or pin.marker.evaluate(python)]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"Python {release}: expected one version of each, got several of {sorted(twice)}"
    missing = [
        wanted.name
        for wanted in WANTED
        if (wanted.marker is None or wanted.marker.evaluate(python)) and not pinned(LOCK, wanted.name)
    ]
    assert not missing, f"Python {release}: no version of {missing}"


def installed(wanted: Iterable[Requirement]) -> dict[NormalizedName, str]:
    """The version of each library that these requirements brought, and what those require, on this machine."""
    found: dict[NormalizedName, str] = {}
    queue = [(one.name, frozenset(one.extras)) for one in wanted if one.marker is None or one.marker.evaluate()]
    seen = set(queue)
    for name, extras in queue:
        try:
            one = distribution(name)
        except PackageNotFoundError:
            continue  # such as torch, and the CUDA libraries that its CPU build leaves out
        found[canonicalize_name(name)] = Version(one.version).public
        for requirement in map(Requirement, one.requires or ()):
            applies = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
            )
            following = (requirement.name, frozenset(requirement.extras))
            if applies and following not in seen:
                seen.add(following)
                queue.append(following)
    return found


@pytest.mark.skipif("HICACHE_LOCKED" not in os.environ, reason="the installation was not made from the lock")
def test_what_is_installed_has_the_pinned_version() -> None:
    found = installed(WANTED)
    expected = {canonicalize_name(pin.name): version_of(pin) for pin in LOCK if not pin.marker or pin.marker.evaluate()}
    wrong = {name: (version, expected.get(name)) for name, version in found.items() if expected.get(name) != version}
    assert not wrong, f"constraints-testing.txt: installed and pinned versions differ: {wrong}"


def test_what_is_installed_is_found_with_what_it_requires() -> None:
    found = installed([Requirement("pytest"), Requirement("no-such-library; python_version < '3'")])
    assert {"pytest", "pluggy", "packaging"} <= set(found), f"expected pytest and what it requires, got {found}"
