"""The programs in the documentation run as they stand, in more than one process."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "explanation" / "transactions.md"


BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def block(text: str) -> str:
    """The first program with this text."""
    return next(program for program in BLOCKS if text in program)


def run_twice(program: str, folder: Path) -> None:
    """Once compiling, once from the cache, as a program that nobody can import."""
    runner = "import sys; exec(compile(sys.stdin.read(), 'example', 'exec'), {'__name__': 'gone'})"
    environment = {**os.environ, "EVERSTREAM_KERNEL_CACHE": str(folder / "kernels")}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", runner],
            input=program.encode(),
            env=environment,
            cwd=folder,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()


def test_the_engine_of_the_documentation_runs_compiled_and_from_the_cache(tmp_path: Path) -> None:
    check = (
        "assert outcomes['committed'].to_list() == [True, True]\n"
        "assert dict(engine.table('accounts').items()) == {7: 1_000_030, 8: 1_000_020}\n"
        "engine.close()\n"
    )
    engine = block("engine.process_batch")
    program = BLOCKS[0] + engine.replace("ledger-log/", str(tmp_path / "log"))
    run_twice(program + check, tmp_path)


def test_the_pipeline_of_the_documentation_runs_on_spark(tmp_path: Path) -> None:
    check = (
        "found = pipeline.run(master='local[2]', store='checkpoints/', fresh=True).to_polars()\n"
        "assert found['committed'].to_list() == [True, True, False]\n"
        "assert found['src'].to_list() == [None, 1_000_050, 1_000_020]\n"
    )
    after = "assert dict(balances.iter_rows()) == {7: 1_000_030, 8: 1_000_020}\n"
    run_twice(BLOCKS[0] + BLOCKS[1] + check + block("read_tables") + after, tmp_path)


def test_the_pipeline_of_several_shards_of_the_documentation_runs(tmp_path: Path) -> None:
    check = (
        "found = sorted(result.collected(), key=lambda row: row['position'])\n"
        "assert [row['committed'] for row in found] == [True, True, False]\n"
        "assert [row['src'] for row in found] == [None, 1_000_050, 1_000_020]\n"
    )
    run_twice(BLOCKS[0] + BLOCKS[1] + block("shards=2") + check, tmp_path)
