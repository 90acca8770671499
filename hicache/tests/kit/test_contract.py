"""The contract: its catalogue, how a wrong one is refused, and the gate that finds clauses that no test names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.testing.contract import CONTRACT, TIERS, clause, load_contract
from hicache.tests.kit.named_clauses import clauses_missing_in, clauses_named_in
from hicache.tests.kit.suite_runs import write_suite

CLAUSES_BY_SECTION = {
    "KEY": 8,
    "POOL": 12,
    "MATCH": 21,
    "COMP": 3,
    "INS": 8,
    "LOCK": 13,
    "EVICT": 13,
    "HOST": 10,
    "STORE": 16,
    "FETCH": 11,
    "RANK": 8,
    "CONF": 7,
    "REQ": 11,
    "REUSE": 7,
    "STATE": 2,
    "FLOW": 13,
    "EVENT": 3,
    "SEC": 7,
}

WRONG = {
    "unknown tier": ('tier = "moon"\nsentence = "x"', "tier 'moon'"),
    "unknown level": ('tier = "host"\nlevel = "MAY"\nsentence = "x"', "level 'MAY'"),
    "unknown capability": ('tier = "host"\nneeds = ["WINGS"]\nsentence = "x"', "WINGS"),
    "unknown field": ('tier = "host"\nsentense = "x"', "sentense"),
    "no sentence": ('tier = "host"', "sentence"),
}


def test_the_catalogue_holds_every_clause_in_order() -> None:
    expected = [
        f"{section}-{number}" for section, count in CLAUSES_BY_SECTION.items() for number in range(1, count + 1)
    ]
    assert list(CONTRACT) == expected, f"missing or misplaced: {set(expected) ^ set(CONTRACT) or list(CONTRACT)}"


@pytest.mark.parametrize("clause_id", CONTRACT)
def test_a_clause_is_a_sentence_of_somebody(clause_id: str) -> None:
    found = CONTRACT[clause_id]
    assert found.id == clause_id, f"expected the entry of {clause_id}, got {found.id}"
    assert re.fullmatch(r"[A-Za-z0-9].+[.]", found.sentence), f"{clause_id} is not a sentence: {found.sentence!r}"
    assert re.fullmatch(r"ours|sglang#\d+(, sglang#\d+)*", found.source), f"{clause_id}: source {found.source!r}"


def test_a_clause_of_ranks_is_of_the_tier_of_ranks() -> None:
    wrong = {found.id: found.tier for found in CONTRACT.values() if Capability.RANKS in found.needs}
    wrong = {name: tier for name, tier in wrong.items() if tier != "ranks"}
    assert not wrong, f"clauses that need ranks, and whose tests are looked for where there is one: {wrong}"


def test_a_clause_of_a_tier_needs_that_tier_of_the_adapter() -> None:
    by_tier = {
        "host": Capability.HOST,
        "storage": Capability.STORAGE,
        "metadata": Capability.STORAGE,
        "ranks": Capability.RANKS,
    }
    wrong = [
        found.id for found in CONTRACT.values() if found.tier in by_tier and by_tier[found.tier] not in found.needs
    ]
    assert not wrong, f"clauses whose needs do not name their tier: {wrong}"


def test_each_clause_has_a_short_title_of_its_own() -> None:
    titles = [found.title for found in CONTRACT.values()]
    long = [title for title in titles if not 2 <= len(title.split()) <= 5]
    assert not long, f"titles that are not of two to five words: {long}"
    twice = {title for title in titles if titles.count(title) > 1}
    assert not twice, f"titles of more than one clause: {twice}"


def test_a_clause_without_a_title_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "contract.toml"
    path.write_text('version = 1\n[KEY-1]\ntier = "device"\nsentence = "x"\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"contract\.toml: KEY-1: .*title"):
        load_contract(path)


@pytest.mark.parametrize(("entry", "named"), WRONG.values(), ids=WRONG)
def test_a_wrong_entry_is_refused_with_its_place(tmp_path: Path, entry: str, named: str) -> None:
    path = tmp_path / "contract.toml"
    path.write_text(f'version = 1\n[KEY-1]\ntitle = "T"\n{entry}\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match=f"contract.toml: KEY-1: .*{named}"):
        load_contract(path)


@pytest.mark.parametrize("version", ["", "version = 0", 'version = "2"', "version = true", "version = 1.5"])
def test_a_contract_states_its_version(tmp_path: Path, version: str) -> None:
    path = tmp_path / "contract.toml"
    path.write_text(f'{version}\n[KEY-1]\ntitle = "T"\ntier = "device"\nsentence = "x"\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"contract\.toml: version is .*, not an integer above zero"):
        load_contract(path)


def test_a_contract_is_its_version_and_its_clauses(tmp_path: Path) -> None:
    path = tmp_path / "contract.toml"
    path.write_text('version = 7\n[KEY-1]\ntitle = "T"\ntier = "device"\nsentence = "x"\n', encoding="utf-8")
    version, clauses = load_contract(path)
    assert (version, list(clauses)) == (7, ["KEY-1"]), f"expected version 7 and KEY-1 alone, got {version}, {clauses}"


def test_a_test_cannot_name_a_clause_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="the contract has no clause LOCK-99, NAP-1"):
        clause("LOCK-1", "LOCK-99", "NAP-1")


@pytest.fixture
def package(pytester: pytest.Pytester) -> str:
    """A suite that can be imported."""
    write_suite(
        pytester,
        """
        @clause("KEY-1", "KEY-2")
        def test_function(): ...

        @clause("KEY-3")
        @pytest.mark.parametrize("number", [1, 2])
        @pytest.mark.skip
        def test_parametrized(number): ...

        @clause("LOCK-1")
        class TestClass:
            @clause("LOCK-2")
            def test_method(self): ...

        @clause("EVICT-1")
        def no_test(): ...

        @clause("FETCH-7")
        def test_of_another_tier(): ...
        """,
        folder="small_suite",
    )
    pytester.syspathinsert()
    return "small_suite"


def test_every_way_of_naming_a_clause_counts(package: str) -> None:
    tested = set(clauses_named_in(package))
    expected = {"KEY-1", "KEY-2", "KEY-3", "LOCK-1", "LOCK-2", "FETCH-7"}
    assert tested == expected, f"expected {sorted(expected)}, got {sorted(tested)}"


def test_what_is_not_named_is_untested(package: str) -> None:
    untested = clauses_missing_in(package, {"device", "host"})
    testable = [found.id for found in CONTRACT.values() if found.tier in {"device", "host"}]
    expected = tuple(name for name in testable if name not in {"KEY-1", "KEY-2", "KEY-3", "LOCK-1", "LOCK-2"})
    assert untested == expected, f"expected and untested differ in {sorted(set(untested) ^ set(expected))}"
    assert not {"FETCH-7", "RANK-1"} & set(untested), "a clause of another tier has its test in another suite"


@pytest.mark.parametrize(("suite", "tiers"), [("conformance", {*TIERS} - {"ranks"}), ("distributed_tests", {"ranks"})])
def test_every_clause_has_a_test(suite: str, tiers: set[str]) -> None:
    untested = clauses_missing_in(suite, tiers)
    sentences = [f"{clause_id}: {CONTRACT[clause_id].sentence}" for clause_id in untested]
    assert not untested, f"{len(untested)} clauses have no test in {suite}:\n" + "\n".join(sentences)
