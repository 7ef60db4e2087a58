"""Names of image files as annotations give them: below the image root, literally, or refused."""

import re

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


def blob_name(file_name: str) -> str:
    """Return the listing's name of a `file_name`: relative to the root, without `.` components.

    >>> blob_name("./train2017/a[1].jpg")
    'train2017/a[1].jpg'

    Raises:
        ValueError: when the name is empty, absolute, a URL, or climbs with `..`.
    """
    if _PLAIN_NAME.fullmatch(file_name):
        return file_name
    name = "/".join(part for part in file_name.split("/") if part != ".")
    if not name or name.endswith("/"):
        raise ValueError("names no file")
    if name.startswith("/") or _SCHEME.match(name) or _DRIVE.match(name):
        raise ValueError("is not relative to the image root")
    if ".." in re.split(r"[/\\]", file_name):
        raise ValueError("climbs out of the image root")
    if "\0" in name:
        raise ValueError("holds a NUL")
    return name


def name_of_url(url: str) -> str:
    """Return the last two components of a URL's path, as LVIS's images are kept.

    They are taken as they stand, and the URL is never fetched.

    >>> name_of_url("http://images.cocodataset.org/train2017/000000391895.jpg")
    'train2017/000000391895.jpg'
    """
    _, _, path = url.rpartition("://")
    return "/".join(path.split("/")[1:][-2:])
