"""The conformance report itself: what counts as proven, and what makes a run fail."""

from pathlib import Path

import pytest

from tests.conformance.report import ConformanceReport
from tests.conformance.rules import Rule, RuleTableError, read_page

CODEC = Rule("X-01", "x", "codec", "a rule")
HUB = Rule("X-02", "x", "hub", "another")


def report_of(outcome: str, *, when: str = "call", number: str = "X-01") -> pytest.TestReport:
    return pytest.TestReport(
        nodeid="test",
        location=("file", 1, "test"),
        keywords={},
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=None,
        when=when,  # type: ignore[arg-type]
        user_properties=[("rule", number)],
    )


def conformance(*reports: pytest.TestReport) -> ConformanceReport:
    result = ConformanceReport({"X-01": CODEC, "X-02": HUB})
    for report in reports:
        result.pytest_runtest_logreport(report)
    return result


def test_a_rule_with_a_passing_test_is_proven() -> None:
    assert conformance(report_of("passed")).proven(CODEC)


def test_a_rule_without_a_test_is_missing() -> None:
    assert conformance(report_of("passed")).missing() == [HUB]
    assert conformance().missing() == [CODEC, HUB]


def test_one_failing_test_takes_the_proof_away() -> None:
    assert not conformance(report_of("passed"), report_of("failed")).proven(CODEC)


def test_a_test_that_failed_in_its_set_up_proves_nothing() -> None:
    assert not conformance(report_of("failed", when="setup")).proven(CODEC)


def test_a_set_up_alone_proves_nothing() -> None:
    assert not conformance(report_of("passed", when="setup")).proven(CODEC)


def test_a_skipped_test_proves_nothing() -> None:
    assert not conformance(report_of("skipped", when="setup")).proven(CODEC)


def test_rules_are_read_from_table_rows(tmp_path: Path) -> None:
    page = tmp_path / "x.md"
    page.write_text("words\n| rule | level | what |\n| --- | --- | --- |\n| X-01 | codec | a rule | from |\n")
    assert read_page(page) == [Rule("X-01", "x", "codec", "a rule | from")]


@pytest.mark.parametrize("row", ["| X-01 | nonsense | words | from |", "| X-01 | hub | words | from |\n" * 2])
def test_a_bad_table_is_refused(tmp_path: Path, row: str) -> None:
    page = tmp_path / "x.md"
    page.write_text(row)
    with pytest.raises(RuleTableError, match="X-01"):
        read_page(page)
