"""Only processes of the same run can talk to each other over TCP."""

import tempfile
from pathlib import Path

import pytest
import zmq

from everstream.engine.continuous.transport.endpoints import (
    Address,
    RunKeys,
    SocketFactory,
    address_of,
    address_towards,
)


def test_whoever_does_not_know_the_key_of_the_run_is_not_heard() -> None:
    keys = RunKeys.make()
    inside = SocketFactory(keys, "127.0.0.1", always_tcp=True)
    friend = SocketFactory(keys, "127.0.0.1", always_tcp=True)
    stranger = SocketFactory(RunKeys.make(), "127.0.0.1", always_tcp=True)
    listening, address = inside.listen(zmq.PULL, "inbox")
    wrong_client_key = stranger.connect(zmq.PUSH, address)
    # One that even knows the server's public key, but has only a key pair of its own.
    half = SocketFactory(RunKeys(keys.public, keys.secret), "127.0.0.1", always_tcp=True)
    public, secret = zmq.curve_keypair()
    knows_server = half.context.socket(zmq.PUSH)
    knows_server.linger = 0
    knows_server.curve_serverkey = keys.public
    knows_server.curve_publickey, knows_server.curve_secretkey = public, secret
    knows_server.connect(address.tcp)
    no_key = half.context.socket(zmq.PUSH)
    no_key.linger = 0
    no_key.connect(address.tcp)
    for intruder in (wrong_client_key, knows_server, no_key):
        intruder.send(b"let me in")
    welcome = friend.connect(zmq.PUSH, address)
    for number in range(100):
        welcome.send(str(number).encode())
    heard = [listening.recv() for _ in range(100)]
    assert heard == [str(number).encode() for number in range(100)]
    assert listening.poll(0) == 0
    for socket in (listening, wrong_client_key, knows_server, no_key, welcome):
        socket.close()
    for sockets in (inside, friend, stranger, half):
        sockets.close()


def test_unix_sockets_live_in_a_folder_only_we_can_enter() -> None:
    sockets = SocketFactory(RunKeys.make())
    listening, address = sockets.listen(zmq.PULL, "inbox")
    assert address.tcp is None
    assert Path(sockets.folder).stat().st_mode & 0o777 == 0o700
    listening.close()
    sockets.close()
    assert not Path(sockets.folder).exists()


def test_the_secret_key_of_a_run_is_not_shown() -> None:
    keys = RunKeys.make()
    assert repr(keys.secret) not in repr(keys)
    assert keys.secret.decode() not in f"{keys} {[keys]!r}"


def test_a_long_temporary_folder_leaves_room_for_the_names_of_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 122)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    sockets = SocketFactory(RunKeys.make())
    listening, address = sockets.listen(zmq.PULL, "inbox")
    sending = sockets.connect(zmq.PUSH, address)
    sending.send(b"here")
    assert listening.recv() == b"here"
    assert Path(sockets.folder).stat().st_mode & 0o777 == 0o700
    assert list(long.iterdir()) == []
    for socket in (listening, sending):
        socket.close()
    sockets.close()


def test_a_machine_answers_at_the_address_that_reaches_the_other() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert address_towards(Address("m", "ipc://x", "tcp://127.0.0.2:5555").host) == "127.0.0.1"


def test_a_name_of_another_machine_is_no_address_of_this_one() -> None:
    assert address_of("localhost") == "127.0.0.1"
    assert address_of("192.0.2.1") is None, "reserved for examples: nobody has it"
