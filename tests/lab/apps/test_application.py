"""What every application is made of."""

from pathlib import Path

from everstream.connectors import JsonLines
from everstream.core.permits import permit
from everstream_lab.apps.application import json_line, lines_in
from tests.connectors.writing import write_checkpoint


def test_a_line_of_a_sequential_program_is_that_of_the_sink_byte_for_byte(tmp_path: Path) -> None:
    records = [
        {"primes": 41_538},
        {"text": "über", "score": -1.5},
        {"image": 1, "similar": [[2, 1e-7], [3, 1e16], [4, 0.1 + 0.2]]},
    ]
    write_checkpoint(JsonLines(tmp_path), records).commit(permit(1))
    assert lines_in(tmp_path) == [json_line(record) for record in records]
