"""The options of the plugin, and the profiles of Hypothesis: hicache-quick, hicache-ci and hicache-nightly.

`--hicache-adapter`, `HICACHE_ADAPTER` and `hicache_adapter` are one option. The command line comes before the
environment, and the environment before the ini file. An empty variable counts as unset.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The commands use the names of the options, and their help must come quickly.
    import pytest

if TYPE_CHECKING:
    from hypothesis import settings

DEFAULT_ADAPTER = "hicache.testing.caches.reference:ReferenceAdapter"

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `name`: `hicache-...`. `metavar`: empty for a switch. `is_path`: it names a file or a folder.

    A relative path in an ini file is relative to the folder of that file; elsewhere to the current folder.
    `has_prefix`: whether the command line has the prefix of the name too.
    """

    name: str
    metavar: str
    help: str
    is_path: bool = False
    has_prefix: bool = True

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--{self.name if self.has_prefix else self.name.removeprefix('hicache-')}"

    @property
    def ini(self) -> str:
        """The setting in the ini file."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return self.ini.upper()

    def add_to(self, parser: pytest.Parser, group: pytest.OptionGroup) -> None:
        """Register the option and the setting."""
        words = f"{self.help}; also {self.variable}, or {self.ini} in the ini file"
        if self.metavar:
            group.addoption(self.flag, metavar=self.metavar, default=None, help=words)
            parser.addini(self.ini, self.help, default=None)
        else:
            group.addoption(self.flag, action="store_true", default=None, help=words)
            parser.addini(self.ini, self.help, type="bool", default=False)

    def words(self, value: str) -> tuple[str, ...]:
        """The words of a command line that give this value."""
        # pytest takes a word that begins with @ for the name of a file with further words.
        return (f"{self.flag}={value}",) if value.startswith("@") else (self.flag, value)

    def source(self, config: pytest.Config) -> str:
        """Where the value was given, for messages; the ini file also for an option that was given nowhere."""
        if config.getoption(self.flag) is not None:
            return self.flag
        return self.variable if os.environ.get(self.variable) else f"{self.ini} in {config.inipath}"

    def text(self, config: pytest.Config) -> str | None:
        """The value of an option that takes one, or None."""
        given = config.getoption(self.flag)
        return str(given) if given is not None else self.outside(config)

    def outside(self, config: pytest.Config) -> str | None:
        """The value that it has in a run without it on the command line."""
        if word := os.environ.get(self.variable):
            return word
        text = config.getini(self.ini)
        if not text:
            return None
        start = "@" if text.startswith("@") else ""
        if config.inipath is None or not (self.is_path or start):
            return str(text)
        return f"{start}{config.inipath.parent / text.removeprefix(start)}"

    def switch(self, config: pytest.Config) -> bool:
        """The value of a switch. Raises UsageError for a variable that is neither true nor false."""
        if config.getoption(self.flag):
            return True
        word = os.environ.get(self.variable, "").lower()
        if word and word not in _TRUE + _FALSE:
            import pytest

            raise pytest.UsageError(f"{self.variable} is {word!r}; expected one of {', '.join(_TRUE + _FALSE)}")
        return word in _TRUE if word else bool(config.getini(self.ini))


ADAPTER = Option("hicache-adapter", "MODULE:CLASS", f"the cache under test; default: {DEFAULT_ADAPTER}")
BACKEND = Option("hicache-backend", "NAME", "a storage backend under test: a registered name or MODULE:CLASS")
BACKEND_CONFIG = Option("hicache-backend-config", "JSON", "its options: JSON, or =@FILE in JSON, TOML or YAML")
ENGINE_SOURCE = Option(
    "hicache-engine-source", "PATH", "source tree to import the engine under test from", is_path=True, has_prefix=False
)
KNOWN_FAILURES = Option("hicache-known-failures", "FILE", "TOML list of what is known to fail, and why", is_path=True)
REPORT = Option(
    "hicache-report",
    "DIR",
    "write run.json, report.html, report.md and junit.xml there; with NAME.json in its place: the record alone",
    is_path=True,
)
BASELINE = Option(
    "hicache-baseline", "FILE", "run.json of an earlier run: what failed there does not fail this run", is_path=True
)
REPEAT = Option("hicache-repeat", "", "repeat a failed test, to tell whether it is flaky")
QUICK = Option("hicache-quick", "", "a few configurations instead of all")

OPTIONS = (ADAPTER, ENGINE_SOURCE, BACKEND, BACKEND_CONFIG, KNOWN_FAILURES, BASELINE, REPORT, QUICK, REPEAT)


def add_options(parser: pytest.Parser) -> None:
    """Register the options of the suites."""
    group = parser.getgroup("hicache", "verification of prefix caches (hicache)")
    for option in OPTIONS:
        option.add_to(parser, group)


def adapter_path(config: pytest.Config) -> str:
    """The adapter under test, as `module:Class`."""
    return ADAPTER.text(config) or DEFAULT_ADAPTER


def subject_words(config: pytest.Config) -> Iterator[str]:
    """The words of a command line that name the subject of this run, wherever it was given."""
    for option in (ADAPTER, ENGINE_SOURCE, BACKEND, BACKEND_CONFIG):
        value, elsewhere = option.text(config), option.outside(config)
        if value is not None and (elsewhere is not None or value != DEFAULT_ADAPTER):
            yield from option.words(value)


def assignments() -> dict[str, str]:
    """The environment variables that give options."""
    return {one.variable: os.environ[one.variable] for one in OPTIONS if os.environ.get(one.variable)}


PROFILES = ("hicache-quick", "hicache-ci", "hicache-nightly")

MAX_SHRINKING_S, QUICK_SHRINKING_S = 60, 10
"""For shrinking a failing example, and the first in hicache-quick. Most take seconds; a larger one tells the same."""

_FOLDERS: set[Path] = set()


def use_profiles_in(folder: Path) -> None:
    """Have the files of a folder imported, and its tests run, in a profile of the suites."""
    _FOLDERS.add(folder.resolve())


def has_searches(path: Path) -> bool:
    """Whether a file is of a suite that searches. An editable install reaches the suites through links."""
    resolved = _resolved(path)
    return not _FOLDERS.isdisjoint((resolved, *resolved.parents))


# Asked for each test of a run.
_resolved = lru_cache(maxsize=256)(Path.resolve)


@contextmanager
def suite_profile(path: Path, failures: int, *, is_chosen: bool) -> Iterator[None]:
    """For a file of a suite that searches: its profile, and afterwards the one from before. Nothing for other files.

    `is_chosen`: the run names a profile, which is loaded already and stays. Otherwise it is hicache-ci where the
    variable CI is set, and hicache-quick elsewhere. A failure is shrunk for so many seconds at most: Hypothesis has
    no setting for it, and stops after 300 seconds. `failures`: of searches before, in this process. In hicache-quick
    each one halves the time for the next: many searches find the same defect, and one short example of it is enough.
    """
    if not has_searches(path):
        yield
        return
    from hypothesis import settings
    from hypothesis.internal.conjecture import engine

    register_profiles()
    # The public function for it is younger than the oldest Hypothesis that the kit takes.
    profile, limit = settings._current_profile or "default", engine.MAX_SHRINKING_SECONDS  # noqa: SLF001
    if not is_chosen:
        settings.load_profile("hicache-ci" if "CI" in os.environ else "hicache-quick")
    is_quick = settings._current_profile == PROFILES[0]  # noqa: SLF001
    engine.MAX_SHRINKING_SECONDS = QUICK_SHRINKING_S / 2**failures if is_quick else MAX_SHRINKING_S
    try:
        yield
    finally:
        engine.MAX_SHRINKING_SECONDS = limit
        settings.load_profile(profile)


def register_profiles() -> None:
    """Register Hypothesis' profiles, unless they are registered, and load none.

    hicache-quick: for development, with the same examples each time where the variable CI is set; hicache-ci: the same
    examples everywhere, as a gate; hicache-nightly: other examples each night, for long runs.
    """
    from hypothesis import settings
    from hypothesis.errors import InvalidArgument

    try:
        settings.get_profile(PROFILES[0])
    except InvalidArgument:
        common, is_ci = _common(), "CI" in os.environ
        settings.register_profile("hicache-quick", common, max_examples=25, stateful_step_count=25, derandomize=is_ci)
        settings.register_profile("hicache-ci", common, max_examples=150, stateful_step_count=30, derandomize=True)
        settings.register_profile("hicache-nightly", common, max_examples=4000, stateful_step_count=60)


def _common() -> settings:
    """What all profiles have.

    A machine opens a cache and reads every byte after each step; slow steps are not a fault of its strategies. Only
    one failure of a search is shrunk, and no lines are collected to explain it: both would take minutes.
    """
    from hypothesis import HealthCheck, Phase, settings

    return settings(
        settings.get_profile("default"),
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
        report_multiple_bugs=False,
        phases=[phase for phase in Phase if phase is not Phase.explain],
    )
