"""COCO's file names: below the root, literally, or refused."""

import pytest

from schemas.annotations.coco_file import blob_name
from tests.coco_texts import coco, image, parse, refused

NAMES = {
    "plain": ("a.jpg", "a.jpg"),
    "a dot": ("./a.jpg", "a.jpg"),
    "dots": ("././b/./a.jpg", "b/a.jpg"),
    "glob characters": ("a[1]*?{b}.jpg", "a[1]*?{b}.jpg"),
    "a backslash": ("b\\a.jpg", "b\\a.jpg"),  # a character like others, but for Windows
    "Unicode": ("Straße/图/😀.jpg", "Straße/图/😀.jpg"),
    "decomposed": ("u\u0308.jpg", "u\u0308.jpg"),  # bytes count, not looks
    "two slashes": ("b//a.jpg", "b//a.jpg"),  # an object store knows such names
}


@pytest.mark.parametrize(("file_name", "name"), NAMES.values(), ids=NAMES)
def test_names_below_the_root(file_name: str, name: str) -> None:
    assert blob_name(file_name) == name
    assert [i.file_name for i in parse(coco([image(1, file_name)], [])).images] == [name]


BAD_NAMES = {
    "empty": ("", "names no file"),
    "a dot": (".", "names no file"),
    "a folder": ("b/", "names no file"),
    "absolute": ("/etc/passwd", "is not relative to the image root"),
    "two slashes": ("//host/a.jpg", "is not relative to the image root"),
    "a scheme": ("gs://b/a.jpg", "is not relative to the image root"),
    "a drive": ("C:\\a.jpg", "is not relative to the image root"),
    "up": ("../a.jpg", "climbs out of the image root"),
    "up with backslashes": ("b\\..\\..\\a.jpg", "climbs out of the image root"),
    "NUL": ("a\0.jpg", "holds a NUL"),
}


@pytest.mark.parametrize(("file_name", "what"), BAD_NAMES.values(), ids=BAD_NAMES)
def test_names_that_leave_the_root(file_name: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"^{what}$"):
        blob_name(file_name)
    line = (
        f"E-ANN-PATH f.json: $.images[1] (id 7): file_name {file_name!r} {what};"
        " give names relative to --images"
    )
    refused(coco([image(), image(7, file_name)], []), line)
