"""What counts as run by production, and that a rule is not proven by a test of anything else."""

from textwrap import dedent

import pytest

from tests.conformance.production import ExercisedCode, Module, Production
from tests.conformance.report import ConformanceReport
from tests.conformance.rules import Rule
from tests.conformance.test_report import report_of

SRC = {
    "app": "from app.machine import Connection as Machine\n",
    "app.cli": """
        from app import Machine

        def main():
            Machine().receive(b"")
        """,
    "app.machine": """
        TABLE = {1: 2}
        UNUSED = {1: 3}

        class Base:
            def receive(self, data):
                return TABLE

        class Connection(Base):
            def receive(self, data):
                return self._step(data)

            def _step(self, data):
                return helper(data)

            def expire(self):
                return UNUSED

        def helper(data):
            return data

        class Order:
            def receive(self, data):
                return data
        """,
}


def src(files: dict[str, str] = SRC) -> Production:
    return Production({name: Module.parse(name, dedent(text)) for name, text in files.items()}, [("app.cli", "main")])


@pytest.mark.parametrize("name", ["Connection", "Connection.receive", "Connection._step", "helper", "TABLE", "Base"])
def test_what_a_command_leads_to_is_run(name: str) -> None:
    assert src().runs(("app.machine", name))


@pytest.mark.parametrize("name", ["Order", "Order.receive", "Connection.expire", "UNUSED"])
def test_what_nothing_refers_to_is_not(name: str) -> None:
    assert not src().runs(("app.machine", name))


def test_what_a_descriptor_names_in_a_string_is_run() -> None:
    files = {
        "polywire.protocols.line": 'PROTOCOL = Protocol(session="session:LineSession")',
        "polywire.protocols.line.session": "class LineSession:\n    def drain(self): ...\n\nclass Other: ...",
    }
    modules = {name: Module.parse(name, text) for name, text in files.items()}
    found = Production(modules, [("polywire.protocols.line", "PROTOCOL")])
    assert found.runs(("polywire.protocols.line.session", "LineSession"))
    assert not found.runs(("polywire.protocols.line.session", "Other"))


TESTS = {
    "tests.helpers": """
        from app.machine import Order

        def ordered():
            return Order()
        """,
    "tests.conftest": """
        import pytest
        from app.machine import Order

        @pytest.fixture
        def order():
            return Order()
        """,
    "tests.test_machine": """
        import app.machine
        from app import Machine
        from app.machine import Order
        from tests.helpers import ordered

        def test_production():
            Machine().receive(b"x")

        def test_a_class():
            Order().receive(Machine())

        def test_by_its_module():
            app.machine.Order()

        def test_a_method():
            Machine().expire()

        def test_with_help():
            ordered()

        def test_with_a_fixture(order):
            order.receive(b"x")

        class TestTogether:
            def test_in_a_class(self):
                Order()
        """,
}


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("test_production", set()),
        ("test_a_class", {"Order"}),
        ("test_by_its_module", {"Order"}),
        ("test_a_method", {"Connection.expire"}),
        ("test_with_help", {"Order"}),
        ("test_with_a_fixture", {"Order"}),
        ("test_in_a_class", {"Order"}),
    ],
)
def test_a_test_of_code_that_production_does_not_run_is_found(test: str, found: set[str]) -> None:
    tests = ExercisedCode({name: Module.parse(name, dedent(text)) for name, text in TESTS.items()}, src())
    assert {name for _, name in tests.test_only("tests.test_machine", test)} == found


def test_a_rule_that_is_tested_on_such_code_is_missing() -> None:
    rule = Rule("X-01", "x", "codec", "a rule")
    lines = {"X-01": ["tests/test_machine.py::test_a_class exercises app.machine.Order, which only tests use"]}
    report = ConformanceReport({"X-01": rule}, lambda: lines)
    report.pytest_runtest_logreport(report_of("passed"))
    assert report.missing() == [rule]
