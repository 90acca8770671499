"""What a test changes in a command of a page so that it ends in seconds, and which commands it does not run."""

from __future__ import annotations

import re

ONE_CLAUSE = "MATCH-1"

NOT_RUN = {
    r"(python -m )?pip install ": "needs an index; the tests install the wheel",
    r"(\w+=\S+ )*make ": "installs into .venv of the checkout; CI runs it",
    r"(\.venv/bin/)?tox ": "runs a whole environment; that it exists is tested",
    r"pytest --pyargs hicache.suites.accuracy ": "imports libraries of models; the environment accuracy runs it",
    r"hicache serve-metadata ": "serves until it is stopped; hicache/tests/kit/test_cli_serve_metadata.py starts it",
}
"""Commands of any page that are not run, by their beginning, each with the reason."""

SHORTER = {
    # These take minutes. What is left is that the options exist.
    r"^(hicache (?:verify|accuracy) .*)": r"\1 --help",
    # One clause instead of all, and one process instead of one for each core.
    r"^((?:python -m )?pytest .*?hicache\.suites\.conformance(?!\.)(?!.* -k).*)": rf"\1 -k {ONE_CLAUSE}",
    r"^((?:python -m )?pytest .*?hicache\.suites\.conformance\.storage .*)": r"\1 -k STORE-1",
    # These take minutes for any part: their tests are found, and none is run.
    r"^((?:python -m )?pytest .*?hicache\.suites\.(?:properties|distributed_tests)(?!\.).*)": (r"\1 -q --collect-only"),
    r"^((?:python -m )?pytest .*)-n (?:auto|\d+)(.*)": r"\1-n 0\2",
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
