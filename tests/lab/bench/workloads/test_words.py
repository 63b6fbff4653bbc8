"""The words: replayable, and as skewed as Zipf says."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstream.errors import UserError
from everstream.testing.sources import check_source
from everstream_lab.bench.workloads.words import Words


def test_words_are_a_source_that_replays_and_covers_everything_once() -> None:
    words = Words(total=1_000, seed=4, vocabulary=50)
    check_source(lambda: words.source(batch=64), expected=words.all().rows(named=True))


@given(seed=st.integers(0, 2**63), start=st.integers(0, 10**12), length=st.integers(1, 200))
@settings(max_examples=40)
def test_words_depend_on_seed_and_position_alone(seed: int, start: int, length: int) -> None:
    words = Words(seed=seed)
    whole = words.words(start, start + length)
    one_by_one = pl.concat([words.words(n, n + 1) for n in range(start, start + length)])
    assert whole.equals(one_by_one)


def test_words_come_as_often_as_zipf_says() -> None:
    words = Words(total=1_000_000, vocabulary=1_000).all()
    ranks = words["word"].str.slice(1).cast(pl.Int64).to_numpy()
    counts = np.bincount(ranks, minlength=1_000)
    law = 1 / (1 + np.arange(1_000))
    expected = law / law.sum() * len(ranks)
    # Five standard deviations of a count, and a hundredth for the slots of the table.
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 0.02 * expected + 2).all()


def test_without_skew_all_words_are_as_common() -> None:
    counts = Words(total=100_000, vocabulary=100, exponent=0.0).all()["word"].value_counts()
    assert counts.height == 100
    assert counts["count"].min() > 850


def test_every_word_of_a_large_vocabulary_can_come_up() -> None:
    assert Words(total=3_000_000, timed=False).all()["word"].n_unique() == 10_000


def test_wrong_settings_are_refused_with_a_reason() -> None:
    with pytest.raises(UserError, match="vocabulary"):
        Words(vocabulary=0)
    with pytest.raises(UserError, match="words_per_s"):
        Words(words_per_s=0)
    with pytest.raises(UserError, match="endless"):
        Words().all()
