"""The two things numba does not provide: a typed `njit`, and atomics on array elements.

Kernels run without the GIL, so threads that share arrays coordinate through `load`,
`store`, `fetch_add` and nothing else. Each has a plain Python twin for transactions
that run interpreted, where one thread does everything.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from everstream.errors import UserError
from everstream.extras import extra

VARIABLE = "EVERSTREAM_KERNEL_CACHE"


def cache_folder() -> Path:
    """The folder, created if missing; only its owner can access it, because its files are executed."""
    base = os.environ.get(VARIABLE)
    if base is None:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(Path.home(), ".cache")
        base = os.path.join(caches, "everstream", "kernels")
    folder = Path(base)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = folder.stat()
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise UserError(
            f"'{folder}' belongs to another user, or others may write to it, and what lies there is "
            f"executed. Run `chmod 700` on it, or name a folder of your own in {VARIABLE}."
        )
    return folder


F = TypeVar("F", bound=Callable[..., Any])


# Numba numbers the files of a function's signatures by its index, and takes no lock: two processes that
# compile two signatures at the same time give both the same number, and the index then leads from one
# signature to the code of the other. Code for other types computes nonsense silently.
def one_at_a_time(dispatcher: F) -> F:
    """A numba function whose cache no two processes read or write at the same time."""
    files = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if files is not None:  # compilation may be disabled
        files.save = _alone(files, files.save)
        files.load = _alone(files, files.load)
    return dispatcher


def _alone(files: Any, work: F) -> F:
    @wraps(work)
    def guarded(*args: Any) -> Any:
        with _locked(f"{files._index_path}.lock"):
            return work(*args)

    return guarded  # type: ignore[return-value]


@contextmanager
def _locked(path: str) -> Iterator[None]:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # a read-only folder needs no lock
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


with extra("transactions"):
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic


def kernel(function: F) -> F:
    """Compile to machine code that releases the GIL and is cached on disk between processes."""
    return cast(F, one_at_a_time(njit(nogil=True, cache=True)(function)))


_cgutils: Any = cgutils


def walk_kernel(function: F) -> F:
    """Like `kernel`, for code that allocates nothing.

    Without reference counting: taking an array out of a tuple would otherwise cost two
    atomic operations each time, several times what a transaction costs.
    """
    options: dict[str, Any] = {"nogil": True, "cache": True, "_nrt": False}
    return cast(F, one_at_a_time(njit(**options)(function)))


def _element_pointer(
    context: Any, builder: Any, signature: Any, array_value: Any, index_value: Any
) -> Any:
    array_type = signature.args[0]
    array = context.make_array(array_type)(context, builder, value=array_value)
    index = context.cast(builder, index_value, signature.args[1], types.intp)
    return _cgutils.get_item_pointer(context, builder, array_type, array, [index])


def _fetch_add(_typing: Any, array: Any, index: Any, amount: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _element_pointer(context, builder, signature, args[0], args[1])
        amount_value = context.cast(builder, args[2], signature.args[2], array.dtype)
        return builder.atomic_rmw("add", pointer, amount_value, "seq_cst")

    return array.dtype(array, index, amount), codegen


def _load(_typing: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _element_pointer(context, builder, signature, args[0], args[1])
        return builder.load_atomic(pointer, "acquire", align=array.dtype.bitwidth // 8)

    return array.dtype(array, index), codegen


def _store(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _element_pointer(context, builder, signature, args[0], args[1])
        stored = context.cast(builder, args[2], signature.args[2], array.dtype)
        builder.store_atomic(stored, pointer, "release", align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, index, value), codegen


def _cycles(_typing: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        counter = _cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.IntType(64), []), "llvm.readcyclecounter"
        )
        return builder.call(counter, [])

    return types.int64(), codegen


def _unwrap(_typing: Any, value: Any) -> Any:
    """The value inside an optional, for code that has already checked that it is not None."""
    if not isinstance(value, types.Optional):
        return value(value), lambda _context, _builder, _signature, args: args[0]

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        optional = context.make_helper(builder, value, value=args[0])
        return optional.data

    return value.type(value), codegen


fetch_add = cast(Callable[[Any, int, int], int], intrinsic(_fetch_add))
load = cast(Callable[[Any, int], int], intrinsic(_load))
store = cast(Callable[[Any, int, int], None], intrinsic(_store))
cycles = cast(Callable[[], int], intrinsic(_cycles))
unwrap = cast(Callable[[Any], Any], intrinsic(_unwrap))

# Called by symbol, not by address, so that kernels using it can be cached on disk.
give_way = cast(Callable[[], int], types.ExternalFunction("sched_yield", types.int32()))


def python_fetch_add(array: Any, index: int, amount: int) -> int:
    before = int(array[index])
    array[index] = before + amount
    return before


def python_load(array: Any, index: int) -> int:
    return int(array[index])


def python_store(array: Any, index: int, value: int) -> None:
    array[index] = value


def python_unwrap(value: Any) -> Any:
    return value


def python_cycles() -> int:
    return 0


python_give_way = python_cycles


@kernel
def spin(iterations: int, seed: int) -> int:
    """Busy work in place of a costly user function; never returns 0, which callers rely on."""
    x = np.uint64(seed) | np.uint64(1)
    for _ in range(iterations):
        x ^= x << np.uint64(13)
        x ^= x >> np.uint64(7)
        x ^= x << np.uint64(17)
    return x  # type: ignore[return-value]


@kernel
def _cycles_now() -> int:
    return cycles()


def cycles_per_second(window_s: float = 0.005) -> float:
    """How fast the cycle counter runs, compared with the monotonic clock."""
    _cycles_now()
    start_s, start = time.perf_counter(), _cycles_now()
    while time.perf_counter() - start_s < window_s:
        pass
    return (_cycles_now() - start) / (time.perf_counter() - start_s)
