"""The summary of the attacks: sums of the counts, the longest verb, and how many attacks found a defect."""

from __future__ import annotations

import pytest

ATTACKS = """

def test_sound(campaign):
    campaign.counts["kills"] += 1200
    campaign.longest_s = 0.25

def test_broken(campaign):
    campaign.counts["kills"] += 34
    campaign.longest_s = 1.5
    assert False, "a wrong byte"

def test_without_a_campaign():
    assert True
"""


def test_the_summary_counts_what_the_attacks_did_and_found(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from hicache.tests.proof.attack.conftest import campaign, pytest_terminal_summary")
    pytester.makepyfile(ATTACKS)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:benchmark")
    result.stdout.fnmatch_lines(
        [
            "failed test_broken: 34 kills, longest verb 1.50 s",
            "passed test_sound: 1,200 kills, longest verb 0.25 s",
            "all 2 attacks: 1,234 kills, longest verb 1.50 s",
            "attacks that found a wrong byte, a lost page or slot, a crash or a blocked verb: 1",
        ]
    )
