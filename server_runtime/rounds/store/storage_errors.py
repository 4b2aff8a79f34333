"""What is said when a file that must not be lost cannot be read or written."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedwright.protocol.errors import DeviceError, StorageError
from fedwright.server_runtime.rounds.store.database import DamagedStore

# Of a disk, a user's share of it, or a file that may not grow.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ANEW = "begin anew with the option --anew of `fedwright server run` and `simulate`, which keeps this under another name"


@contextmanager
def plain_storage_errors(store: Path, *, otherwise: str = ANEW) -> Iterator[None]:
    """Turn what SQLite and a full disk raise into a sentence that says what to do.

    store: the SQLite file; otherwise: the way out without a copy of it.
    """
    go_on = "the same command then goes on where it stopped"
    try:
        yield
    except sqlite3.OperationalError as err:
        raise StorageError(
            f"{store} cannot be used ({err}); free some space there and see that it may be written, {go_on}"
        ) from err
    except (sqlite3.DatabaseError, DamagedStore) as err:
        raise StorageError(f"{store} is damaged ({err}); put a copy of it back, or {otherwise}") from err
    except DeviceError as err:
        if isinstance(err.__cause__, OSError) and err.__cause__.errno in FULL:
            raise StorageError(f"{err}, {go_on}") from err
        raise
    except OSError as err:
        # numpy says only how much of an array it has written.
        if err.errno not in (*FULL, None):
            raise
        place = err.filename or f"a file of {store.parent} or of the folder for temporary files"
        raise StorageError(
            f"{place} cannot be written ({err.strerror or err}); free some space there, {go_on}"
        ) from err
