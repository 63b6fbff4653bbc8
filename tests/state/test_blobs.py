"""Blobs are whole or not there: on disk, in memory, with crashes, races and full disks."""

import errno
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from everstream.errors import InternalError, NotStored, StoreError
from everstream.state import FsspecBlobs
from everstream.state.objects import checksum_of


def test_what_was_written_is_read_and_the_last_writer_wins(url: str) -> None:
    blobs = FsspecBlobs(url)
    blobs.write("a/b/c", b"one")
    blobs.write("a/b/c", b"two")
    assert blobs.read("a/b/c") == b"two"
    blobs.write("empty", b"")
    assert blobs.read("empty") == b""
    with pytest.raises(FileNotFoundError):
        blobs.read("a/b/d")


def test_create_refuses_to_replace(url: str) -> None:
    blobs = FsspecBlobs(url)
    blobs.create("a/b", b"one")
    with pytest.raises(FileExistsError):
        blobs.create("a/b", b"two")
    assert blobs.read("a/b") == b"one"
    assert blobs.list("") == ["a/b"]


def test_list_gives_the_paths_with_a_prefix_and_delete_is_harmless_twice(url: str) -> None:
    blobs = FsspecBlobs(url)
    assert blobs.list("") == blobs.list("logs/") == []
    for path in ("logs/2", "logs/1", "logs/deep/3", "logs-other/4", "5"):
        blobs.write(path, b"x")
    assert blobs.list("logs/") == ["logs/1", "logs/2", "logs/deep/3"]
    assert blobs.list("logs/d") == ["logs/deep/3"]
    assert len(blobs.list("")) == 5 and len(blobs.list("logs")) == 4
    blobs.delete("logs/1")
    blobs.delete("logs/1")
    blobs.delete("nowhere/1")
    assert blobs.list("logs/") == ["logs/2", "logs/deep/3"]


def test_blobs_can_be_sent_to_another_process(url: str) -> None:
    FsspecBlobs(url).write("a", b"1")
    assert pickle.loads(pickle.dumps(FsspecBlobs(url))).read("a") == b"1"


class TokenExpired(Exception):
    """As the libraries of object stores have them: no OSError."""


class Broken:
    """A disk that raises an error of its own kind, whatever is asked of it."""

    def __getattr__(self, operation: str) -> Callable[..., None]:
        def fail(*arguments: object) -> None:
            raise TokenExpired("the token has expired")

        return fail


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("write", ("a", b"1")),
        ("write_summed", ("a", b"1")),
        ("create", ("a", b"1")),
        ("read", ("a",)),
        ("list", ("a",)),
        ("delete", ("a",)),
        ("clean", ()),
    ],
)
def test_an_error_of_any_kind_becomes_one_of_ours_that_says_what_and_why(
    tmp_path: Path, operation: str, arguments: tuple[object, ...]
) -> None:
    blobs = FsspecBlobs(str(tmp_path))
    blobs._disk = Broken()
    with pytest.raises(StoreError) as raised:
        getattr(blobs, operation)(*arguments)
    assert "cannot" in str(raised.value) and str(tmp_path) in str(raised.value)
    assert "TokenExpired: the token has expired" in str(raised.value)
    assert not isinstance(raised.value, NotStored), "it may be there all the same"


def test_paths_outside_the_store_are_refused(url: str) -> None:
    for path in ("../a", "/etc/a", "a/../../b"):
        with pytest.raises(InternalError, match="not a path inside"):
            FsspecBlobs(url).write(path, b"")


def test_file_urls_mean_the_local_disk(tmp_path: Path) -> None:
    FsspecBlobs(f"file://{tmp_path}/store").write("a", b"1")
    assert (tmp_path / "store" / "a").read_bytes() == b"1"


def test_a_url_nobody_knows_is_refused() -> None:
    with pytest.raises(StoreError, match="protocol that fsspec knows"):
        FsspecBlobs("nonsense://bucket/folder")


def test_threads_racing_to_create_have_one_winner(url: str) -> None:
    blobs = FsspecBlobs(url)
    # The store of the tests takes about a second to settle a race.
    for round_ in range(3 if url.startswith("s3:") else 12):
        start = threading.Barrier(4)
        winners: list[int] = []

        def race(number: int, start: threading.Barrier, won: list[int], path: str) -> None:
            start.wait()
            try:
                blobs.create(path, str(number).encode())
            except FileExistsError:
                return
            won.append(number)

        path = f"slots/{round_}"
        threads = [threading.Thread(target=race, args=(n, start, winners, path)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1
        assert blobs.read(path) == str(winners[0]).encode()


def child(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True
    )


RACER = """
import sys
from everstream.state import FsspecBlobs
url, me = sys.argv[1:]
blobs = FsspecBlobs(url)
for slot in range(200):
    try:
        blobs.create(f"slots/{slot:04d}", me.encode() * 1000)
    except FileExistsError:
        continue
    print(slot)
"""


def test_processes_racing_to_create_have_one_winner_per_path(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    racers = {name: child(RACER, url, name) for name in "abc"}
    won = {name: racer.communicate()[0].split() for name, racer in racers.items()}
    assert all(racer.returncode == 0 for racer in racers.values())
    assert sorted(int(slot) for slots in won.values() for slot in slots) == list(range(200))
    blobs = FsspecBlobs(url)
    for name, slots in won.items():
        for slot in slots:
            assert blobs.read(f"slots/{int(slot):04d}") == name.encode() * 1000


WRITER = """
import itertools, os, sys
from everstream.state import FsspecBlobs
from everstream.state.objects import checksum_of
url, run = sys.argv[1:]
blobs = FsspecBlobs(url)
print("ready", flush=True)
for number in itertools.count():
    body = os.urandom(400_000)
    data = checksum_of(body).encode() + body
    blobs.write("replaced", data)
    blobs.write(f"written/{run}-{number:05d}", data)
    blobs.create(f"created/{run}-{number:05d}", data)
    print(number, flush=True)
"""


def test_a_killed_writer_never_leaves_a_torn_blob(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    blobs = FsspecBlobs(url)
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    for run in range(12):
        writer = child(WRITER, url, str(run))
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        # Let it write some, then strike wherever it happens to be after a random delay.
        for _ in range(chance.randrange(3)):
            writer.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(timeout=chance.random() * 0.02)
        writer.send_signal(signal.SIGKILL)
        reported = [int(line) for line in writer.stdout.read().split()]
        writer.wait()
        found = blobs.list("")
        for path in found:
            data = blobs.read(path)
            assert checksum_of(data[32:]).encode() == data[:32], f"{path} is torn, seed {seed}"
        for number in reported:
            assert f"written/{run}-{number:05d}" in found, f"seed {seed}"
            assert f"created/{run}-{number:05d}" in found, f"seed {seed}"
        blobs.clean()
        left = [path for path in Path(url).rglob("*") if path.is_file()]
        assert len(left) == len(found)
        for path in found:
            blobs.delete(path)


@pytest.mark.parametrize("call", ["writev", "fsync", "replace", "link"])
def test_a_writer_killed_at_each_step_leaves_the_previous_blob_or_the_next(
    tmp_path: Path, call: str
) -> None:
    program = f"""
import os, signal, sys
from everstream.state import FsspecBlobs
blobs = FsspecBlobs(sys.argv[1])
blobs.write("replaced", b"previous" * 1000)
real = os.{call}
def die(*arguments):
    if "{call}" == "writev":
        real(arguments[0], [arguments[1][0][:1000]])
    os.kill(os.getpid(), signal.SIGKILL)
os.{call} = die
if "{call}" == "link":
    blobs.create("created", b"next" * 1000)
blobs.write("replaced", b"next" * 1000)
"""
    url = str(tmp_path / "store")
    process = child(program, url)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    blobs = FsspecBlobs(url)
    assert blobs.list("") == ["replaced"]
    assert blobs.read("replaced") == b"previous" * 1000
    assert len(os.listdir(url)) == 2
    blobs.clean()
    assert os.listdir(url) == ["replaced"]


def test_cleaning_spares_what_a_live_process_is_writing(tmp_path: Path) -> None:
    blobs = FsspecBlobs(str(tmp_path))
    blobs.write("a", b"1")
    mine = next(
        name for name in [_temporary_name_of(os.getpid()), _temporary_name_of(os.getppid())] if name
    )
    (tmp_path / mine).write_bytes(b"half")
    blobs.clean()
    assert (tmp_path / mine).exists() and blobs.list("") == ["a"]


def _temporary_name_of(pid: int) -> str:
    from everstream.state.storage.localdisk import _HOST

    return f".a.{_HOST}.{pid}.0.tmp"


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EACCES, "Grant this user write access"),
        (errno.EIO, "Check"),
    ],
)
@pytest.mark.parametrize("call", ["writev", "fsync", "replace"])
def test_a_failing_disk_gives_an_error_that_names_the_path_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str, call: str
) -> None:
    blobs = FsspecBlobs(str(tmp_path))
    blobs.write("a/b", b"whole")

    def fail(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StoreError, match=rf"cannot write 'a/b'.*{os.strerror(code)}.*{advice}"):
        blobs.write("a/b", b"other")
    monkeypatch.undo()
    assert blobs.read("a/b") == b"whole"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["b"]


@pytest.mark.parametrize(("call", "known"), [("writev", True), ("fsync", True), ("link", False)])
def test_a_create_that_failed_before_it_gave_the_name_is_known_to_have_put_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, known: bool
) -> None:
    blobs = FsspecBlobs(str(tmp_path))

    def fail(*arguments: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StoreError, match=r"cannot create 'a/b'.*Input/output error") as failed:
        blobs.create("a/b", b"1")
    assert isinstance(failed.value, NotStored) is known
    assert blobs.list("") == []


def test_a_disk_that_takes_few_bytes_at_a_time_gets_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, pieces: real(fd, [pieces[0][:7]]))
    blobs = FsspecBlobs(str(tmp_path))
    blobs.write("a", bytes(range(100)))
    assert blobs.read("a") == bytes(range(100))


@pytest.mark.parametrize("most", [7, 150, 10_000])
def test_pieces_follow_each_other_however_many_bytes_the_disk_takes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    pieces = tuple(bytes([number % 256]) * (number % 5 * 50) for number in range(2500))

    def some(fd: int, views: list[memoryview]) -> int:
        data = b"".join(views[:1024])[:most]
        return os.write(fd, data)

    monkeypatch.setattr(os, "writev", some)
    blobs = FsspecBlobs(str(tmp_path))
    checksum = blobs.write_summed("a", pieces)
    assert checksum == checksum_of(b"".join(pieces)) == checksum_of(pieces)
    assert blobs.read(f"a.{checksum}") == b"".join(pieces)
    assert blobs.list("") == [f"a.{checksum}"]


def test_a_really_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        blobs = FsspecBlobs(str(folder))
        blobs.write("a", b"1" * 500_000)
        with pytest.raises(StoreError, match=r"cannot write 'a'.*No space left.*Free some space"):
            blobs.write("a", b"2" * 700_000)
        with pytest.raises(StoreError, match=r"cannot create 'b'.*No space left"):
            blobs.create("b", b"2" * 700_000)
        assert blobs.read("a") == b"1" * 500_000
        assert os.listdir(folder) == ["a"]
        blobs.write("b", b"3" * 400_000)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_file_in_place_of_the_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(StoreError, match="A file is in the place of a folder"):
        FsspecBlobs(str(tmp_path / "store")).write("a/b", b"")
