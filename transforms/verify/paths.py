"""Find what is to be verified: the data sets and the TFRecord files that paths name."""

import posixpath
from collections.abc import Sequence

from schemas.faults import fault_line
from schemas.findings import Findings
from schemas.manifest import MANIFEST_NAME, PLAN_NAME
from schemas.shards import RECEIPTS_DIR
from transforms.output_files import receipts
from transforms.storage import Access, join_uri, open_storage, split_uri

SUFFIXES = (".tfrec", ".tfrecord", ".tfrecords")
"""Of TFRecord files, whatever follows a dash, and `.gz`."""


def find_paths(
    paths: Sequence[str], access: Access, findings: Findings
) -> tuple[list[str], list[str]]:
    """Return the data sets and the TFRecord files among the paths.

    Findings are a manifest that a plan is without, and what a folder calls TFRecords and nobody can
    read, such as a dangling link.

    Raises:
        RuntimeError: `E-ARG` where a path is nothing, or a folder without either.
    """
    data_sets: list[str] = []
    files: list[str] = []
    for path in paths:
        if is_record_file(path):
            files.append(path)
            continue
        storage = open_storage(path, access)
        if storage.stat(MANIFEST_NAME) is not None:
            data_sets.append(path)
            continue
        records = [e for e in storage.list(recursive=False) if is_record_file(e.name)]
        has_plan = storage.stat(PLAN_NAME) is not None
        if has_plan or receipts(storage):
            remains = f"{PLAN_NAME} is" if has_plan else f"{RECEIPTS_DIR} are"
            what = f"is not there, and {remains}: the data set is not complete"
            remedy = "run its command again, or restore it from a copy"
            findings.add("E-VER-MISSING", join_uri(path, MANIFEST_NAME), what, remedy)
        elif not records:
            files.append(_file_of_any_name(path, access))
        for entry in sorted(records, key=lambda entry: entry.name):
            where = join_uri(path, entry.name)
            if entry.kind == "file":
                files.append(where)
            else:
                remedy = "mend or rename it, or take it out of the folder"
                findings.add("E-VER-MISSING", where, f"is a {entry.kind}, and not read", remedy)
    return data_sets, files


def is_record_file(name: str) -> bool:
    """Return whether a file is called like TFRecords: those of TFDS end in `-00000-of-00016`.

    >>> is_record_file("a.tfrecord-00000-of-00002"), is_record_file("out")
    (True, False)
    """
    stem = posixpath.basename(name).removesuffix(".gz")
    return any(stem.endswith(suffix) or f"{suffix}-" in stem for suffix in SUFFIXES)


def _file_of_any_name(path: str, access: Access) -> str:
    """Return a path that must be a file, since it is no folder of anything to verify.

    Raises:
        RuntimeError: `E-ARG`.
    """
    root, name = split_uri(path.rstrip("/") or path)
    entry = open_storage(root, access).stat(name) if name not in ("", ".", "..") else None
    is_folder = name in ("", ".", "..") or (entry is not None and entry.kind == "directory")
    if entry is None or is_folder:
        holds = "holds no" if is_folder else "no such file, and no folder with"
        what = f"{holds} {MANIFEST_NAME} or TFRecord files ({', '.join(SUFFIXES)})"
        remedy = "give a data set, a folder of such files, or the path of each"
        raise RuntimeError(fault_line("E-ARG", path, what, remedy))
    return path
