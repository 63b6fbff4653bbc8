"""No password is shown, whatever characters it has and whatever text it stands in."""

from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstream.engine.reporting.listener import LONGEST, sent
from everstream.events import Note
from everstream.hiding import hidden, hidden_in, place_of, without, without_secret

ODD = "/@ :?#%&='\"\\[]~"
passwords = st.text(
    st.sampled_from("abcXYZ019" + ODD) | st.characters(exclude_categories=["Cc", "Zl", "Zp", "Cs"]),
    max_size=20,
).map(lambda text: f"hunter2{text}2retnuh")
users = st.from_regex(r"[A-Za-z0-9_%.+-]{0,8}", fullmatch=True)
words = st.text("abc ,.;()-'\n", max_size=30)


@settings(deadline=None, max_examples=500)
@given(passwords, users, words, words, st.booleans())
def test_no_part_of_a_password_is_left_in_a_text(
    password: str, user: str, before: str, after: str, encoded: bool
) -> None:
    written = quote(password, safe="") if encoded else password
    text = f"{before}postgresql://{user}:{written}@db.example:5432/orders{after}"
    shown = hidden(text)
    assert "hunter2" not in shown and "2retnuh" not in shown
    assert f"postgresql://db.example:5432/orders{after}" in shown
    assert shown.startswith(before)


@settings(deadline=None, max_examples=300)
@given(passwords, users, st.sampled_from(["", "/a/b", "?sslmode=require", "/a?key=x"]))
def test_no_part_of_a_password_is_left_in_an_address(password: str, user: str, path: str) -> None:
    shown = without_secret(f"s3://{user}:{password}@bucket{path}")
    address, question, _ = path.partition("?")
    assert shown == f"s3://bucket{address}" + ("?..." if question else "")


@settings(deadline=None)
@given(passwords)
def test_a_password_is_not_found_in_what_a_library_says_of_it(password: str) -> None:
    for spelt in (password, quote(password, safe=""), quote(password)):
        assert "hunter2" not in without(f"cannot log in with '{spelt}' at host", [spelt])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/store@name is kept", "s3://bucket/store@name is kept"),
        ("http://127.0.0.1:4120/ is up", "http://127.0.0.1:4120/ is up"),
        ("ask admin@example.com", "ask admin@example.com"),
        ("git://token@host/x", "git://host/x"),
        ("redis://:pa ss@host/0: no answer", "redis://host/0: no answer"),
        ("host=db password='a b' user=u", "host=db password=*** user=u"),
        ("host=db password='a \\' b' user=u", "host=db password=*** user=u"),
        ("https://x/y?sig=1&access_token=abc&b=2", "https://x/y?sig=1&access_token=***&b=2"),
        ("{'sasl.password': 'a b', 'acks': 1}", "{'sasl.password': ***, 'acks': 1}"),
        ('{"api_key":"a/b"}', '{"api_key":***}'),
        ("credentials: check them", "credentials: check them"),
        ("one\nhttp://u:p@h\ntwo@x", "one\nhttp://h\ntwo@x"),
    ],
)
def test_only_what_may_be_secret_is_taken_out(text: str, shown: str) -> None:
    assert hidden(text) == shown


def test_a_long_text_is_cut_behind_the_passwords() -> None:
    for room in range(60):
        text = " " * (LONGEST - room) + "s3://user:hunter2-and-more@bucket" + " " * 100
        note = sent(Note("input", text))
        assert isinstance(note, Note) and "hunter" not in note.text


@pytest.mark.parametrize("url", ["redis://u:1234/x@host", "https://u:80/p@h/x", "https://h/a?b@c"])
def test_an_address_whose_password_is_taken_for_a_port_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        place_of(url)


def test_an_address_is_shown_without_who_connects() -> None:
    assert place_of("redis://user:p%40ss@host:6379/0?db=1") == "redis://host:6379/0"
    assert place_of("https://[::1]:80/x") == "https://[::1]:80/x"


def test_passwords_are_hidden_in_everything_that_is_told_of_a_failure() -> None:
    told = {"what": "cannot open s3://u:p/w@b", "steps": ["s3://u:p w@b", 1], "n": None}
    assert hidden_in(told) == {"what": "cannot open s3://b", "steps": ["s3://b", 1], "n": None}
