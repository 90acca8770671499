"""The table of runs: which suites run on which cache or storage of another project, in which environment."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hicache.config import read_table
from hicache.engines.imports import installed_release
from hicache.testing.report.fields import RecordFields

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_suffix(".toml")
KNOWN = Path(__file__).parent / "known"
NO_TESTS = 5
"""The exit code of pytest when no test was selected."""

REQUIREMENTS = Path(__file__).parent / "requirements"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of suites. `subject`: what is tested, in words; empty for our own tests.

    `path`: the module and the class of the adapter or the backend, or the name of a backend; empty for our own tests.
    `words`: the arguments of pytest without the list of known failures. `known`: the file of that list, or None.
    `is_whole`: whether the arguments of a user do not narrow it.
    """

    environment: str
    suites: str
    subject: str
    path: str
    words: tuple[str, ...]
    known: Path | None
    is_whole: bool

    def arguments(self) -> tuple[str, ...]:
        """The arguments of pytest, in the root of the repository."""
        known = () if self.known is None else ("--hicache-known-failures", self.known.relative_to(ROOT).as_posix())
        return (*self.words, *known)

    @property
    def class_name(self) -> str:
        """The class of the adapter or the backend, which is unique in an environment."""
        return self.path.rpartition(":")[2]

    def reporting(self, folder: Path) -> Run:
        """The same run with its report in `folder / class_name`; our own tests have none."""
        # The runs start in the checkout.
        words = ("--hicache-report", str(folder.absolute() / self.class_name)) if self.path else ()
        return replace(self, words=(*self.words, *words))

    def header(self) -> str:
        """The first lines of its list of known failures."""
        command = f"python -m hicache.engines run {self.environment} --only {self.class_name}"
        return f"# Known failures of {self.subject}, by\n#   {command}\n"


@dataclass(frozen=True, slots=True)
class Environment:
    """What an environment has installed: requirements of pip, and extras of hicache. `alone`: without dependencies.

    `variables`: the environment variables of its runs.
    """

    requirements: Path
    extras: tuple[str, ...]
    beside: tuple[str, ...]
    alone: tuple[str, ...]
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Needs:
    """What an environment needs. `packages`: of pip. `variables`: of the environment, which name checkouts.

    `files`: in the root of the repository. `page`: the page that says how to get it, or empty.
    """

    packages: tuple[str, ...]
    variables: tuple[str, ...]
    files: tuple[str, ...]
    page: str

    def missing(self) -> str:
        """The first of them that is not there, or empty."""
        absent = [
            *(f"package {one}" for one in self.packages if installed_release(one) is None),
            *(f"variable {one}" for one in self.variables if not os.environ.get(one)),
            *(f"file {one}" for one in self.files if not (ROOT / one).is_file()),
        ]
        return absent[0] if absent else ""


@dataclass(frozen=True, slots=True)
class Table:
    """All runs, in order; the environments that tox installs, and their needs."""

    runs: tuple[Run, ...]
    environments: Mapping[str, Environment]
    needs: Mapping[str, Needs]

    def names(self) -> list[str]:
        """The names of all environments, also of those that nothing installs."""
        return list(dict.fromkeys(run.environment for run in self.runs))


def read_runs(path: Path = TABLE) -> Table:
    """Read the table. Raises ConfigurationError naming the file, the row and the wrong field."""
    fields = RecordFields(str(path), "", read_table(path))
    suites, environments = fields.texts_by_name("suites"), fields.fields("environments")
    needs = fields.fields("needs")
    table = Table(
        runs=tuple(_run(row, suites) for row in fields.tables("runs")),
        environments={name: _environment(environments.fields(name)) for name in environments.table},
        needs={name: _needs(needs.fields(name)) for name in needs.table},
    )
    fields.refuse_unread()
    return table


def _run(row: RecordFields, suites: Mapping[str, str]) -> Run:
    optional = {
        name: row.text(name) if name in row.table else ""
        for name in ("subject", "adapter", "backend", "config", "options", "known")
    }
    words = shlex.split(f"{suites[row.choice('suites', suites)]} {optional['options']}")
    for name, option in (("adapter", "adapter"), ("backend", "backend"), ("config", "backend-config")):
        words += [f"--hicache-{option}", optional[name]] if optional[name] else []
    run = Run(
        environment=row.text("environment"),
        suites=row.text("suites"),
        subject=optional["subject"],
        path=optional["adapter"] or optional["backend"],
        words=tuple(words),
        known=KNOWN / optional["known"] if optional["known"] else None,
        is_whole="selection" in row.table and row.choice("selection", ("whole",)) == "whole",
    )
    row.refuse_unread()
    return run


def _environment(fields: RecordFields) -> Environment:
    found = Environment(
        requirements=REQUIREMENTS / fields.text("requirements"),
        extras=fields.texts("extras"),
        beside=fields.texts("beside"),
        alone=fields.texts("alone"),
        variables=fields.texts_by_name("variables"),
    )
    fields.refuse_unread()
    return found


def _needs(row: RecordFields) -> Needs:
    given = {name: row.texts(name) if name in row.table else () for name in ("package", "variable", "file")}
    found = Needs(given["package"], given["variable"], given["file"], row.text("page"))
    row.refuse_unread()
    return found


def missing(name: str, table: Table) -> str:
    """What an environment needs and is not there, with the way to get it; empty if nothing is missing."""
    needs = table.needs[name]
    absent = needs.missing()
    return absent and f"needs the {absent}: {needs.page or f'python -m hicache.engines install {name}'}"


def install(environment: Environment) -> int:
    """Install an environment with the pip of this Python. Returns the exit code of the first call that fails, or 0."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    ours = ["--constraint", "constraints.txt", "--editable", f".[{','.join(environment.extras)}]"]
    theirs = ["--requirement", str(environment.requirements), *environment.beside]
    return _first_failure([[*pip, *ours, *theirs], [*pip, "--no-deps", *environment.alone]], {})


def execute(runs: Sequence[Run], arguments: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run the suites one after another, up to the first that fails. Returns its exit code, or 0.

    A suite in which no test matches the arguments of the user does not fail, unless none of the suites has such a test.
    """
    commands = [
        [sys.executable, "-m", "pytest", *one.arguments(), *(() if one.is_whole else arguments)] for one in runs
    ]
    return _first_failure(commands, variables, allowed=NO_TESTS if arguments else 0)


def _first_failure(commands: Sequence[Sequence[str]], variables: Mapping[str, str], allowed: int = 0) -> int:
    """The code of the first process that fails. `allowed`: the code of others, returned if all of them have it."""
    codes = []
    for command in commands:
        sys.stdout.write(f"{shlex.join(command)}\n")
        sys.stdout.flush()
        # Words of a list, without a shell.
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False).returncode  # noqa: S603
        if code not in (0, allowed):
            return code
        codes.append(code)
    return min(codes, default=0)
