"""The programs in the documentation run as they stand, in more than one process."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "transactions.md"


def test_the_first_programs_of_the_documentation_run_compiled_and_from_the_cache(
    tmp_path: Path,
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    check = (
        "assert outcomes['committed'].to_list() == [True, True]\n"
        "assert dict(engine.table('accounts').items()) == {7: 1_000_030, 8: 1_000_020}\n"
        "engine.close()\n"
    )
    program = blocks[0] + blocks[1].replace("ledger-log/", str(tmp_path / "log")) + check
    runner = "import sys; exec(compile(sys.stdin.read(), 'example', 'exec'), {'__name__': 'gone'})"
    environment = {**os.environ, "EVERSTREAM_KERNEL_CACHE": str(tmp_path / "kernels")}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", runner],
            input=program.encode(),
            env=environment,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
