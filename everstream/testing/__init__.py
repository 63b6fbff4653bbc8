"""For tests of your own pipelines, operators, sources and sinks. Nothing here needs Spark.

`harness` runs a pipeline and `operator` one operator, in virtual time, step by step. `check` runs a
pipeline under many seeded faults and compares its output with a run without faults. `strategies`
makes record streams for Hypothesis. `sources` and `sinks` have the conformance suites for your own
connectors. With pytest, the fixtures `harness`, `operator_harness` and `check_pipeline` are there
without an import.
"""

from everstream.simulation.faults import Faults
from everstream.testing.checking import CheckFailed, CheckReport, check
from everstream.testing.operator_harness import OperatorHarness, operator
from everstream.testing.pipeline_harness import Harness, harness

__all__ = [
    "CheckFailed",
    "CheckReport",
    "Faults",
    "Harness",
    "OperatorHarness",
    "check",
    "harness",
    "operator",
]
