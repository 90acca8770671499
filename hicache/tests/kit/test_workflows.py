"""The workflows of CI: actions are pinned, tokens are narrow, and each environment, input and option exists."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from hicache.cli.app import app
from hicache.testing.plugin.options import OPTIONS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".github" / "workflows"
NAMES = sorted(path.name for path in FOLDER.glob("*.yml"))

WRITES = {
    ("release.yml", "attest"): {"id-token": "write", "attestations": "write"},
    ("release.yml", "publish"): {"id-token": "write"},
}
"""The only jobs that get more than to read the repository."""

EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


def read(name: str) -> dict[str, Any]:
    """A workflow. YAML reads its key `on` as true."""
    found: dict[Any, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return {"on" if key is True else str(key): value for key, value in found.items()}


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every job, with the file and the name of it."""
    for name in NAMES:
        for job, body in read(name)["jobs"].items():
            yield name, job, body


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every step, with where it stands."""
    for name, job, body in jobs():
        for number, step in enumerate(body.get("steps", []), 1):
            yield f"{name}, {job}, step {number}", step


def uses() -> Iterator[tuple[str, str]]:
    """Every action and workflow that is called, with where."""
    yield from ((where, step["uses"]) for where, step in steps() if "uses" in step)
    yield from ((f"{name}, {job}", body["uses"]) for name, job, body in jobs() if "uses" in body)


def combinations(body: dict[str, Any]) -> Iterator[dict[str, str]]:
    """The values of a job's matrix, for each run of the job."""
    matrix = dict(body.get("strategy", {}).get("matrix", {}))
    included = matrix.pop("include", None)
    yield from included or (dict(zip(matrix, values, strict=True)) for values in product(*matrix.values()))


def filled(text: str, values: dict[str, str]) -> str:
    """The text of a job, with the values of the matrix."""
    return EXPRESSION.sub(lambda found: values[found[1].removeprefix("matrix.")], text)


def tox_arguments() -> Iterator[tuple[str, str]]:
    """The arguments that each call of tox.yml passes, with where."""
    for name, job, body in jobs():
        if body.get("uses") == "./.github/workflows/tox.yml":
            for values in combinations(body):
                yield f"{name}, {job}", filled(body["with"]["arguments"], values)


def test_the_workflows_are_found() -> None:
    assert NAMES == ["ci.yml", "full.yml", "gpu.yml", "nightly.yml", "release.yml", "tox.yml", "verify.yml"], (
        f"got {NAMES}"
    )
    counts = len(list(steps())), len(list(uses())), len(list(tox_arguments()))
    assert min(counts) > 10, f"expected more than ten steps, calls and runs of tox, got {counts}"


def test_each_action_is_pinned_by_its_commit_and_says_which_release_that_is() -> None:
    wrong = [
        (where, target) for where, target in uses() if not re.fullmatch(r"\./\S+|[\w.-]+/[\w./-]+@[0-9a-f]{40}", target)
    ]
    assert not wrong, f"expected a path in this repository or a full commit, got {wrong}"
    lines = [line for name in NAMES for line in (FOLDER / name).read_text(encoding="utf-8").splitlines() if "@" in line]
    unnamed = [line for line in lines if "uses:" in line and not re.search(r"@[0-9a-f]{40} # v\d+(\.\d+)*$", line)]
    assert not unnamed, f"expected the release as a comment behind each commit, got {unnamed}"


def test_one_action_has_one_commit() -> None:
    commits: dict[str, set[str]] = {}
    for _, target in uses():
        action, _, commit = target.partition("@")
        commits.setdefault(action, set()).add(commit)
    several = {action: found for action, found in commits.items() if len(found) > 1}
    assert not several, f"expected one commit for each action, got {several}"


def test_each_local_workflow_exists() -> None:
    missing = [target for _, target in uses() if target.startswith("./") and not (ROOT / target).is_file()]
    assert not missing, f"these do not exist: {missing}"


def test_no_checkout_leaves_its_credentials() -> None:
    checkouts = [(where, step) for where, step in steps() if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts, "no checkout was found"
    wrong = [where for where, step in checkouts if step.get("with", {}).get("persist-credentials") is not False]
    assert not wrong, f"expected persist-credentials: false, not found in {wrong}"


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_may_read_and_no_more(name: str) -> None:
    found = read(name).get("permissions")
    assert found == {"contents": "read"}, f"{name}: expected permissions to read contents alone, got {found}"


def test_a_job_may_write_only_where_this_is_listed() -> None:
    found = {(name, job): body["permissions"] for name, job, body in jobs() if "permissions" in body}
    assert found == WRITES, f"expected {WRITES}, got {found}"


def test_only_the_protected_environment_publishes() -> None:
    body = read("release.yml")["jobs"]["publish"]
    assert (body["environment"], body["needs"]) == ("pypi", "attest"), f"got {body['environment']}, {body['needs']}"
    secrets = [name for name in NAMES if "secrets." in (FOLDER / name).read_text(encoding="utf-8")]
    assert not secrets, f"publishing exchanges an identity and no stored secret, but {secrets} reads one"


@pytest.mark.parametrize("name", NAMES)
def test_runs_of_one_branch_do_not_pile_up(name: str) -> None:
    workflow = read(name)
    # One that is called belongs to the group of its caller: with the same group it would wait for itself.
    is_called = set(workflow["on"]) == {"workflow_call"}
    assert ("concurrency" in workflow) is not is_called, f"{name}: concurrency is {workflow.get('concurrency')}"


def test_each_job_of_steps_has_a_time_limit() -> None:
    unlimited = [(name, job) for name, job, body in jobs() if "steps" in body and "timeout-minutes" not in body]
    assert not unlimited, f"expected timeout-minutes in {unlimited}"


def of_pull_requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every workflow that runs for a pull request, with its jobs."""
    yield from ((name, read(name)["jobs"]) for name in NAMES if "pull_request" in read(name)["on"])


def test_one_job_needs_all_other_jobs_of_a_pull_request() -> None:
    found = dict(of_pull_requests())
    assert list(found) == ["ci.yml"], (
        f"expected one workflow for pull requests, so that one gate is enough, got {found}"
    )
    others = {name: body for name, body in found["ci.yml"].items() if name != "gate"}
    gate = found["ci.yml"]["gate"]
    assert sorted(gate["needs"]) == sorted(others), f"gate: expected needs of {sorted(others)}, got {gate['needs']}"
    # Without this condition the job is skipped after a failure, and a required check that was skipped counts as passed.
    assert gate["if"] == "always()", f"gate: expected `if: always()`, got {gate['if']}"
    lenient = [name for name, body in others.items() if body.get("continue-on-error")]
    assert not lenient, f"a job with continue-on-error always has the result `success`: {lenient}"


@pytest.mark.parametrize(
    ("results", "passes"),
    [
        ("success success", True),
        ("success", True),
        ("success failure success", False),
        ("success skipped", False),
        ("cancelled success", False),
        ("", False),
    ],
)
def test_the_gate_passes_when_each_result_is_success(results: str, passes: bool) -> None:
    (step,) = dict(of_pull_requests())["ci.yml"]["gate"]["steps"]
    assert step["env"] == {"RESULTS": "${{ join(needs.*.result, ' ') }}"}, f"got {step['env']}"
    # GitHub runs a step so.
    ended = subprocess.run(["bash", "-e", "-c", step["run"]], env={"RESULTS": results}, check=False)  # noqa: S607
    assert (ended.returncode == 0) is passes, f"results {results!r}: ended with {ended.returncode}"


def test_the_page_names_the_check_to_require() -> None:
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    assert "check `gate`" in text, "docs/ci.md: expected the name of the check to require, `gate`"


def test_no_expression_becomes_part_of_a_script() -> None:
    wrong = [where for where, step in steps() if EXPRESSION.search(step.get("run", ""))]
    assert not wrong, f"expected values in env, and not in the text of a script: {wrong}"


def test_a_called_workflow_gets_the_inputs_that_it_declares() -> None:
    for name, job, body in jobs():
        if not body.get("uses", "").startswith("./"):
            continue
        declared = read(Path(body["uses"]).name)["on"]["workflow_call"]["inputs"]
        required = {key for key, value in declared.items() if value.get("required")}
        given = set(body["with"])
        assert required <= given <= set(declared), f"{name}, {job}: gives {sorted(given)}, declared {sorted(declared)}"


@pytest.mark.skipif(find_spec("tox") is None, reason="needs tox: pip install 'hicache[dev]'")
def test_each_environment_of_tox_exists() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "tox", "list", "--no-desc"], cwd=ROOT, check=True, text=True, capture_output=True
    ).stdout.split()
    assert "conformance" in listed, f"tox lists no environment conformance: {listed}"
    asked = [(where, one) for where, text in tox_arguments() for one in text.split()[1].split(",")]
    asked += [
        ("release.yml, check", values["environment"]) for values in combinations(read("release.yml")["jobs"]["check"])
    ]
    unknown = [pair for pair in asked if pair[1] not in listed]
    assert not unknown, f"tox.ini has no environment {unknown}"


def environments(key: str) -> set[str]:
    """The environments of a line of tox.ini."""
    lines = (ROOT / "tox.ini").read_text(encoding="utf-8").splitlines()
    (listed,) = [line.partition("=")[2] for line in lines if line.strip().startswith(f"{key} =")]
    return {*listed.replace(" ", "").split(",")} - {"install", "bare"}


@pytest.mark.parametrize(("key", "names"), [("pull-request", ["ci.yml"]), ("env_list", ["ci.yml", "full.yml"])])
def test_ci_runs_each_environment_of_the_profile(key: str, names: list[str]) -> None:
    run = {one for where, text in tox_arguments() if where.split(",")[0] in names for one in text.split()[1].split(",")}
    assert environments(key) <= run, f"{names}: expected {sorted(environments(key))}, got {sorted(run)}"
    for name in names:
        assert read(name)["on"]["push"] == {"branches": ["main"]}, f"{name}: runs for {read(name)['on']}"


def test_each_option_of_the_suites_exists() -> None:
    known = {option.flag for option in OPTIONS}
    asked = [(where, word) for where, text in tox_arguments() for word in text.split() if word.startswith("--hicache")]
    assert asked, "no call of tox passes an option of the plugin"
    unknown = [pair for pair in asked if pair[1] not in known]
    assert not unknown, f"the plugin has no option {unknown}; known: {sorted(known)}"


def test_each_option_that_verify_passes_exists() -> None:
    command = get_command(app).commands["verify"]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    (script,) = [step["run"] for _, step in steps() if 'hicache verify "${options' in step.get("run", "")]
    asked = set(re.findall(r"--[a-z-]+", script))
    assert "--adapter" in asked, f"no option was found in {script}"
    assert asked <= known, f"`hicache verify` has no option {sorted(asked - known)}"


def test_the_page_lists_each_input_of_the_workflow_for_other_projects() -> None:
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8").partition("## The check to require")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    found = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    expected = set(read("verify.yml")["on"]["workflow_call"]["inputs"])
    assert found == expected, f"docs/ci.md: expected {sorted(expected)}, found {sorted(found)}"


def test_a_matrix_is_read() -> None:
    body = {"strategy": {"matrix": {"python": ["3.10", "3.13"], "suite": ["self"]}}}
    found = [filled("${{ matrix.suite }}-${{matrix.python}}", values) for values in combinations(body)]
    assert found == ["self-3.10", "self-3.13"], f"got {found}"


PINNED_TORCH = r"pip (install|download) --no-deps --constraint \S+ --index-url \S+( --dest \S+)? torch"


def test_a_second_index_is_asked_for_torch_alone() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *FOLDER.glob("*.yml"), ROOT / "tox.ini", ROOT / "Makefile"]
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages}
    extra = [name for name, text in texts.items() if re.search("extra[-_]index[-_]url", text, re.IGNORECASE)]
    assert not extra, f"with an index beside another one, any name may come from either: {extra}"
    asked = [
        (name, command) for name, text in texts.items() for command in re.findall("pip [^`\n]*--index-url[^`\n]*", text)
    ]
    assert asked, "expected commands that take torch from its index"
    wrong = [(name, command) for name, command in asked if not re.fullmatch(PINNED_TORCH, command)]
    assert not wrong, f"expected commands that bring a pinned torch alone, {PINNED_TORCH}, got {wrong}"
