"""The storage backends of a run, and its record of them."""

from __future__ import annotations

import pytest

from hicache.testing.report import Outcome
from hicache.testing.storage.subject import SHIPPED
from hicache.tests.kit.suite_runs import FLAT_CACHE, run, run_recorded, write_suite

DEFAULT = "hicache.testing.adapters.reference:ReferenceAdapter"
CONFTEST = "from hicache.testing.plugin.backends import place, pytest_generate_tests, store, writers"
OPTIONS = '{"store": "{unique}", "capacity_bytes": "{capacity_bytes}"}'


@pytest.fixture(autouse=True)
def _suite(pytester: pytest.Pytester) -> None:
    write_suite(
        pytester,
        """
        @clause("STORE-2", "STORE-5")
        def test_it(store):
            store.set(["a"])
        """,
    )
    (pytester.path / "conformance" / "conftest.py").write_text(CONFTEST)


def test_a_named_backend_is_the_subject_of_the_run(pytester: pytest.Pytester) -> None:
    record = run_recorded(pytester, "--adapter", DEFAULT, "--backend", "memory", "--backend-config", OPTIONS)
    assert record.implementation == "memory", f"expected memory, got {record.implementation}"
    (found,) = record.executions
    assert (found.clauses, found.configuration) == (("STORE-2", "STORE-5"), "storage/memory"), f"got {found}"
    assert (found.outcome, found.operations) == (Outcome.PASSED, 1), f"one verb was called, got {found}"
    assert "--backend memory --backend-config" in found.replay, f"the command names it: {found.replay}"


def test_without_a_name_those_that_ship_are_tested(pytester: pytest.Pytester) -> None:
    record = run_recorded(pytester, "--adapter", DEFAULT)
    tested = [one.configuration for one in record.executions]
    expected = [f"storage/{subject.name}" for subject in SHIPPED]
    assert tested == expected, f"expected {expected}, got {tested}"


def test_a_run_of_another_adapter_skips_the_backends(pytester: pytest.Pytester) -> None:
    (found,) = run_recorded(pytester).executions
    assert found.outcome is Outcome.SKIPPED, f"expected a skip, got {found}"
    assert f"this run verifies {FLAT_CACHE}" in found.reason, f"expected the reason, got {found.reason}"


def test_clauses_that_no_backend_can_show_are_not_missed(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--backend", "memory", adapter=DEFAULT)
    result.stdout.re_match_lines([r"hicache: 1 passed, 0 failed, 0 skipped, 13 not executed"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--backend", "no_such_module:Backend"), "no_such_module"),
        (("--backend", "memory", "--backend-config", "{"), "inline JSON"),
        (("--backend-config", "{}"), "without --backend"),
    ],
)
def test_a_backend_that_cannot_be_opened_ends_the_run(
    pytester: pytest.Pytester, options: tuple[str, ...], message: str
) -> None:
    result = run(pytester, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR, f"expected a usage error, got {result.ret}"
    assert message in "\n".join(result.errlines), f"{message} is named: {result.errlines}"


def test_a_test_of_metadata_runs_for_the_backends_that_ask_a_service(pytester: pytest.Pytester) -> None:
    write_suite(
        pytester,
        """
        import pytest

        @pytest.fixture
        def metadata(place):
            return place.metadata

        @clause("SEC-4")
        def test_it(metadata):
            assert metadata.url
        """,
    )
    (pytester.path / "conformance" / "conftest.py").write_text(CONFTEST)
    tested = [one.configuration for one in run_recorded(pytester, "--adapter", DEFAULT).executions]
    assert tested == ["storage/hf3fs"], f"of those that ship it is one, got {tested}"
    (found,) = run_recorded(pytester, "--adapter", DEFAULT, "--backend", "memory").executions
    assert found.outcome is Outcome.SKIPPED, f"expected a skip, got {found}"
    assert "memory: no option names a metadata service" in found.reason, f"expected the reason, got {found.reason}"
