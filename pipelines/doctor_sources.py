"""The doctor's checks of a run's sources: folders, annotation files, tables, arrays, JSON files."""

import functools
import itertools
from collections.abc import Iterator, Sequence

from pipelines.arrays import ArraysConfig
from pipelines.data_set import DataSetConfig
from pipelines.launch import RunConfig
from pipelines.sidecar import SidecarConfig
from pipelines.table import TableConfig
from transforms.doctor.diagnosis import Diagnosis, fine, wrong
from transforms.doctor.run_checks import Check
from transforms.doctor.sources import check_file, check_root, check_side_files
from transforms.quantities import counted
from transforms.sources.array_files import ArraySource, open_file
from transforms.sources.listed_files import ListedFile
from transforms.sources.side_files import SideNames, annotations_root, divide_glob
from transforms.sources.table_files import stat_tables
from transforms.sources.table_pieces import first_piece
from transforms.storage import Access, find_uri, join_uri, open_storage, split_uri

_ARRAY_FILES = 5
_SOURCE = "source"


def check_sources(run: RunConfig) -> list[Check]:
    """Return the checks of what a run reads."""
    config = run.config
    roots = dict.fromkeys([*config.roots.values(), *config.listed_roots.values()])
    files = dict.fromkeys(uri for uris in config.source_files.values() for uri in uris)
    files |= dict.fromkeys(filter(None, [config.exclude]))
    checks = [Check(uri, functools.partial(check_root, uri, config.access)) for uri in roots]
    checks += [Check(uri, functools.partial(check_file, uri, config.access)) for uri in files]
    return [*checks, *_contents(config)]


def _contents(config: DataSetConfig) -> list[Check]:
    """Return the checks of what files hold, but for COCO's, which are read whole with images."""
    access = config.access
    if isinstance(config, TableConfig):
        tables = config.table_files.items()
        return [
            Check(f"tables of {s}", functools.partial(_tables, s, u, access)) for s, u in tables
        ]
    if isinstance(config, ArraysConfig):
        arrays = config.sources.items()
        return [Check(s.uri, functools.partial(_arrays, s, access)) for _, s in arrays]
    if isinstance(config, SidecarConfig):
        given = config.annotations.values()
        return [Check(uri, functools.partial(_side_files, uri, access)) for uri in given]
    return []


def _tables(split: str, uris: Sequence[str], access: Access) -> Iterator[Diagnosis]:
    """Yield whether tables begin as their names say, with columns that have names."""
    for file in stat_tables(split, uris, access):
        piece = first_piece(file, open_storage(file.root, access))
        uri = join_uri(file.root, file.entry.name)
        if piece is None:
            yield wrong("E-SET-EMPTY", uri, "has no rows", "give a table with rows")
        else:
            columns = f", columns {', '.join(piece.columns[:10])}" if piece.columns else ""
            yield fine(uri, f"{piece.format}{columns}")


def _arrays(source: ArraySource, access: Access) -> Iterator[Diagnosis]:
    """Yield what the headers of the first array files tell."""
    if source.is_file:
        entries = [find_uri(source.uri, access)[1]]
    else:
        entries = list(itertools.islice(open_storage(source.uri, access).list(), _ARRAY_FILES))
    opened = [found for entry in entries for found in open_file(entry, source, access)]
    if opened:
        yield fine(source.uri, f"{counted(len(opened), 'array file')} looked at can be read")
    else:
        name = split_uri(source.uri)[1]
        remedy = "name the array with --image_array, or correct the path"
        yield wrong("E-SET-EMPTY", source.uri, f"{name} holds no array that is meant", remedy)


def _side_files(uri: str, access: Access) -> Iterator[Diagnosis]:
    folder, glob = divide_glob(uri)
    is_meant, root = SideNames({_SOURCE: glob}), annotations_root(_SOURCE)
    listed = open_storage(folder, access).list()
    matching = (entry for entry in listed if any(is_meant(ListedFile(root, entry))))
    yield from check_side_files(uri, (e for e in matching if e.kind == "file"), access)
