"""Only processes of the same run can talk to each other over TCP."""

from pathlib import Path

import zmq

from everstream.spark.endpoints import Doors, RunKeys


def test_whoever_does_not_know_the_key_of_the_run_is_not_heard() -> None:
    keys = RunKeys.make()
    inside = Doors(keys, "127.0.0.1", always_tcp=True)
    friend = Doors(keys, "127.0.0.1", always_tcp=True)
    stranger = Doors(RunKeys.make(), "127.0.0.1", always_tcp=True)
    listening, address = inside.listen(zmq.PULL, "inbox")
    wrong_client_key = stranger.connect(zmq.PUSH, address)
    # One that even knows the server's public key, but has only a key pair of its own.
    half = Doors(RunKeys(keys.public, keys.secret), "127.0.0.1", always_tcp=True)
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
    for doors in (inside, friend, stranger, half):
        doors.close()


def test_unix_sockets_live_in_a_folder_only_we_can_enter() -> None:
    doors = Doors(RunKeys.make())
    listening, address = doors.listen(zmq.PULL, "inbox")
    assert address.tcp is None
    assert Path(doors.folder).stat().st_mode & 0o777 == 0o700
    listening.close()
    doors.close()
    assert not Path(doors.folder).exists()
