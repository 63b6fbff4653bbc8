"""An application that was just made runs in every form, with the same result."""

from pathlib import Path

import pytest

from everstream_lab.apps.cycle.skeleton import skeleton
from everstream_lab.apps.interfaces.job import Job
from everstream_lab.apps.interfaces.pools import threads
from everstream_lab.apps.lookup import application_at
from tests.docs import simulated


@pytest.mark.parametrize("stages", [["parse"], ["parse", "score", "tell"]])
def test_a_new_application_gives_one_result_in_all_forms(
    stages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"made_{len(stages)}.py"
    file.write_text(skeleton("made", stages))
    made = application_at(str(file))
    assert [stage.__name__ for stage in made.stages] == stages
    folder = tmp_path / "input"
    folder.mkdir()
    made.make_input(made.sizes["test"], folder, lambda done, total: None)
    made.sequential(folder, tmp_path / "right")
    right = (tmp_path / "right").read_bytes()
    assert len(right.splitlines()) == 100

    threads(Job(made, str(file), folder, tmp_path / "by-threads", batch=9))
    assert (tmp_path / "by-threads").read_bytes() == right
    for name, make in (("piped", made.pipeline), ("annotated", made.annotated)):
        parts = tmp_path / f"{name}-parts"
        simulated.run(make(folder, parts, shards=2, batch=9))
        made.finish(folder, parts, tmp_path / name)
        assert (tmp_path / name).read_bytes() == right
