"""Find the arrays of sources: in `.npy` files, `.npz` archives, and folders of either.

A file that is given is an array, or an archive with one. A folder's files are shards of one array,
in the order of their names, or hold a sample each. What belongs to an image array, its labels and
features, are arrays of the same archive, or `NAME.npy` files next to it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from schemas.faults import fault_line
from schemas.tensors import BFLOAT16, HEAD_BYTES, NPY_TEXT_TYPES, TEXT, NpyHeader, parse_npy_header
from transforms.sources.listed_files import HIDDEN, ListedFile, is_file, is_folder, why_skipped
from transforms.sources.npz import NPY, NPZ, SAVE_AGAIN, find_member, list_members, read_packed
from transforms.storage import DEFAULT_ACCESS, Access, Entry, find_uri, join_uri, open_storage
from transforms.storage.stored_file import open_stored

USUAL_NAMES = ("x", "images", "image")
"""Names of image arrays, where an archive has several arrays and none is asked for."""


@dataclass(frozen=True)
class ArraySource:
    """Where the arrays of a split lie.

    Attributes:
        uri: of a `.npy` or `.npz` file, or of a folder of them.
        image: name of the image array; empty for the only one, or one of `USUAL_NAMES`.
        label: name of the label array, or URI of its `.npy` file; empty for none.
        features: names of other arrays.
        dtype: what values of two bytes without a type are; None for no such values.
        one_sample_per_file: each file of a folder is a sample, and not an array of several.
    """

    uri: str
    image: str = ""
    label: str = ""
    features: tuple[str, ...] = ()
    dtype: str | None = None
    one_sample_per_file: bool = False

    @property
    def is_file(self) -> bool:
        """Whether it is one file."""
        return self.uri.endswith((NPY, NPZ))

    @property
    def folder(self) -> str:
        """URI of the folder that the names of its files are relative to."""
        return self.uri.rpartition("/")[0] or "." if self.is_file else self.uri

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of what belongs to the image array, its label first."""
        return (*filter(None, [self.label]), *self.features)

    @property
    def files(self) -> list[str]:
        """URIs of single files that it is known to be read from."""
        own = [self.uri] if self.is_file else []
        beside = [self.side_uri(name) for name in self.sides] if self.uri.endswith(NPY) else []
        given = [self.label] if self.label.endswith(NPY) else []
        return [*dict.fromkeys([*own, *beside, *given])]

    def side_uri(self, name: str) -> str:
        """Return the URI of an array's `.npy` file next to the images."""
        return name if name.endswith(NPY) else join_uri(self.folder, f"{name}{NPY}")


class StoredArray(msgspec.Struct, frozen=True, array_like=True):
    """An array and where it lies.

    Attributes:
        folder: URI of the folder that its file is in.
        entry: its file, as listed.
        header: of the array; where its values lie in the file or, if packed, in the member.
        packed: name of the compressed member that it is; empty for none.
    """

    folder: str
    entry: Entry
    header: NpyHeader
    packed: str = ""

    @property
    def rows(self) -> int:
        """The length of its first axis; one value alone is one row."""
        return self.header.shape[0] if self.header.shape else 1

    @property
    def where(self) -> str:
        """What is said of where it is."""
        where = join_uri(self.folder, self.entry.name)
        return f"{where}:{self.packed}" if self.packed else where


class OpenedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a source, its headers read.

    Attributes:
        images: its image array.
        sides: of an archive, what belongs to it.
    """

    images: StoredArray
    sides: tuple[StoredArray, ...] = ()


def open_file(
    entry: Entry, source: ArraySource, access: Access = DEFAULT_ACCESS
) -> Iterator[OpenedFile]:
    """Yield the arrays of a source's file; none where it holds no image array.

    Raises:
        RuntimeError: `E-ARR-…` when it cannot be read, `E-ARG` when an array is not there, or a
            storage fault.
    """
    if not (source.is_file or _is_meant(entry, source.folder)):
        return
    if entry.name.endswith(NPY):
        stem = entry.name.removesuffix(NPY)
        beside = {source.side_uri(name) for name in source.sides}
        is_image = stem == source.image if source.image else True
        if source.is_file or (is_image and join_uri(source.folder, entry.name) not in beside):
            yield OpenedFile(_open_npy(source.folder, entry, source.dtype, access))
        return
    inside = [name for name in source.sides if not name.endswith(NPY)]
    names = list_members(open_storage(source.folder, access), entry)
    image = _image_of(names, source, join_uri(source.folder, entry.name))
    for name in inside:
        if name not in names:
            where = f"{join_uri(source.folder, entry.name)}:{name}"
            raise RuntimeError(
                fault_line("E-ARG", where, "no such array", "name one that is there")
            )
    found = [_open_member(source, entry, name, access) for name in (image, *inside)]
    yield OpenedFile(found[0], tuple(found[1:]))


def open_side(source: ArraySource, name: str, access: Access = DEFAULT_ACCESS) -> StoredArray:
    """Return an array that lies in a file of its own.

    Raises:
        RuntimeError: `E-ARG` when there is no such file, `E-ARR-…` when it cannot be read.
    """
    uri = source.side_uri(name)
    storage, entry = find_uri(uri, access)
    return _open_npy(storage.root, entry, source.dtype, access)


def read_rows(
    stored: StoredArray, start: int, rows: int, access: Access = DEFAULT_ACCESS
) -> list[int | float | str]:
    """Return values of an array of single values, numbers or text.

    Raises:
        RuntimeError: `E-ARR-TYPE` when text cannot be decoded, or a storage fault.
    """
    header = stored.header
    begin = header.start + start * header.item_bytes
    end = begin + rows * header.item_bytes
    storage = open_storage(stored.folder, access)
    if stored.packed:
        data = read_packed(storage, stored.entry, stored.packed, (begin, end))
    else:
        with open_stored(storage, stored.entry, 1) as file:
            file.seek(begin)
            data = file.read(end - begin)
    try:
        return _values(header, data, rows)
    except ValueError as error:
        raise _type_fault(stored.where, f"text that cannot be decoded ({error})") from None


def check_side(side: StoredArray, rows: int) -> None:
    """Refuse an array that is not one value for each of so many rows.

    Raises:
        RuntimeError: `E-ARR-TYPE` or `E-ARR-COUNT`.
    """
    shape = side.header.shape
    if side.header.dtype == BFLOAT16 or math.prod(shape[1:]) != 1:
        what = f"{side.header.dtype} of shape {shape}, and not one number or text a row"
        raise _type_fault(side.where, what)
    if side.rows != rows:
        what = f"{side.rows} rows, the images have {rows}"
        remedy = "give the array that belongs to them"
        raise RuntimeError(fault_line("E-ARR-COUNT", side.where, what, remedy))


def _is_meant(entry: Entry, folder: str) -> bool:
    """Return whether what a folder holds is meant as a file of arrays, by its name.

    Raises:
        RuntimeError: when it is, and cannot be read as one: none may be missed.
    """
    name = entry.name
    if entry.kind == "directory" or why_skipped(name) == HIDDEN:
        return False
    if not (is_folder(entry) or name.lower().endswith((NPY, NPZ))):
        return False
    if entry.kind != "file":
        what, remedy = f"a {entry.kind}", "take it out of the folder, or mend it"
        raise RuntimeError(fault_line("E-ARR-HEADER", join_uri(folder, name), what, remedy))
    if not name.endswith((NPY, NPZ)):
        what, remedy = "its name does not end in .npy or .npz, in small letters", "rename it"
        raise RuntimeError(fault_line("E-ARG", join_uri(folder, name), what, remedy))
    return True


def is_read(file: ListedFile) -> bool:
    """Return whether a listed file is one of arrays, by its name."""
    name = file.entry.name
    return is_file(file) and name.endswith((NPY, NPZ)) and why_skipped(name) != HIDDEN


def _image_of(names: Sequence[str], source: ArraySource, where: str) -> str:
    """Return the name of an archive's image array."""
    wanted = [source.image] if source.image else []
    others = [name for name in names if name not in source.sides]
    wanted = wanted or (others if len(others) == 1 else [n for n in USUAL_NAMES if n in others])
    if len(wanted) != 1 or wanted[0] not in names:
        what = f"{'no' if source.image else 'no one'} array {source.image or 'of images'} among"
        what = f"{what} {', '.join(names[:20]) or 'none'}"
        raise RuntimeError(fault_line("E-ARG", where, what, "name it with --image_array"))
    return wanted[0]


def _open_npy(folder: str, entry: Entry, dtype: str | None, access: Access) -> StoredArray:
    with open_stored(open_storage(folder, access), entry, 1) as file:
        head = file.read(HEAD_BYTES)
    where = join_uri(folder, entry.name)
    return StoredArray(folder, entry, _header(head, entry.size_bytes, dtype, where))


def _open_member(source: ArraySource, entry: Entry, name: str, access: Access) -> StoredArray:
    where = f"{join_uri(source.folder, entry.name)}:{name}"
    storage = open_storage(source.folder, access)
    member = find_member(storage, entry, name)
    header = _header(member.head, member.end - member.start, source.dtype, where)
    if member.packed and header.end != member.end:  # all of which would be unpacked
        what = f"{member.end} bytes unpacked, its header tells of {header.end}"
        raise RuntimeError(fault_line("E-ARR-HEADER", where, what, SAVE_AGAIN))
    moved = msgspec.structs.replace(header, start=header.start + member.start)
    return StoredArray(source.folder, entry, moved, member.packed)


def _header(head: bytes, size_bytes: int, dtype: str | None, where: str) -> NpyHeader:
    try:
        header = parse_npy_header(head, dtype)
    except ValueError as error:
        what, _, remedy = str(error).rpartition(": ")
        code = "E-ARR-HEADER" if what.startswith("a .npy file") else "E-ARR-TYPE"
        raise RuntimeError(fault_line(code, where, what, remedy)) from None
    if header.end > size_bytes:
        what = f"{size_bytes} bytes, its header tells of {header.end}"
        raise RuntimeError(fault_line("E-ARR-HEADER", where, what, "copy the file again"))
    return header


def _values(header: NpyHeader, data: bytes, rows: int) -> list[int | float | str]:
    import numpy  # which costs a tenth of a second

    if header.dtype in NPY_TEXT_TYPES:
        width, codec = header.value_bytes, "utf-8"
        if header.dtype == TEXT:
            codec = "utf-32-be" if header.big_endian else "utf-32-le"
        texts = (data[row * width : (row + 1) * width] for row in range(rows))
        return [text.decode(codec).rstrip("\0") for text in texts]
    values = numpy.frombuffer(data, header.dtype)
    if header.big_endian:
        values = values.view(values.dtype.newbyteorder(">"))
    return (values.astype("uint8") if header.dtype == "bool" else values).tolist()


def _type_fault(where: str, what: str) -> RuntimeError:
    remedy = "convert it, one number or text a row"
    return RuntimeError(fault_line("E-ARR-TYPE", where, what, remedy))
