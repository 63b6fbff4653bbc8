"""One table of bytes on the local disk: RocksDB, set up for state that is looked up at random.

Its files never change once they are written, so a checkpoint saves the names of all files and the
contents of new ones. It has no write-ahead log: data that is not in a checkpoint is lost with the
process anyway, as it is in memory.
"""

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from everstream.errors import CorruptObject
from everstream.extras import extra

if TYPE_CHECKING:
    from rocksdict import Options, WriteOptions

WRITE_BUFFER_BYTES: Final = 16 << 20
"""Writes are flushed to a file when they reach this size."""
FILE_BYTES: Final = 16 << 20
CACHE_BYTES: Final = 32 << 20
"""For blocks that are read; the system caches the pages of the files themselves."""
FILES: Final = ".sst"
"""The suffix of files that never change."""
_UNFLUSHED: Final = "rocksdb.num-immutable-mem-table"
_FAILED: Final = "rocksdb.background-errors"
_FLUSH_LOOK_S: Final = 0.005


def require_engine() -> None:
    """Raise a MissingExtra if the package is not installed."""
    with extra("disk"):
        import rocksdict  # noqa: F401


class RocksTable:
    """Bytes under bytes, in a separate folder."""

    def __init__(self, folder: Path) -> None:
        """Opens the table in this folder, or makes an empty one."""
        self.folder = folder
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with extra("disk"):
            from rocksdict import Rdict
        options, self._unlogged = _options()
        try:
            self._db: Rdict = Rdict(str(folder), options)
        except Exception as error:  # the binding has no specific class for errors of RocksDB
            raise CorruptObject(f"the state in {folder} cannot be opened: {error}") from error
        self._db.set_write_options(self._unlogged)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The value of each of these keys, if any."""
        values: list[bytes | None] = self._db.get(keys)  # type: ignore[assignment, arg-type]
        return values

    def write(self, changed: Mapping[bytes, bytes], gone: Iterable[bytes]) -> None:
        """Put these and delete those, atomically."""
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        for key, value in changed.items():
            batch[key] = value
        for key in gone:
            batch.delete(key)
        self._db.write(batch, self._unlogged)

    def pairs(self, first: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """All keys with their values, as of now, in the order of their bytes, from this one on."""
        return iter(self._db.items(from_key=first))  # type: ignore[arg-type]

    def save_as(self, folder: Path) -> None:
        """Everything as it is now, in another folder; its files are links to the same ones."""
        from rocksdict import Checkpoint

        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.rmtree(folder, ignore_errors=True)
        self._flush()
        Checkpoint(self._db).create_checkpoint(str(folder))

    def _flush(self) -> None:
        """Flush everything to files. The flush is only started here and then awaited, because the
        binding blocks all Python threads during a call."""
        number, failed = self._db.property_int_value, self._db.property_int_value(_FAILED)
        self._db.flush(wait=False)
        # A flush that fails is reported by the code that needs the files.
        while number(_UNFLUSHED) and number(_FAILED) == failed:
            time.sleep(_FLUSH_LOOK_S)

    def close(self) -> None:
        """And remove its folder."""
        with suppress(Exception):  # it is removed anyway, so a failed close does not matter
            self._db.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _options() -> tuple["Options", "WriteOptions"]:
    from rocksdict import (
        BlockBasedOptions,
        Cache,
        DBCompactionStyle,
        DBCompressionType,
        Options,
        WriteOptions,
    )

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(3)
    options.set_target_file_size_base(FILE_BYTES)
    options.set_max_background_jobs(2)
    # Every checkpoint makes a small file: level by level, those would be merged and saved
    # repeatedly.
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_keep_log_file_num(1)
    # Blocks are read from the system's cache: neither copied nor unpacked for one key.
    options.set_compression_type(DBCompressionType.none())
    options.set_allow_mmap_reads(True)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(CACHE_BYTES))
    blocks.set_bloom_filter(10, False)
    # In the cache, index and filter would have to be found again for every key.
    blocks.set_cache_index_and_filter_blocks(False)
    blocks.set_format_version(5)
    options.set_block_based_table_factory(blocks)
    unlogged: Any = WriteOptions()
    unlogged.disable_wal = True
    return options, unlogged
