"""A pytest plugin: which numbered rules the run proved, and failure where one is missing.

A rule is proven when at least one test carries its number, every test that does has passed, and none of them exercises
code of ``src`` that only tests use (``production.py``).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.production import proven_on_test_code
from tests.conformance.rules import LEVELS, Rule, read_rules
from tests.docs.conformance_tables import proofs

PROPERTY = "rule"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--conformance", action="store_true", help="print which rules are proven, fail on a missing one")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--conformance") and not hasattr(config, "workerinput"):
        # In a thread: it takes a few seconds, in which this process has nothing to do but wait for the workers.
        on_test_code = ThreadPoolExecutor(1).submit(lambda: proven_on_test_code(proofs()))
        config.pluginmanager.register(ConformanceReport(read_rules(), on_test_code.result), "conformance-report")


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    known = read_rules()
    for item in items:
        for mark in item.iter_markers(PROPERTY):
            for number in mark.args:
                if number not in known:
                    raise pytest.UsageError(f"{item.nodeid}: no rule {number} in docs/protocols")
                item.user_properties.append((PROPERTY, number))


class ConformanceReport:
    """Collects the outcome of each test that carries a rule, and prints the table at the end.

    ``on_test_code`` returns, by rule, which tests exercise code that production does not run.
    """

    def __init__(self, rules: dict[str, Rule], on_test_code: Callable[[], Mapping[str, Sequence[str]]] = dict) -> None:
        self.rules = rules
        self.on_test_code = on_test_code
        self.passed: defaultdict[str, int] = defaultdict(int)
        self.failed: defaultdict[str, int] = defaultdict(int)
        self.interrupted = False

    def pytest_keyboard_interrupt(self) -> None:
        self.interrupted = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = self.passed if report.passed else self.failed
        if report.when == "call" or not report.passed:
            for name, number in report.user_properties:
                if name == PROPERTY:
                    outcome[str(number)] += 1

    def proven(self, rule: Rule) -> bool:
        passed = self.passed[rule.number] > 0 and self.failed[rule.number] == 0
        return passed and rule.number not in self.on_test_code()

    def missing(self) -> list[Rule]:
        return [rule for rule in self.rules.values() if not self.proven(rule)]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.missing() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        terminalreporter.section("conformance")
        write(f"{'protocol':<10} {'rules':>6}" + "".join(f" {level:>8} {'proven':>7}" for level in LEVELS))
        for protocol in dict.fromkeys(rule.protocol for rule in self.rules.values()):
            mine = [rule for rule in self.rules.values() if rule.protocol == protocol]
            columns = ""
            for level in LEVELS:
                rules = [rule for rule in mine if rule.level == level]
                columns += f" {len(rules):>8} {sum(map(self.proven, rules)):>7}"
            write(f"{protocol:<10} {len(mine):>6}{columns}")
        if self.interrupted:
            write("the run was interrupted: rules whose tests did not run are not listed")
            return
        for rule in self.missing():
            write(f"missing: {rule.number} {rule.text}")
            for line in self.on_test_code().get(rule.number, ()):
                write(f"  {line}")
