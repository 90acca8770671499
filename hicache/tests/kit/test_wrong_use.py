"""Wrong use of each option of each command: exit code 2, and one line on stderr with the option and the value."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from hicache.cli.accuracy import missing_libraries
from hicache.cli.app import app
from hicache.cli.command import adapter_class
from hicache.cli.described import Described
from hicache.testing.adapter import CacheAdapter
from hicache.testing.replay import ReplayOutcome, ReplaySettings
from hicache.testing.replay.run import replay
from hicache.testing.report import Outcome, write_run
from hicache.testing.traces import Trace
from hicache.tests.kit.suite_runs import execution, record

NO_NUMBER, OUT_OF_RANGE, UNKNOWN, MISSING, FOLDER, BELOW, MALFORMED = (
    *("no number", "out of range", "unknown", "missing", "a folder in the place of a file", "below a file"),
    "malformed",
)

ABSENT = "of a tier or component that is not there"

ADAPTERS = (
    ("no_such_module:Adapter", "no_such_module"),
    ("mine:Adaptor", "did you mean Adapter"),
    ("mine:Adapter:Adapter", "mine"),
    ("mine", "package.module:Class"),
    ("mine:Other", "not a CacheAdapter class"),
    ("raises:X", "raises:X: the import raised ZeroDivisionError"),
    ("leaves:Adapter", "SystemExit"),
    ("unfinished:Adapter", "SyntaxError"),
)
"""Values other than an adapter, and a part of the message."""

RAISING = (("raises:Backend", "ZeroDivisionError"), ("leaves:Backend", "SystemExit"), ("unfinished:B", "SyntaxError"))
"""Backends whose import raises, and what the message says of it."""

VERIFY = "verify --report out --require nothing"
STORAGE = "verify-storage --report out"
REPLAY = "replay --report out --limit 5"
MODEL = "accuracy --model hybrid --report out"


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong value. `command`: with the words before the option. `value`: empty for an argument that is left out.

    `told`: what the message says beside the name of the option; by default the value.
    """

    command: str
    option: str
    kind: str
    value: str
    told: str = ""

    def __str__(self) -> str:
        name = " ".join(word for word in self.command.split() if not word.startswith("-"))
        return f"{name} {self.option} {self.kind} {self.value}"[:90]


def numbers(command: str, *options: str, least: int = 1) -> Iterator[Wrong]:
    """The wrong values of options that are integers."""
    for option in options:
        yield Wrong(command, option, NO_NUMBER, "many")
        yield Wrong(command, option, NO_NUMBER, "1.5")
        yield Wrong(command, option, OUT_OF_RANGE, str(least - 1))


def shares(command: str, option: str, *others: str) -> Iterator[Wrong]:
    """The wrong values of a float option. `others`: out of its range."""
    yield Wrong(command, option, NO_NUMBER, "much")
    yield Wrong(command, option, NO_NUMBER, "nan")
    for value in ("-1", *others):
        yield Wrong(command, option, OUT_OF_RANGE, value)


def adapters(command: str) -> Iterator[Wrong]:
    """The wrong values of --adapter."""
    return (Wrong(command, "--adapter", UNKNOWN, value, told) for value, told in ADAPTERS)


def unwritable(command: str, option: str, *, is_folder: bool) -> Iterator[Wrong]:
    """The targets of an option that no user can write. `is_folder`: it names a folder."""
    yield Wrong(command, option, BELOW, "file/inside")
    yield Wrong(command, option, FOLDER, "file" if is_folder else "folder")


def sources(command: str, option: str, *malformed: str, folder: str = "folder") -> Iterator[Wrong]:
    """The files of an option that cannot be read."""
    yield Wrong(command, option, MISSING, "no_such_file")
    yield Wrong(command, option, MISSING, "file/inside")
    yield Wrong(command, option, FOLDER, folder)
    for value in malformed:
        yield Wrong(command, option, MALFORMED, value)


NOT_TABLES = ("{", "[1]", "3", "null", '"text"', "@no_such_file.json", "@folder", "@binary.json", "@list.json", "@file")
OF_VERIFY = (
    *adapters(VERIFY),
    *unwritable("verify", "--report", is_folder=True),
    Wrong("verify", "--report", FOLDER, "taken", "report.html"),
    *sources(VERIFY, "--known-failures", "file", "binary.json", "list.json", "other.toml"),
    *sources(VERIFY, "--baseline", "file", "binary.json", "list.json", "of_replay.json"),
    Wrong(VERIFY, "--require", UNKNOWN, "devise", "did you mean device"),
    Wrong(VERIFY, "--only", UNKNOWN, "conformity", "conformance"),
    Wrong(VERIFY, "-k", UNKNOWN, "LOCK-33", "did you mean LOCK-3"),
    Wrong(VERIFY, "-k", MALFORMED, "MATCH-2 and ("),
    *numbers(VERIFY, "--jobs"),
    *shares(VERIFY, "--timeout", "0"),
    Wrong(VERIFY, "--require", "beside nothing", "device", "nothing and device contradict each other"),
    Wrong(VERIFY, "--engine-source", MISSING, "no_such_folder", "is not a folder"),
    Wrong(VERIFY, "--engine-source", FOLDER, "file"),
    Wrong(VERIFY, "--engine-source", MALFORMED, "folder", "has no Python package"),
    Wrong(VERIFY, "--device", UNKNOWN, "gpu"),
    Wrong(VERIFY, "--device", UNKNOWN, "cudaa", "'cudaa' is not a device of torch"),
)
BISECT = "bisect --engine-source folder --report out --adapter mine:Adapter"
OF_BISECT = (
    Wrong("bisect --engine-source folder --report out", "--adapter", UNKNOWN, "mine", "package.module:Class"),
    Wrong("bisect --adapter mine:Adapter --report out", "--engine-source", MISSING, "no_such_folder"),
    Wrong("bisect --adapter mine:Adapter --report out", "--engine-source", FOLDER, "file"),
    Wrong(BISECT, "--good", UNKNOWN, "v1", "not a git repository"),
    Wrong(BISECT, "--bad", UNKNOWN, "v2", "needs --good"),
    Wrong(BISECT, "--clause", UNKNOWN, "LOCK-33", "did you mean LOCK-3"),
    Wrong(BISECT, "--only", UNKNOWN, "conformity", "did you mean conformance"),
    *sources(BISECT, "--known-failures", "file", "other.toml"),
    *numbers(BISECT, "--jobs"),
    *unwritable("bisect --engine-source folder --adapter mine:Adapter", "--report", is_folder=True),
)
OF_STORAGE = (
    Wrong(STORAGE, "--backend", UNKNOWN, "flie", "did you mean file"),
    Wrong(STORAGE, "--backend", UNKNOWN, "no_such_module:Backend"),
    Wrong(STORAGE, "--backend", UNKNOWN, "mine:Other"),
    Wrong(STORAGE, "--backend", UNKNOWN, "mine:Missing"),
    *(Wrong(STORAGE, "--backend", UNKNOWN, value, told) for value, told in RAISING),
    Wrong(f"{STORAGE} --backend mine:Needs", "--config", "a library is missing", "{}", "pip install needed"),
    *(Wrong(f"{STORAGE} --backend file", "--config", MALFORMED, value, "--config") for value in NOT_TABLES),
    Wrong(f"{STORAGE} --backend file", "--config", UNKNOWN, '{"rooot": "x"}', "'rooot'"),
    Wrong(f"{STORAGE} --backend file", "--config", UNKNOWN, '{"root": "{directry}"}', "did you mean {directory}?"),
    Wrong(f"{STORAGE} --backend file", "--config", OUT_OF_RANGE, '{"root": "x", "capacity_bytes": -1}', "-1"),
    Wrong(f"{STORAGE} --backend file", "--config", MISSING, "{}", "'root'"),
    Wrong(STORAGE, "--config", UNKNOWN, "{}", "--backend"),
    *numbers(STORAGE, "--kills", "--fault-runs"),
    *numbers(STORAGE, "--seed", least=0),
    Wrong(STORAGE, "--only", UNKNOWN, "kill", "did you mean kills"),
    Wrong(STORAGE, "--folder", MISSING, "no_such_folder"),
    Wrong(STORAGE, "--folder", FOLDER, "file"),
    Wrong(STORAGE, "--folder", BELOW, "file/inside"),
    *unwritable("verify-storage", "--report", is_folder=True),
    *sources(STORAGE, "--known-failures", "file", "other.toml"),
)
OF_REPLAY = (
    *sources(REPLAY, "TRACE", "binary.json", "list.json", "empty"),
    *adapters(REPLAY),
    *(Wrong(REPLAY, "--capacity", OUT_OF_RANGE, value) for value in ("0", "-5", "0%", "inf")),
    *(Wrong(REPLAY, "--capacity", NO_NUMBER, value) for value in ("much", "nan", "5 %%")),
    Wrong(REPLAY, "--host", NO_NUMBER, "much"),
    Wrong(REPLAY, "--host", OUT_OF_RANGE, "0"),
    *numbers(REPLAY, "--page-size", "--window", "--running", "--limit"),
    *numbers(REPLAY, "--check-every", "--queue-steps", "--metrics-port", least=0),
    Wrong(REPLAY, "--metrics-port", OUT_OF_RANGE, "65536"),
    Wrong(REPLAY, "--policy", UNKNOWN, "lrx", "did you mean lru"),
    Wrong(REPLAY, "--write-policy", UNKNOWN, "write_throuh", "did you mean write_through"),
    Wrong(REPLAY, "--host-layout", UNKNOWN, "page_frist", "did you mean page_first"),
    Wrong(REPLAY, "--executor", UNKNOWN, "thread", "did you mean threaded"),
    Wrong(REPLAY, "--stop-policy", UNKNOWN, "best_efort", "did you mean best_effort"),
    Wrong(REPLAY, "--components", UNKNOWN, "full,sva", "did you mean swa"),
    Wrong(REPLAY, "--components", UNKNOWN, "", "unknown"),
    Wrong(REPLAY, "--components", UNKNOWN, "swa", "lacks 'full'"),
    Wrong(REPLAY, "--components", UNKNOWN, "full,swa,swa", "names one twice"),
    Wrong(REPLAY, "--components", UNKNOWN, "full,indexer,indexer", "names one twice"),
    Wrong(f"{REPLAY} --host 20%", "--storage", UNKNOWN, "flie", "did you mean file"),
    Wrong(REPLAY, "--storage", UNKNOWN, "file", "--host"),
    *(Wrong(f"{REPLAY} --host 20%", "--storage-config", MALFORMED, value, "--storage-config") for value in NOT_TABLES),
    Wrong(f"{REPLAY} --host 20% --storage file", "--storage-config", UNKNOWN, '{"rooot": "x"}', "'rooot'"),
    *shares(REPLAY, "--restart-at", "0", "1.5"),
    Wrong(REPLAY, "--write-policy", ABSENT, "write_back", "needs --host"),
    Wrong(REPLAY, "--host-layout", ABSENT, "page_first", "needs --host"),
    Wrong(REPLAY, "--executor", ABSENT, "stepped", "needs --host"),
    *(
        Wrong(f"{REPLAY} --host 20%", name, ABSENT, value, "needs --storage")
        for name, value in (
            *(("--storage-config", "{}"), ("--stop-policy", "best_effort"), ("--queue-steps", "4")),
            ("--restart-at", "0.5"),
        )
    ),
    Wrong(REPLAY, "--window", ABSENT, "4096", "needs swa in --components"),
    *unwritable(REPLAY, "--metrics-file", is_folder=False),
    *unwritable("replay", "--report", is_folder=True),
    Wrong("replay", "--report", FOLDER, "taken", "replay.json"),
)
OF_MODELS = (
    Wrong("accuracy --report out", "--model", UNKNOWN, "./no_such_one", "--model: ./no_such_one is neither a folder"),
    Wrong(MODEL, "--tasks", UNKNOWN, "copyng"),
    Wrong(MODEL, "--include-path", MISSING, "no_such_folder"),
    Wrong(MODEL, "--include-path", FOLDER, "file"),
    *adapters(MODEL),
    *numbers(MODEL, "--documents", "--page-size", "--chunk", "--tokens", "--states", "--ranks", "--batch-size"),
    Wrong(MODEL, "--chunk", OUT_OF_RANGE, "65", "not a multiple of 16"),
    Wrong(MODEL, "--tokens", OUT_OF_RANGE, "1000", "not a multiple of 16"),
    Wrong(f"{MODEL} --adapter mine:Adapter", "--ranks", OUT_OF_RANGE, "2", "RANKS"),
    Wrong(MODEL, "--dtype", UNKNOWN, "float64", "known: float32"),
    Wrong(MODEL, "--device", UNKNOWN, "gpu"),
    *unwritable("accuracy --model hybrid", "--report", is_folder=True),
    Wrong("accuracy --model hybrid", "--report", FOLDER, "taken", "accuracy.html"),
)
OF_OTHERS = (
    *unwritable("init-adapter", "PATH", is_folder=False),
    Wrong("init-adapter", "PATH", MALFORMED, "new.txt"),
    Wrong("init-adapter", "PATH", MALFORMED, "class.py"),
    Wrong("init-adapter", "PATH", MISSING, "no_such_folder/new.py"),
    Wrong("init-adapter new.py", "--door", UNKNOWN, "verb", "did you mean verbs"),
    Wrong("init-adapter new.py", "--name", UNKNOWN, "My Adapter"),
    Wrong("init-adapter new.py", "--cache", UNKNOWN, "no_such_module:Cache"),
    Wrong("init-adapter new.py", "--cache", UNKNOWN, "mine:Missing", "Missing"),
    Wrong("init-adapter new.py", "--cache", UNKNOWN, "mine"),
    Wrong("init-adapter new.py", "--cache", UNKNOWN, "raises:Cache"),
    *adapters("explain"),
    *numbers("explain", "--step"),
    Wrong("explain", "--step", OUT_OF_RANGE, "99"),
    *unwritable("explain", "--svg", is_folder=False),
    *sources("known-failures", "RUN", "file", "binary.json", "list.json", "of_replay.json", folder="empty_folder"),
    *unwritable("known-failures run.json", "--output", is_folder=False),
    *sources("known-failures", "--migrate", "file", "binary.json", "other.toml"),
    Wrong("known-failures run.json", "--migrate", "beside a run", "other.toml", "either RUN"),
    Wrong("known-failures run.json", "--output", "it exists", "file"),
    *sources("report hits replay.json", "SECOND", "file", "list.json", "run.json", folder="empty_folder"),
    *(
        Wrong(f"report hits {value} replay.json", "FIRST", kind, "", value)
        for kind, value in ((MISSING, "no_such_file"), (FOLDER, "empty_folder"), (MALFORMED, "run.json"))
    ),
    *sources("report compare run.json", "RUNS", "file", "list.json", "of_replay.json", folder="empty_folder"),
    *unwritable("report compare run.json", "--html", is_folder=False),
    Wrong("serve-metadata --port 0", "--host", UNKNOWN, "no such host"),
    Wrong("serve-metadata --port 0", "--host", UNKNOWN, "0.0.0.0", "token"),  # noqa: S104
    *numbers("serve-metadata", "--port", least=0),
    Wrong("serve-metadata", "--port", OUT_OF_RANGE, "65536"),
    *unwritable("serve-metadata --port 0", "--file", is_folder=False),
    Wrong("serve-metadata --port 0", "--file", MALFORMED, "list.json"),
    *shares("serve-metadata --port 0", "--reservation-s", "0"),
    *sources("serve-metadata --port 0", "--token-file", "empty"),
    Wrong("serve-metadata --port 0", "--name", MALFORMED, "two names"),
)

ROWS = (*OF_VERIFY, *OF_BISECT, *OF_STORAGE, *OF_REPLAY, *OF_MODELS, *OF_OTHERS)

REPLAY_RECORD = {
    "trace": "x",
    "footprint_tokens": 1,
    "capacity_tokens": {"full": 1},
    "running": 1,
    "adapter": "mine:Adapter",
    "hit_lengths": {"device": []},
}

COMMAND = get_command(app)

MINE = """
from hicache.testing.caches.dictionary import DictionaryAdapter as Adapter
from hicache.errors import ConfigurationError
from hicache.storage.memory import MemoryStorage

class Other:
    pass

class Broken(Adapter):
    def __init__(self, config):
        raise RuntimeError("boom")

class Needs(MemoryStorage):
    def __init__(self, scope, options):
        raise ConfigurationError("a library is not installed: pip install needed")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with what the values name."""
    texts = {
        "mine.py": MINE,
        "raises.py": "1 / 0\n",
        "leaves.py": "raise SystemExit(5)\n",
        "unfinished.py": "class Adapter(\n",
        "file": "a text\n",
        "empty": "",
        "list.json": "[1]\n",
        "other.toml": '[[failure]]\nid = "LOCK-99"\nkind = "bug"\nreason = "x"\nlink = ""\n',
        "of_replay.json": json.dumps({"schema_version": 1, "trace": "x"}),
        "replay.json": json.dumps(REPLAY_RECORD),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00\x01")
    for name in (
        "folder",
        "empty_folder",
        *(f"taken/{file}" for file in ("report.html", "replay.json", "accuracy.html")),
    ):
        (tmp_path / name).mkdir(parents=True)
    failed = execution("KEY-1", outcome=Outcome.FAILED)
    write_run(record(failed), tmp_path / "run.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if name in ("mine", "raises", "leaves", "unfinished"):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that goes on fails; what a process would import is imported here."""

    def described(adapter: str) -> Described:
        found = adapter_class(adapter)
        return Described(found.__name__, found.profile, tuple(one.name for one in found.capabilities))

    def run(*_: object, **__: object) -> None:
        raise AssertionError("the command went on")

    monkeypatch.setattr("hicache.cli.verify.describe", described)
    # typer would make the commands anew for each line.
    monkeypatch.setattr("typer.testing._get_command", lambda _: COMMAND)
    # Libraries of models log to the stderr of an earlier test.
    monkeypatch.setattr(logging, "raiseExceptions", False)
    for place in (
        "serve_metadata.signal.sigwait",
        "verify.verify",
        "bisect.judge",
        "verify_storage.verify_storage",
        "replay_view.replay_with_progress",
    ):
        monkeypatch.setattr(f"hicache.cli.{place}", run)


def replay_quietly(_: object, trace: Trace, adapter: type[CacheAdapter], settings: ReplaySettings) -> ReplayOutcome:
    """A replay without a progress bar."""
    return replay(trace, adapter, settings, None)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_wrong_use_is_one_line_and_exit_code_2(row: Wrong, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = row.command.split()
    if command[0] == "accuracy" and missing_libraries():
        pytest.skip("the libraries of models are not installed")
    if row.option == "TRACE" and row.kind == MALFORMED:
        monkeypatch.setattr("hicache.cli.replay_view.replay_with_progress", replay_quietly)
    value = [row.value] if row.value else []
    words = [*command, *value] if row.option.isupper() else [*command, f"{row.option}={row.value}"]
    if row.option == "-k":
        words = [*command, row.option, row.value]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, words)
    line = f"hicache {shlex.join(words)}"
    assert done.exit_code == 2, f"{line}: expected 2, got {done.exit_code}: {done.stderr} {done.exception!r}"
    told = done.stderr.strip("\n")
    assert told.count("\n") == 0, f"{line}: expected one line, got {told}"
    # An argument is named by its metavar, in small letters or capitals.
    named = told.upper() if row.option.isupper() else told
    assert row.option in named, f"{line}: expected {row.option}, got {told}"
    assert (row.told or row.value) in told, f"{line}: expected {row.told or row.value!r}, got {told}"
    lost = [path for path, content in before.items() if not path.exists() or path.read_bytes() != content]
    assert not lost, f"{line}: wrote to {lost}"


# The rows are those of every option.


def commands() -> Iterator[tuple[str, Callable[..., Any], Any]]:
    """Each command: its name, its function, and its click command."""
    found: Any = get_command(app)
    for one in app.registered_commands:
        assert one.callback is not None, "typer registered it with a function"
        yield str(one.name), one.callback, found.commands[one.name]
    for group in app.registered_groups:
        for one in group.typer_instance.registered_commands:  # type: ignore[union-attr]
            assert one.callback is not None, "typer registered it with a function"
            yield f"{group.name} {one.name}", one.callback, found.commands[group.name].commands[one.name]


def plain(hint: Any) -> Any:
    """The type of an option: of Path | None and of list[Path] it is Path."""
    if get_origin(hint) is Annotated:
        return plain(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return plain(next(one for one in get_args(hint) if one is not type(None)))
    return plain(get_args(hint)[0]) if get_origin(hint) is list else hint


def kinds_of(hint: Any) -> list[set[str]]:
    """The kinds of wrong values that an option of this type must have rows for, or one of several sets of them."""
    if hint is bool:
        return [set()]
    if hint in (int, float):
        return [{NO_NUMBER, OUT_OF_RANGE}]
    if hint is Path:
        return [{MISSING, FOLDER}, {BELOW, FOLDER}]
    assert hint is str or issubclass(hint, Enum), f"an option of type {hint} needs kinds of wrong values"
    return [{UNKNOWN}, {MALFORMED}, {NO_NUMBER, OUT_OF_RANGE}]


def options() -> Iterator[tuple[str, str, Any]]:
    """Each option and argument: the command, its name in the rows, and its type."""
    for name, function, command in commands():
        hints = get_type_hints(function)
        for parameter in command.params:
            if parameter.name in hints:
                is_option = parameter.param_type_name == "option"
                yield name, parameter.opts[0] if is_option else parameter.name.upper(), plain(hints[parameter.name])


@pytest.mark.parametrize(("command", "option", "hint"), options())
def test_each_option_has_rows(command: str, option: str, hint: Any) -> None:
    found = {row.kind for row in ROWS if row.command.startswith(command) and row.option == option}
    wanted = kinds_of(hint)
    assert any(kinds <= found for kinds in wanted), (
        f"hicache {command} {option}: expected rows of {wanted}, got {found}"
    )


def test_the_help_of_a_command_without_words_stays() -> None:
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 2, f"expected 2, got {done.exit_code}"
    assert "verify-storage" in done.output, f"expected the commands, got {done.output}"


def test_a_replay_that_fits_no_request_ends_with_3(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hicache.cli.replay_view.replay_with_progress", replay_quietly)
    done = CliRunner().invoke(app, ["replay", "--capacity", "1", "--limit", "5", "--report", "out"])
    assert done.exit_code == 3, f"expected 3, got {done.exit_code}: {done.output}"
    assert "none of 5 requests fits into the capacity of full 64 tokens" in done.stderr, f"got {done.stderr}"
    assert folder.joinpath("out/replay.html").exists(), "the page is written"


@pytest.mark.usefixtures("folder")
def test_a_replay_on_an_adapter_that_raises_when_it_is_opened_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hicache.cli.replay_view.replay_with_progress", replay_quietly)
    done = CliRunner().invoke(app, [*REPLAY.split(), "--adapter", "mine:Broken"])
    told = "the adapter mine:Broken could not be opened: RuntimeError: boom\n"
    assert (done.exit_code, done.stderr) == (1, told), f"expected one line, got {done.stderr} {done.exception!r}"
