"""`everstream apps`, as somebody types it."""

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from everstream.cli.app import app
from everstream.errors import UserError
from everstream_lab.apps.cycle.execute import prepare


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERSTREAM_INPUTS", str(tmp_path / "inputs"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("EVERSTREAM_BENCHMARKS", raising=False)


def apps(*arguments: str, answer: str | None = None) -> str:
    """What the command says; a mistake of the user's is raised."""
    done = CliRunner().invoke(app, ["apps", *arguments], input=answer)
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_an_application_of_ones_own_runs_at_once_and_lives_to_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = apps("new", "clicks", "--stages", "parse,score", "workers=1:2", "monitor=50ms")
    assert "everstream apps exec clicks" in said
    assert "parse → score" in apps("show", "clicks")
    with pytest.raises(UserError, match="choose another name"):
        apps("new", "clicks", "--stages", "parse")

    said = apps("exec", "clicks", "-i", "sequential,threads", "--out", "first", "--json", "r.json")
    assert "3 result(s), all as the sequential program's" in said
    runs = json.loads(Path("r.json").read_text())["runs"]
    assert [(one["planned"]["workers"], one["exact"]) for one in runs] == [
        *((1, True), (1, True), (2, True)),
    ]
    assert set(runs[2]["operators_ms"]) >= {"source", "parse", "score"}
    general = pl.read_csv(Path("first", "general.csv"))
    assert general["items"].to_list() == [100] * 3 and general["exact"].all()
    assert pl.read_parquet(Path("first", "latency.parquet")).height == 300
    assert pl.read_parquet(Path("first", "monitor.parquet")).height >= 3
    assert "<svg" in Path("first", "page.html").read_text()

    # A stage that forgets something is found out, by every interface.
    monkeypatch.setenv("EDITOR", 'sed -i \'s/return {.*item, "score"/return {"score"/\'')
    apps("edit", "clicks")
    assert 'return {"score": item["number"] * 3}' in Path("benchmarks", "clicks.py").read_text()
    monkeypatch.setenv("EDITOR", "sed -i 's/STAGES = (parse, score)/STAGES = (parse, scoer)/'")
    with pytest.raises(UserError, match=r"line \d+: NameError.*scoer"):
        apps("edit", "clicks")
    monkeypatch.setenv("EDITOR", "sed -i 's/scoer/score/'")
    apps("edit", "clicks")

    assert "1:2:8" in apps("configure", "clicks", "workers=1:2:8")
    apps("rename", "clicks", "taps")
    assert "taps" in apps("list", "benchmarks")
    apps("new", "more", "--from", "taps", "--interface", "threads")
    apps("exec", "more", "--no-latency", "--monitor", "off", "--workers", "1", "-q")
    assert "nothing to delete" not in apps("clean", "more", "--outputs", "--yes")
    assert not list(Path("benchmarks/results/more").glob("*/output"))
    assert list(Path("benchmarks/results/more").glob("*/general.csv"))
    apps("delete", "taps", "more", answer="y\n")
    assert not list(Path("benchmarks").glob("*.json")) and Path("benchmarks/clicks.py").exists()


def test_what_differs_from_the_sequential_result_is_an_error(tmp_path: Path) -> None:
    apps("new", "wrong", "--stages", "parse", "latency=no", "monitor=off")
    file = Path("benchmarks", "wrong.py")
    text = file.read_text().replace("stages=STAGES", "stages=(lambda item: {},)")
    file.write_text(text)
    done = CliRunner().invoke(app, ["apps", "exec", "wrong", "-i", "threads"])
    assert done.exit_code == 1
    assert "1 of 1 results differ" in done.output and "WRONG" in done.output


def test_a_run_that_fails_does_not_hide_the_others() -> None:
    for name in ("broken", "good"):
        apps("new", name, "--stages", "parse", "latency=no", "monitor=off")
    file = Path("benchmarks", "broken.py")
    file.write_text(file.read_text().replace("stages=STAGES", "stages=(lambda item: 1 / 0,)"))
    done = CliRunner().invoke(
        app, ["apps", "exec", "broken", "good", "-i", "threads", "--out", "o", "--json", "r.json"]
    )
    assert done.exit_code == 1
    first, second, *_ = done.output.splitlines()
    assert first == "1/2 broken-threads: failed: ZeroDivisionError: division by zero"
    assert second.startswith("2/2 good-threads: 100 items in ") and second.endswith(", exact")
    assert "1 of 2 runs failed" in done.output
    told = json.loads(Path("r.json").read_text())
    assert [one["planned"]["benchmark"] for one in told["runs"]] == ["good-threads"]
    assert "division by zero" in told["failed"][0]["text"]
    page = Path("o", "page.html").read_text()
    assert "1 of 2 runs failed" in page and "division by zero" in page
    done = CliRunner().invoke(app, ["apps", "check", "broken", "-i", "threads"])
    assert done.exit_code == 1 and "division by zero" in done.output


def test_two_interfaces_are_compared_side_by_side() -> None:
    apps("new", "pair", "--stages", "parse")
    said = apps(
        *("compare", "pair", "-i", "sequential,threads", "--repeats", "2", "--json", "pair.json")
    )
    assert "base" in said
    base, threads = json.loads(Path("pair.json").read_text())["sides"]
    assert base["base"] and base["ratio"]["ratio"] == 1.0 and base["throughput"]["runs"] == 2
    assert threads["interface"] == "threads" and threads["exact"]
    assert threads["ratio"]["low"] <= threads["ratio"]["ratio"] <= threads["ratio"]["high"]


def test_what_there_is_can_be_listed() -> None:
    assert "lane" in apps("list") and "everstream" in apps("list", "interfaces")
    assert "is_prime" in apps("list", "operators", "--application", "prime")
    listed = apps("list", "benchmarks", "--interface", "threads")
    assert "prime-threads" in listed and "prime-processes" not in listed
    with pytest.raises(UserError, match="say one of"):
        apps("list", "nonsense")
    assert "prime, test:" in apps("inputs", "prime")
    assert "prime/test-" in apps("list", "inputs").replace("\n", "")


def test_wrong_usage_says_what_to_do() -> None:
    with pytest.raises(UserError, match="--stages A,B,C"):
        apps("new", "nothing")
    with pytest.raises(UserError, match="a stage becomes a function"):
        apps("new", "bad", "--stages", "for")
    with pytest.raises(UserError, match="did you mean 'prime'"):
        apps("new", "bad", "--application", "prme")
    with pytest.raises(UserError, match="KEY=VALUE"):
        apps("new", "bad", "workers", "--application", "prime")
    with pytest.raises(UserError, match="makes one that can be changed"):
        apps("configure", "prime", "workers=2")
    with pytest.raises(UserError, match="apps new my-prime"):
        apps("edit", "prime")
    with pytest.raises(UserError, match="does not survive a kill"):
        apps("exec", "prime-threads", "--kill", "is_prime@5")


def test_productivity_stands_beside_the_published_tables() -> None:
    said = apps("productivity", "prime", "--measures", "--json", "lines.json")
    assert "published" in said and "DSParLib" in said
    (ours,) = [
        one
        for one in json.loads(Path("lines.json").read_text())["counted"]
        if one["interface"] == "everstream"
    ]
    assert ours["lines"] <= 36 and ours["effort"] == pytest.approx(ours["hours"] * 18 * 3600)


def test_an_application_without_an_input_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # where no flite is to make recordings with
    assert prepare(["sentiment", "prime"], "test", (ready := []).append).keys() == {"sentiment"}
    assert ready == ["prime"]
    done = CliRunner().invoke(app, ["apps", "all", "sentiment", "--input", "test"])
    assert done.exit_code == 1 and "failed: sentiment: " in done.output


def test_an_application_is_killed_and_gives_the_sequential_result_all_the_same() -> None:
    said = apps("all", "prime", "--input", "test", "--every", "100ms", "--json", "all.json")
    assert "1 result(s), all as the sequential program's" in said
    assert "did not happen" not in said and "1 failure(s) survived, exact" in said
    (one,) = json.loads(Path("all.json").read_text())["runs"]
    assert one["exact"] and len(one["recoveries"]) == 1 and one["items"] == 4_998
    assert one["latency_ms"] > 0 and set(one["operators_ms"]) >= {"numbers", "is_prime"}
