"""Look at an output as a run would find it, without writing anything there."""

import errno
import os
from collections.abc import Sequence

from schemas.manifest import JobPlan
from schemas.shards import ShardNames
from transforms.output_files import receipts, refuse_foreign, removed_names, split_of, top_level
from transforms.publish_plan import is_claimed
from transforms.storage import Storage, is_beams, is_local
from transforms.storage.disk import coded

FREE, OURS, COMPLETE, OVERWRITTEN, REFUSED = "free", "ours", "complete", "overwritten", "refused"
"""What an output can be found to be: see `RunPlan.state`."""


def refuse_no_place(output: Storage) -> None:
    """Refuse an output that cannot be written, as far as that can be seen without trying.

    Raises:
        RuntimeError: `E-IO-…` as `Storage.probe` would.
    """
    if not is_local(output.root):
        if not is_beams(output.root):
            output.require_folder()
        return
    if os.path.exists(output.root) and not os.path.isdir(output.root):
        raise coded(_error(errno.EEXIST), output.root)
    above = _nearest(output.root)
    if not os.path.isdir(above):
        raise coded(_error(errno.ENOTDIR), output.root)
    if os.statvfs(above).f_flag & os.ST_RDONLY:
        raise coded(_error(errno.EROFS), output.root)
    if not os.access(above, os.W_OK | os.X_OK):
        raise coded(_error(errno.EACCES), output.root)


def free_bytes(output: Storage) -> int | None:
    """Return how much room this user has where a local output lies; None where it is elsewhere."""
    if not is_local(output.root):
        return None
    disk = os.statvfs(_nearest(output.root))
    return disk.f_bavail * disk.f_frsize


def look_at_output(
    plan: JobPlan, output: Storage, names: ShardNames, splits: Sequence[str], *, overwrite: bool
) -> tuple[str, int]:
    """Return what an output is to a run, and how many of its shards are finished there.

    Args:
        plan: of the run.
        output: of the run.
        names: how its shard files are called.
        splits: of the run.
        overwrite: whether the run deletes a data set there first.

    Raises:
        RuntimeError: `E-OUT-PLAN` or `E-OUT-FOREIGN`, as `publish_plan` would.
    """
    if overwrite:
        gone = removed_names(output, names, splits)
        refuse_foreign(output, names, gone)
        return (OVERWRITTEN, 0) if gone else (FREE, 0)
    if not is_claimed(plan, output, names):
        return FREE, 0
    claimed = len(receipts(output))
    files = sum(split_of(name, names) is not None for name in top_level(output))
    return OURS, min(claimed, files)  # a shard's file is the last of it


def _nearest(path: str) -> str:
    """Return a path, or the nearest one above it that is there."""
    path = os.path.abspath(path)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
