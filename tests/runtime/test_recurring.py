"""Errors that come again are told from those of something that may be back after a pause."""

import errno

import polars as pl
import pytest

from everstream.errors import ConnectorError, EnvironmentFault, StoreError, UserError
from everstream.runtime.explaining import will_recur


def because(
    cause: Exception, kind: type[ConnectorError] | type[StoreError] = ConnectorError
) -> EnvironmentFault:
    error = kind("cannot write")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        *(TypeError("x"), KeyError("x"), ZeroDivisionError(), UserError("no column")),
        *(pl.exceptions.ColumnNotFoundError("x"), ModuleNotFoundError("x")),
        *(PermissionError(errno.EACCES, "x"), NotADirectoryError(errno.ENOTDIR, "x")),
        *(
            because(OSError(errno.EROFS, "x")),
            because(PermissionError(errno.EACCES, "x"), StoreError),
        ),
    ],
)
def test_what_is_wrong_with_a_program_or_a_folder_stays_wrong(error: Exception) -> None:
    assert will_recur(error)


@pytest.mark.parametrize(
    "error",
    [
        *(ConnectionRefusedError(errno.ECONNREFUSED, "x"), TimeoutError(), RuntimeError("busy")),
        *(OSError(errno.ENOSPC, "x"), StoreError("x"), because(OSError(errno.EIO, "x"))),
        *(SystemExit(1), MemoryError(), because(ValueError("a network that is away"), StoreError)),
    ],
)
def test_what_may_be_back_after_a_pause_is_tried_again(error: BaseException) -> None:
    assert not will_recur(error)
