"""The wire benchmark's cases run; how fast they run is not a test's business."""

import importlib

import pytest

from polywire.registry import built_in


@pytest.mark.parametrize("protocol", [each.name for each in built_in()])
def test_every_case_runs(protocol: str) -> None:
    module = importlib.import_module(f"benchmarks.wire_cases.{protocol}")
    cases = module.cases()
    assert {"decode", "encode"} <= {case.what.split(",")[0].split(" ")[0] for case in cases}
    for case in cases:
        case.run()
    if hasattr(module, "streaming"):
        module.streaming(1 << 20, 1 << 16).run()
