"""The types of an installed package, as a user's type checker sees them: of the wheel, and of an editable install."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from hicache.testing.plugin.tags import SUITES
from hicache.tests.docs.installation import install_alone
from hicache.tests.kit.test_packaging import SETUPTOOLS

PROGRAM = """\
import hicache

with hicache.open_cache(page_size=16, capacity_tokens=64) as cache:
    reveal_type(cache)
    reveal_type(hicache.RequestManager(cache).admit([1, 2]))
    hicache.open_cache(page_sise=16, capacity_tokens=64)
    hicache.open_cache(page_size="16", capacity_tokens=64)
    cache.key(["1"])
    length: str = cache.length(cache.key([1, 2]))
    hicache.open_cash()
"""

PYRIGHT = shutil.which("pyright", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))

REVEALED = {4: "UnifiedRadixCache", 5: "Request | None"}
WRONG = [6, 7, 8, 9, 10]
"""By line of the program: the type that a checker reveals, without its module; and where it finds an error."""


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the package in one of its two kinds of installs, and with no library."""
    environment = install_alone(tmp_path_factory.mktemp("installed"), editable=request.param == "editable")
    return environment / "bin" / "python"


def output_of(*command: str | Path, folder: Path) -> str:
    """What a command that ends with 0 or 1 prints."""
    done = subprocess.run(command, cwd=folder, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode in (0, 1), f"{command} ended with {done.returncode}: {done.stdout}"
    return done.stdout


def require_types(revealed: Mapping[int, str], wrong: list[int], printed: str) -> None:
    """Revealed types and lines of errors are those of the program. Types may have their module before them."""
    short = {line: re.sub(r"\b\w+\.", "", text) for line, text in revealed.items()}
    assert short == REVEALED, f"expected the types {REVEALED}, got:\n{printed}"
    assert wrong == WRONG, f"expected errors in lines {WRONG} alone, got:\n{printed}"


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed: it is in the extra `dev`")
def test_mypy_reads_the_types_of_an_install(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    python = ("--python-executable", installed, "--cache-dir", tmp_path / "cache", "--config-file", "")
    printed = output_of(sys.executable, "-m", "mypy", *python, "program.py", folder=tmp_path)
    revealed = dict(re.findall(r'^program.py:(\d+): note: Revealed type is "(.*)"$', printed, re.MULTILINE))
    errors = re.findall(r"^program.py:(\d+): error:", printed, re.MULTILINE)
    require_types({int(line): text for line, text in revealed.items()}, sorted(map(int, errors)), printed)


@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed: `npm install -g pyright`")
def test_pyright_reads_the_types_of_an_install(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    printed = output_of(str(PYRIGHT), "--outputjson", "--pythonpath", installed, "program.py", folder=tmp_path)
    found = [(one["range"]["start"]["line"] + 1, one) for one in json.loads(printed)["generalDiagnostics"]]
    revealed = {
        line: one["message"].rpartition(" is ")[2].strip('"') for line, one in found if one["severity"] == "information"
    }
    require_types(revealed, sorted(line for line, one in found if one["severity"] == "error"), printed)


def test_every_package_is_found_in_an_install_and_no_suite_beside_it(installed: Path, tmp_path: Path) -> None:
    asked = [*SETUPTOOLS["packages"], *SUITES]
    program = f"from importlib.util import find_spec; print(*(name for name in {asked} if find_spec(name)))"
    found = output_of(installed, "-c", program, folder=tmp_path).split()
    assert found == SETUPTOOLS["packages"], f"expected the packages of the wheel alone, got {found}"
