"""What a test changes in a command of a page so that it ends in seconds, and which commands it does not run."""

from __future__ import annotations

import re

ONE_CLAUSE = "KEY-7"
"""One that few tests name, and that applies at both doors and to every adapter of the pages."""

OF_MODELS = (r"hicache accuracy ", r"pytest --pyargs hicache.suites.accuracy ")
"""Commands that need the libraries of models, by their beginning."""

NOT_RUN = {
    r"(python -m )?pip install ": "needs an index; the tests install the wheel",
    r"(\w+=\S+ )*make ": "installs into .venv of the checkout; CI runs it",
    r"(\.venv/bin/)?tox ": "runs a whole environment; that it exists is tested",
    **dict.fromkeys(OF_MODELS, "needs the libraries of models; hicache/tests/kit/accuracy/test_commands.py runs it"),
    r"hicache serve-metadata ": "serves until it is stopped; hicache/tests/kit/test_cli_serve_metadata.py starts it",
}
"""Commands of any page that are not run, by their beginning, each with the reason."""

SHORTER = {
    # One clause in one suite and one process instead of all. This verifies no level, so none is required.
    r"^(hicache verify .*)": rf"\1 --only conformance -k {ONE_CLAUSE} --jobs 1 --require nothing",
    # One clause instead of all, and one process instead of one for each core.
    r"^((?:python -m )?pytest .*?hicache\.suites\.conformance(?!\.)(?!.* -k).*)": rf"\1 -k {ONE_CLAUSE}",
    r"^((?:python -m )?pytest .*?hicache\.suites\.conformance\.storage .*)": r"\1 -k STORE-1",
    # These take minutes for any part: their tests are found, and none is run.
    r"^((?:python -m )?pytest .*?hicache\.suites\.(?:properties|distributed_tests)(?!\.).*)": (r"\1 -q --collect-only"),
    r"^((?:python -m )?pytest .*)-n (?:auto|\d+)(.*)": r"\1-n 0\2",
    # Two documents of one task instead of all, and one test of the suite.
    r"^(hicache accuracy .*)": r"\1 --tasks copying --documents 2",
    r"^(pytest .*?hicache\.suites\.accuracy .*)": r"\1 -k stored_kv_of_another_dtype",
    r"^(hicache verify-storage .*)": r"\1 --only faults --fault-runs 2",
}
"""What replaces a command that matches, in this order."""

ENDS_WITH = {
    r"hicache report hits ours/replay.json tiers/replay.json": 1,  # With more tiers there are more hits.
}
"""The exit codes that are not 0."""


def why_not_run(command: str) -> str:
    """The reason for which a command of any page is not run, or nothing."""
    return next((reason for beginning, reason in NOT_RUN.items() if re.match(beginning, command)), "")


def shortened(command: str) -> str:
    """The command that a test runs."""
    for pattern, shorter in SHORTER.items():
        command = re.sub(pattern, shorter, command)
    return command
