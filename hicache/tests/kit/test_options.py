"""The options of the pytest plugin: where they can be given, which comes first, and that they clash with no others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.plugin.options import (
    ADAPTER,
    BACKEND_CONFIG,
    ENGINE_SOURCE,
    KNOWN_FAILURES,
    OPTIONS,
    QUICK,
    REPORT,
    Option,
    adapter_path,
    subject_words,
)
from hicache.tests.kit.suite_runs import FLAT_CACHE, run, write_suite

REFERENCE = f"{ReferenceAdapter.__module__}:{ReferenceAdapter.__name__}"

PASSING = """
@clause("MATCH-1")
def test_passes(driver):
    driver.check()
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)


def configured(pytester: pytest.Pytester, *arguments: str, ini: str = "") -> pytest.Config:
    """The configuration of a run with these arguments and these lines of an ini file."""
    pytester.makeini(f"[pytest]\n{ini}\n")
    return pytester.parseconfig(*arguments)


@pytest.mark.parametrize("option", [one for one in OPTIONS if one.metavar], ids=lambda option: option.name)
def test_the_command_line_comes_before_the_environment_and_that_before_the_ini_file(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: Option
) -> None:
    assert option.text(configured(pytester)) is None, f"{option.name} is given nowhere"
    in_ini = f"{pytester.path}/from_ini" if option.is_path else "from_ini"
    ini = f"{option.ini} = from_ini"
    assert option.text(configured(pytester, ini=ini)) == in_ini, f"{option.ini} is read, relative to its file"
    monkeypatch.setenv(option.variable, "from_environment")
    assert option.text(configured(pytester, ini=ini)) == "from_environment", f"{option.variable} comes before the ini"
    config = configured(pytester, option.flag, "from_line", ini=ini)
    assert option.text(config) == "from_line", f"{option.flag} comes before {option.variable}"


@pytest.mark.parametrize(
    ("line", "variable", "ini", "expected"),
    [
        ((), "", "", False),
        ((), "", "hicache_quick = true", True),
        ((), "0", "hicache_quick = true", False),
        ((), "Yes", "hicache_quick = false", True),
        (("--hicache-quick",), "0", "hicache_quick = false", True),
    ],
)
def test_a_quick_run_is_asked_for_in_the_same_places(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    line: tuple[str, ...],
    variable: str,
    ini: str,
    expected: bool,
) -> None:
    monkeypatch.setenv(QUICK.variable, variable)
    found = QUICK.switch(configured(pytester, *line, ini=ini))
    assert found is expected, f"{line}, {variable!r}, {ini!r}: expected {expected}, got {found}"


def test_a_switch_that_is_neither_on_nor_off_ends_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(QUICK.variable, "maybe")
    with pytest.raises(pytest.UsageError, match="HICACHE_QUICK is 'maybe'"):
        QUICK.switch(configured(pytester))


def test_a_file_of_options_in_the_ini_file_lies_beside_it(pytester: pytest.Pytester) -> None:
    config = configured(pytester, ini="hicache_backend_config = @options.toml")
    expected = f"@{pytester.path}/options.toml"
    assert BACKEND_CONFIG.text(config) == expected, f"expected {expected}, got {BACKEND_CONFIG.text(config)}"


def test_a_command_that_repeats_a_test_names_the_adapter_unless_it_is_the_default(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(subject_words(configured(pytester))) == [], "the reference needs no words"
    named = configured(pytester, ini=f"hicache_adapter = {FLAT_CACHE}")
    assert list(subject_words(named)) == [ADAPTER.flag, FLAT_CACHE], "a command works without the ini file"
    monkeypatch.setenv(ADAPTER.variable, FLAT_CACHE)
    named = configured(pytester, ADAPTER.flag, REFERENCE)
    assert list(subject_words(named)) == [ADAPTER.flag, REFERENCE], "it must not fall back to the variable"


@pytest.mark.parametrize("place", ["environment", "ini"])
def test_a_suite_runs_with_the_adapter_of_the_environment_or_of_the_ini_file(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    write_suite(pytester, PASSING)
    if place == "environment":
        monkeypatch.setenv(ADAPTER.variable, FLAT_CACHE)
        monkeypatch.setenv(REPORT.variable, "out")
    else:
        pytester.makeini(f"[pytest]\nhicache_adapter = {FLAT_CACHE}\nhicache_report = out\n")
    result = run(pytester, adapter=None)
    assert result.ret == pytest.ExitCode.OK, f"expected a run that passes, got {result.outlines}"
    result.stdout.fnmatch_lines(["report: *out/report.html"])
    assert FLAT_CACHE in (pytester.path / "out" / "run.json").read_text(), "the adapter is the subject"


@pytest.mark.parametrize("option", [ADAPTER, KNOWN_FAILURES], ids=lambda option: option.name)
def test_a_setting_that_names_nothing_is_named(pytester: pytest.Pytester, option: Option) -> None:
    write_suite(pytester, PASSING)
    pytester.makeini(f"[pytest]\n{option.ini} = no_such_thing:Cache\n")
    result = run(pytester, "-k", "MATCH-1", "conformance", adapter=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR, f"expected a usage error, got {result.ret}"
    assert "no_such_thing:Cache" in "\n".join(result.errlines), f"the value is named: {result.errlines}"


BACKEND_OF = ("--hicache-backend", "file", "--hicache-backend-config")

WRONG = {
    "no module": ("--hicache-adapter", "no_such_module:Cache"),
    "no class": ("--hicache-adapter", "hicache.testing.caches.dictionary:Missing"),
    "no adapter": ("--hicache-adapter", "hicache.testing.caches.dictionary:PrefixDictionary"),
    "no source": ("--engine-source", "no_such_folder"),
    "a file as a source": ("--engine-source", "file"),
    "a source without a package": ("--engine-source", "folder"),
    "a source for another Python": ("--engine-source", "for_another_python"),
    "no class in a source": ("--engine-source", "conformance/..", "--hicache-adapter", "conformance.test_it:Missing"),
    "no backend": ("--hicache-backend", "flie"),
    "no option of the backend": (*BACKEND_OF, '{"rooot": "x"}'),
    "an option out of range": (*BACKEND_OF, '{"root": "x", "capacity_bytes": -1}'),
    "no JSON": (*BACKEND_OF, "{"),
    "no table": (*BACKEND_OF, "[1]"),
    "no file of options": (*BACKEND_OF[:2], f"{BACKEND_OF[2]}=@no_such_file.json"),
    "options without a backend": ("--hicache-backend-config", "{}"),
    "no list": ("--hicache-known-failures", "no_such_file.toml"),
    "a folder as a list": ("--hicache-known-failures", "folder"),
    "a list that is none": ("--hicache-known-failures", "file"),
    "no baseline": ("--hicache-baseline", "no_such_run.json"),
    "a baseline that is none": ("--hicache-baseline", "file"),
    "a report below a file": ("--hicache-report", "file/report"),
    "a record below a file": ("--hicache-report", "file/run.json"),
    "a file in the place of a report": ("--hicache-report", "file"),
    "a folder in the place of a record": ("--hicache-report", "folder.json"),
}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_one_line_before_any_test(pytester: pytest.Pytester, words: tuple[str, ...]) -> None:
    write_suite(pytester, PASSING)
    (pytester.path / "file").write_text("a text", encoding="utf-8")
    for name in ("folder", "folder.json"):
        (pytester.path / name).mkdir()
    (pytester.path / "for_another_python" / "cache").mkdir(parents=True)
    (pytester.path / "for_another_python" / "cache" / "tree.py").touch()
    older = '[project]\nrequires-python = ">=3.9, <3.10"\n'
    (pytester.path / "for_another_python" / "pyproject.toml").write_text(older, encoding="utf-8")
    code = 2 if "--engine-source" in words else pytest.ExitCode.USAGE_ERROR
    result = run(pytester, *words, "conformance", adapter=None, interrupts=code == 2)
    assert result.ret == code, f"{words}: expected exit code {code}, got {result.ret}: {result.outlines}"
    printed = [line for line in result.errlines if line]
    assert len(printed) == 1, f"{words}: expected one line, got {printed}"
    value = words[-1].partition("=@")[2] or words[-1]
    is_named = value in printed[0] or any(word in printed[0] for word in words if word.startswith("--"))
    assert is_named, f"{words}: expected the option or the value, got {printed}"


def test_each_option_with_a_value_has_a_wrong_one() -> None:
    tried = {word.partition("=")[0] for words in WRONG.values() for word in words}
    missing = {one.flag for one in OPTIONS if one.metavar} - tried
    assert not missing, f"no wrong value of {missing} is tried"


@pytest.mark.parametrize(("folder", "workers"), [("", "0"), ("python", "1"), ("src", "0")])
def test_the_engine_is_imported_from_its_source_in_each_process(
    pytester: pytest.Pytester, folder: str, workers: str
) -> None:
    place = pytester.path / "tree" / folder / "engine"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("", encoding="utf-8")
    pytester.makepyfile(
        test_it=f"""
        import subprocess, sys
        def test_own(pytestconfig):
            import engine
            assert engine.__file__ == {str(place / "__init__.py")!r}, engine.__file__
            words = [sys.executable, "-c", "import engine; print(engine.__file__)"]
            printed = subprocess.check_output(words, text=True)
            assert printed.strip() == engine.__file__, printed
        """
    )
    before = sys.path[:], os.environ.get("PYTHONPATH"), os.environ.get(ENGINE_SOURCE.variable)
    result = pytester.runpytest_inprocess("-n", workers, "--engine-source", "tree", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    assert result.ret == 0, f"a run of other tests needs no clause: {result.outlines}"
    after = sys.path, os.environ.get("PYTHONPATH"), os.environ.get(ENGINE_SOURCE.variable)
    assert after == before, f"expected the run to leave the paths as they were, got {after}"


def test_a_project_with_settings_runs_its_own_tests_alone(pytester: pytest.Pytester) -> None:
    pytester.makeini(f"[pytest]\nhicache_adapter = no_such_module:Cache\nhicache_report = {pytester.path}/out\n")
    pytester.makepyfile("def test_own():\n    assert True\n")
    result = run(pytester, adapter=None)
    assert result.ret == pytest.ExitCode.OK, f"no suite is asked for, got {result.outlines} {result.errlines}"
    assert not Path(pytester.path / "out").exists(), "nothing is reported of a run without a suite"


CLASHING = """
def pytest_addoption(parser):
    for name in ("--adapter", "--backend", "--backend-config", "--known-failures", "--report", "--quick"):
        parser.addoption(name, default="theirs")
    parser.addini("adapter", "theirs")
    parser.addini("report", "theirs")
"""


def test_options_of_a_project_with_the_short_names_work_beside_ours(pytester: pytest.Pytester) -> None:
    write_suite(pytester, PASSING)
    pytester.makeconftest(CLASHING)
    pytester.makepyfile(
        """
        def test_own(pytestconfig):
            names = ("--adapter", "--report", "--quick", "--backend", "--known-failures")
            assert [pytestconfig.getoption(name) for name in names] == ["mine", "yes", "1", "theirs", "theirs"]
        """
    )
    result = run(pytester, "--adapter", "mine", "--report", "yes", "--quick", "1", adapter=FLAT_CACHE)
    assert result.ret == pytest.ExitCode.OK, f"expected both to work, got {result.outlines} {result.errlines}"
    result.stdout.fnmatch_lines(["*hicache: 4 passed, 0 failed*"])


def test_each_option_has_the_prefix(pytester: pytest.Pytester) -> None:
    shown = pytester.runpytest_inprocess("--help").stdout.str()
    section = shown.partition("(hicache):")[2].partition("\n\n")[0]
    flags = [word.rstrip("=,") for word in section.split() if word.startswith("--")]
    names = [flag.partition("=")[0] for flag in flags]
    assert names == [option.flag for option in OPTIONS], f"expected those with the prefix alone, got {names}"
    for option in OPTIONS:
        assert option.ini in shown, f"{option.ini} is a setting of the ini file"


def test_the_default_adapter_is_the_reference(pytester: pytest.Pytester) -> None:
    found = adapter_path(configured(pytester))
    assert found == REFERENCE, f"expected {REFERENCE}, got {found}"
