"""The value of a secret option stands in no output: a canary is looked for in all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

import hicache
from hicache.cli.command import REFERENCE
from hicache.cli.stage import SuiteStage, Verification
from hicache.config import StorageConfig, read_extra_config, read_table
from hicache.errors import ConfigurationError
from hicache.storage.registry import conceal_options, open_backend
from hicache.storage.secrets import SECRET, redacted
from hicache.testing.report import Outcome, read_run
from hicache.tests.kit.leaking_storage import LeakingStorage

LEAKING = f"{LeakingStorage.__module__}:{LeakingStorage.__qualname__}"

ROOT = Path(hicache.__file__).parent.parent


def canary(name: str) -> str:
    """A word that stands nowhere else: with characters that JSON, HTML and `repr` write in another way."""
    return f'canary-{name}-{os.getpid()}-"{"-".join(map(str, range(100)))}-{name}-tail-{os.getpid()}'


def options_file(folder: Path, secret: str, **further: object) -> Path:
    file = folder / "options.json"
    file.write_text(json.dumps({"store": "{unique}", "password": secret, **further}), encoding="utf-8")
    return file


def outputs(folder: Path, ended: subprocess.CompletedProcess[str]) -> Iterator[tuple[str, str]]:
    """All that a command has written."""
    yield "stdout", ended.stdout
    yield "stderr", ended.stderr
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            yield str(file.relative_to(folder)), file.read_text(encoding="utf-8", errors="replace")


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def assert_nowhere(secret: str, folder: Path, ended: subprocess.CompletedProcess[str], expected: set[str]) -> None:
    """A part of it is looked for: pytest cuts long texts, and HTML and JSON escape the quote."""
    written = dict(outputs(folder, ended))
    assert expected <= written.keys(), f"expected the outputs {expected}, got {sorted(written)}: {ended.stderr}"
    parts = (secret[:15], secret[-15:])
    found = {
        name: text[max(0, text.index(one) - 200) :][:400]
        for name, text in written.items()
        for one in parts
        if one in text
    }
    assert not found, f"the value of a secret option stands in {found}"


def test_no_output_of_a_verification_of_storage_shows_a_secret(tmp_path: Path) -> None:
    secret, watched = canary("verification"), tmp_path / "watched"
    watched.touch()
    file, reports = options_file(tmp_path, secret, watched=str(watched)), tmp_path / "reports"
    stages = [word for name in ("faults", "kills", "throughput") for word in ("--only", name)]
    ended = command(
        tmp_path,
        *("hicache", "verify-storage", "--backend", LEAKING, "--config", f"@{file}"),
        *("--fault-runs", "2", "--kills", "1", "--report", str(reports), *stages),
    )
    assert ended.returncode == 1, f"it raises in each get, got {ended.returncode}: {ended.stdout}{ended.stderr}"
    assert_nowhere(secret, reports, ended, {"run.json", "report.html", "report.md", "junit.xml"})
    failed = [one for one in read_run(reports / "run.json").executions if SECRET in one.reason]
    assert failed, f"messages with {SECRET} in the place of the value are expected"
    assert all(f"@{file}" in one.replay for one in failed), "it can be run again, with the file"
    assert not watched.read_text(), f"other users see command lines: {watched.read_text()[:500]}"


def test_no_log_of_a_suite_shows_a_secret(tmp_path: Path) -> None:
    secret, watched, reports = canary("suite"), tmp_path / "watched", tmp_path / "reports"
    watched.touch()
    file = options_file(tmp_path, secret, watched=str(watched))
    given = ("--hicache-backend", LEAKING, f"--hicache-backend-config=@{file}")
    verification = Verification(REFERENCE, True, reports, None, keyword="STORE-4", jobs=1)
    result = SuiteStage("conformance/storage", verification, given).run(lambda *_: None, Event())
    assert result.count(Outcome.FAILED), f"it raises in each get, got {result}"
    nothing = subprocess.CompletedProcess[str]((), 1, repr(result), "")
    written = {f"conformance/storage/{name}" for name in ("pytest.log", "run.json")}
    assert_nowhere(secret, reports, nothing, written)
    log = (reports / "conformance/storage/pytest.log").read_text()
    for told in (f"password={SECRET}", f"the password is {SECRET}", f"password = {SECRET}", f"'Bearer {SECRET}"):
        assert told in log, f"expected {told!r} in {log}"
    assert not watched.read_text(), f"other users see command lines: {watched.read_text()[:500]}"


def test_no_output_of_a_replay_shows_a_secret(tmp_path: Path) -> None:
    secret = canary("replay")
    file, reports = options_file(tmp_path, secret), tmp_path / "reports"
    replayed = ("--host", "100%", "--storage", LEAKING, "--storage-config", f"@{file}", "--limit", "40")
    ended = command(tmp_path, "hicache", "replay", *replayed, "--report", str(reports / "replay"))
    assert ended.returncode == 0, f"what a get raises is a miss, got {ended.stdout}{ended.stderr}"
    assert_nowhere(secret, reports / "replay", ended, {"replay.json", "replay.html", "replay.svg"})
    refusing = options_file(tmp_path, secret, refuses=True)
    ended = command(tmp_path, "hicache", "replay", *replayed[:-3], f"@{refusing}", "--report", str(reports / "replay"))
    assert (ended.returncode, SECRET in ended.stderr) == (2, True), f"a masked message, got {ended.stderr}"
    assert_nowhere(secret, reports / "replay", ended, set())


def test_no_configuration_and_no_error_shows_a_secret() -> None:
    secret = canary("error")
    options = {"store": "s", "password": secret}
    storage = StorageConfig(LEAKING, "model", options)
    extra = read_extra_config(json.dumps(options))
    nested = conceal_options("metered", {"inner": LEAKING, "inner_options": {**options, "password": [secret]}})
    for shown in (repr(storage), str(storage), repr(extra), repr(nested), f"{conceal_options(LEAKING, options)}"):
        assert secret[:20] not in shown, f"expected no secret, got {shown}"
    refused: list[Callable[[], object]] = [
        lambda: open_backend(LEAKING, "scope", {**options, "refuses": True}),
        lambda: open_backend("hf3fs", "scope", {"tokn": secret}),
        lambda: open_backend("hf3fs", "scope", {"token": {"value": secret}}),
        lambda: open_backend("metered", "scope", {"inner": LEAKING, "inner_options": [options]}),
        lambda: StorageConfig(LEAKING, "model", options=[options]),  # type: ignore[arg-type]
        lambda: replace(storage, options=json.dumps(options)),  # type: ignore[arg-type]
    ]
    for refuse in refused:
        with pytest.raises(ConfigurationError) as told:
            refuse()
        error: BaseException | None = told.value
        while error is not None:
            assert secret[:20] not in str(error), f"expected no secret in {error}"
            error = error.__cause__


def test_no_error_of_a_file_of_options_shows_its_lines(tmp_path: Path) -> None:
    secret = canary("file").replace('"', "")
    for name, text in (
        ("a.yaml", f"store: s\npassword: {secret}: [\n"),
        ("b.json", f'{{"password": "{secret}'),
        ("c.toml", f'password = "{secret}'),
    ):
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigurationError, match=name) as told:
            read_table(f"@{file}")
        error: BaseException | None = told.value
        while error is not None:
            assert secret[:20] not in str(error), f"{name}: expected no line of the file in {error}"
            error = error.__cause__
    with pytest.raises(ConfigurationError, match="in line 2, column"):
        read_table(f"@{tmp_path / 'a.yaml'}")


def test_a_backend_gets_the_value_itself() -> None:
    secret = canary("value")
    backend = open_backend("metered", "scope", {"inner": LEAKING, "inner_options": {"store": "s", "password": secret}})
    password = backend.inner.password  # type: ignore[attr-defined]
    backend.close()
    assert password == secret, "the backend reads what the file says"
    assert f"{password}" == secret, "and can send it"
    assert json.loads(json.dumps(password)) == secret, "also as JSON"


def test_short_texts_are_not_redacted() -> None:
    conceal_options(LEAKING, {"password": "is"})
    assert redacted("this is it") == "this is it", "a short word stands in others"
