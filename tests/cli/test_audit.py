"""`everstream audit` with real processes: right is found right, wrong is found wrong, and the
pipeline's own sinks see nothing of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everstream.audit.rehearsal import Rehearsal
from everstream.cli import audit_stage
from everstream.cli.app import app
from everstream.cli.runs.arguments import RunCommand
from everstream.cli.runs.supervise import Supervisor
from everstream.errors import UserError
from tests.cli.commands import ROOT, Command
from tests.connectors.kafka_topics import Reading, make_topic, topics
from tests.kafka_server import KafkaServer

pytestmark = pytest.mark.timeout(900)  # many processes start; on a busy machine that takes long

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


def audited(folder: Path, target: str, *options: str) -> tuple[int, dict[str, Any], Command]:
    if not (folder / "books").exists():
        shutil.copytree(ROOT / "examples" / "books", folder / "books")
    command = Command("audit", target, "--json", "audit.json", *options, cwd=folder)
    code = command.end()
    command.wait_until_all_gone()
    assert (folder / "audit.json").exists(), command.output
    return code, json.loads((folder / "audit.json").read_text()), command


def test_word_count_comes_through_three_kills_and_its_own_sink_is_not_touched(
    tmp_path: Path,
) -> None:
    code, told, command = audited(
        tmp_path, str(ROOT / "examples" / "word_count.py"), "--kills", "3", "--seed", "7"
    )
    assert code == 0, command.output
    assert (told["lost"], told["duplicated"], told["exact"]) == (0, 0, True)
    assert told["expected"] == {"json_lines": 407}
    assert told["kills_happened"] >= 1, command.output
    assert command.says(f"{told['kills_happened']} of 3 kills happened")
    assert command.says("lost 0, duplicated 0: 407 records expected")
    recovered = [kill["recovery"] for run in told["runs"] for kill in run["kills"]]
    assert any(report and report["caught_up_ms"] is not None for report in recovered)
    assert not (tmp_path / "counts").exists()
    assert not (tmp_path / ".everstream").exists()


FORGETFUL = """
import everstream as es

SEEN = {}  # not state: a process that is killed forgets it, one that lives keeps it

def count(n):
    SEEN[n % 3] = SEEN.get(n % 3, 0) + 1
    return (n % 3, SEEN[n % 3])

pipeline = es.Pipeline("forgetful")
pipeline.source(es.Range(3000, batch=50)).map(count).sink(es.JsonLines("out/"), name="out")
"""


@pytest.mark.long
def test_a_pipeline_that_keeps_its_state_in_a_global_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    code, told, command = audited(tmp_path, "forgetful.py", "--kills", "2", "--seed", "1")
    assert told["kills_happened"] >= 1, command.output
    assert code == told["exit_code"] == 1
    assert told["lost"] > 0
    assert told["duplicated"] > 0
    assert command.says("missing: (")
    assert command.says("A second undisturbed run gave the same output as the first.")
    assert all(difference["exact"] for difference in told["undisturbed_again"])


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_comes_through_kills_of_workers_and_drivers(
    tmp_path: Path, example: str
) -> None:
    target = str(ROOT / "examples" / f"{example}.py")
    code, told, command = audited(tmp_path, target, "--kills", "10", "--drivers")
    assert code == 0, command.output
    assert told["exact"]
    assert told["kills_happened"] >= 5, command.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.py"], "there is no file 'nothing.py'"),
        ([str(ROOT / "examples" / "primes.py"), "--every", "banana"], "is not a duration"),
        ([str(ROOT / "examples" / "primes.py"), "--kills", "0"], "--kills"),
        (
            [str(ROOT / "examples" / "primes.py"), "--master", "spark://head:7077"],
            "an audit runs on this machine",
        ),
        (
            [str(ROOT / "examples" / "primes.py"), "--store-key", "no-such.key"],
            "no-such.key",
        ),
    ],
)
def test_wrong_usage_is_code_2_before_anything_runs(arguments: list[str], says: str) -> None:
    said = CliRunner().invoke(app, ["audit", *arguments], env={"COLUMNS": "200"})
    assert said.exit_code == 2
    assert says in said.output


def test_every_run_of_an_audit_signs_its_store_with_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, asked = tmp_path / "a.key", []
    key.write_text("a" * 64 + "\n")
    key.chmod(0o600)

    class Asked(Supervisor):
        def run(self) -> None:
            asked.append(self._command)
            raise UserError("that will do")

    monkeypatch.setattr(audit_stage, "Supervisor", Asked)
    arguments = ["audit", str(ROOT / "examples" / "primes.py"), "--store-key", str(key)]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 2 and "that will do" in said.output
    (command,) = asked
    assert RunCommand.from_json(command.to_json()).options.store_key == str(key)


def test_the_driver_gets_the_rehearsal_it_was_asked_for() -> None:
    for how in (None, Rehearsal(), Rehearsal("a/gate", 2.5, (("lines", 26), ("more", 0)))):
        command = RunCommand("app.py", {"kill": ["a@1"]}, rehearsal=how)
        assert RunCommand.from_json(command.to_json()) == command


TO_KAFKA = """
import everstream as es

pipeline = es.Pipeline("to-kafka")
sink = es.Kafka({bootstrap!r}, "audited", key_by=lambda n: n % 10)
pipeline.source(es.Range(3000, batch=50), name="numbers").sink(sink, name="out")
"""


@pytest.mark.long
def test_an_audit_puts_the_kafka_sink_itself_to_the_test(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    make_topic(kafka, "audited", 2)
    (tmp_path / "to_kafka.py").write_text(TO_KAFKA.format(bootstrap=kafka.bootstrap))
    code, told, command = audited(
        tmp_path, "to_kafka.py", "--kills", "4", "--seed", "3", "--real-sinks"
    )
    assert code == 0, command.output
    assert told["kills_happened"] >= 1, command.output
    assert told["expected"] == {"out": 3000}
    assert (told["lost"], told["duplicated"]) == (0, 0)
    assert command.says("tested in separate places: out")
    assert not [topic for topic in topics(kafka) if "audit" in topic and topic != "audited"]
    reading = Reading(kafka)
    assert reading.messages("audited", 2) == []
    reading.close()


def test_real_sinks_are_asked_for_where_none_can_be_put_to_the_test(tmp_path: Path) -> None:
    example = str(ROOT / "examples" / "word_count.py")
    result = CliRunner().invoke(app, ["audit", example, "--real-sinks"])
    assert result.exit_code == 2
    assert "none of the sinks (json_lines) can write to a separate place" in result.output
