"""This checkout installed in an environment of its own, and a folder in which a user runs commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, replace
from fcntl import LOCK_EX, flock
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import mkdtemp

from hicache.testing.plugin.tags import SUITES
from hicache.testing.report.run import write_run
from hicache.testing.traces import SHORT_TRACE, generate_trace, write_trace
from hicache.tests.docs.pages import ROOT
from hicache.tests.kit.suite_runs import execution, record

LIMIT_S = 300
"""Until a command that hangs is ended: far beyond what any of them takes."""

SOURCES = ("hicache", "src", *SUITES, "pyproject.toml", "README.md", "LICENSE")

SCRIPT = "#!{python}\nimport sys\nfrom {module} import {name}\nsys.exit({name}())\n"

SMALL = replace(SHORT_TRACE, requests=30, system_length_median=300, message_length_median=200, longest_input=2048)

MODULES = {
    "my_module.py": """
from hicache.testing.caches.dictionary import DictionaryAdapter


class MyAdapter(DictionaryAdapter):
    pass
""",
    "my_package/__init__.py": "",
    "my_package/my_module.py": """
from hicache.storage.file import FileStorage
from ADAPTER as MyAdapter


class MyStorage(FileStorage):
    def __init__(self, scope, options):
        super().__init__(scope, {"root": options["path"], "capacity_bytes": options.get("limit")})
""",
    "my_engine/__init__.py": "",
    "my_engine/cache.py": "class PrefixCache:\n    pass\n",
    "my_broken.py": """
from dataclasses import replace

from hicache.testing.caches.dictionary import DictionaryAdapter


class BrokenAdapter(DictionaryAdapter):
    def match(self, key, *, chunked):
        found = super().match(key, chunked=chunked)
        return replace(found, device_slots=found.device_slots[:-1])
""",
    "known.toml": """
format = 2

[[failures]]
kind = "bug"
reason = "a node that is restored is freed twice"
link = ""
ids = ["LOCK-3"]
""",
    "options.toml": 'path = "{directory}"\nlimit = "{capacity_bytes}"\n',
}
"""The files of a user that the pages name. ADAPTER stands for the module and the class of an adapter."""

LEAST = "hicache.testing.caches.dictionary import DictionaryAdapter"
WHOLE = "hicache.testing.caches.reference import ReferenceAdapter"
"""Adapters of a user: one that starts soon, as most pages need no more; one of a cache with data."""

RUNS = ("ours", "theirs", "old", "new", "reference")
"""The folders of earlier runs that the pages compare."""


@dataclass(frozen=True, slots=True)
class Installation:
    """An environment with the wheel. `folder`: where it is."""

    folder: Path

    def run(self, command: str, folder: Path) -> tuple[int, str]:
        """Run a command line in a folder. Returns the exit code and everything it printed."""
        done = subprocess.run(
            ["/bin/bash", "-c", command],
            cwd=folder,
            env=self._environment(),
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
        )
        return done.returncode, done.stdout

    def _environment(self) -> dict[str, str]:
        # A run of pytest is tested from inside a run of pytest, which must not pass on its settings.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTEST_", "HICACHE_", "PYTHONPATH", "COV_"))
        }
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return kept | {"PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1", "HICACHE_QUICK": "1"}


def shared_installation(temporary: Path) -> Installation:
    """The wheel of the checkout, installed once for all workers of a run. `temporary`: the folder of this worker."""
    folder = (temporary.parent if "PYTEST_XDIST_WORKER" in os.environ else temporary) / "installation"
    folder.mkdir(exist_ok=True)
    installed = folder / "installed"
    with (folder / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not installed.exists():
            installed.write_text(str(install_wheel(Path(mkdtemp(dir=folder))).folder), encoding="utf-8")
    return Installation(Path(installed.read_text(encoding="utf-8")))


def install_wheel(folder: Path) -> Installation:
    """Install the wheel of the checkout where all but hicache is that of the running interpreter."""
    environment = install_alone(folder, editable=False)
    # This adds the libraries and not the checkout, since the .pth files beside them are not read.
    libraries = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages_of(environment) / "libraries.pth").write_text("\n".join(libraries) + "\n", encoding="utf-8")
    _write_script("pytest", environment / "bin")
    return Installation(environment)


def install_alone(folder: Path, *, editable: bool) -> Path:
    """Install a copy of the checkout, and nothing that it needs, in an environment; returns the environment."""
    sources, environment = folder / "sources", folder / "environment"
    # A copy: pip builds in the folder of the sources, and would take modules that an earlier build left there.
    sources.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
        else:
            shutil.copy(ROOT / name, sources / name)
    hook = "build_editable" if editable else "build_wheel"
    build = f"import sys; from setuptools import build_meta; build_meta.{hook}(sys.argv[1])"
    _call(sys.executable, "-c", build, str(folder), folder=sources)
    _call(sys.executable, "-m", "venv", "--without-pip", str(environment))
    (wheel,) = folder.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    into = ("--python", str(environment / "bin" / "python"))
    _call(*pip, *into, "install", "--no-deps", "--ignore-installed", str(wheel))
    return environment


def packages_of(environment: Path) -> Path:
    """The folder of the packages of an environment."""
    return Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))


def _write_script(name: str, folder: Path) -> None:
    """Write the console script of a library, as pip does."""
    (found,) = entry_points(group="console_scripts", name=name)
    path = folder / name
    path.write_text(SCRIPT.format(python=folder / "python", module=found.module, name=found.attr), encoding="utf-8")
    path.chmod(0o755)


def _call(*command: str, folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}"


def write_user_files(folder: Path, adapter: str = LEAST) -> None:
    """Write the files of a user that the pages name, the records of earlier runs, and a trace."""
    for name, text in MODULES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("ADAPTER", adapter), encoding="utf-8")
    for name in RUNS:
        (folder / name).mkdir()
        write_run(record(execution("LOCK-1")), folder / name / "run.json")
    write_trace(folder / "conversation_trace.jsonl", list(generate_trace(SMALL, 0)))
