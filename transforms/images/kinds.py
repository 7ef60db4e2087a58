"""Name what bytes look like that are no JPEG, PNG, GIF or BMP, for a message that helps."""

import re

# The first that the bytes start with; "?" in a signature stands for any byte.
_SIGNATURES = (
    (rb"\xff\xd8", "a JPEG whose first segment is missing"),
    (rb"\x89PNG", "a PNG changed in transfer as text"),
    (rb"GIF\d\d", "a GIF of an unknown version"),
    (rb"RIFF....WEBP", "WebP"),
    (rb"RIFF....AVI ", "AVI video"),
    (rb"....ftyp(avif|avis)", "AVIF"),
    (rb"....ftyp(heic|heix|hevc|heim|heis|mif1|msf1)", "HEIC"),
    (rb"....ftyp", "MP4 video"),
    (rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51", "JPEG 2000"),
    (rb"\0\0\0\x0cJXL \r\n\x87\n|\xff\x0a", "JPEG XL"),
    (rb"II\*\0|MM\0\*|II\+\0|MM\0\+", "TIFF"),
    (rb"\0\0\x01\0", "ICO"),
    (rb"\0\0\x02\0", "CUR"),
    (rb"P[1-7]\s", "PNM"),
    (rb"8BPS", "PSD"),
    (rb"v/1\x01", "OpenEXR"),
    (rb"#\?RADIANCE", "Radiance HDR"),
    (rb"DDS ", "DDS"),
    (rb"SIMPLE  =", "FITS"),
    (rb".{128}DICM", "DICOM"),
    (rb"%PDF", "PDF"),
    (rb"PK\x03\x04", "ZIP"),
    (rb"\x1f\x8b", "gzip"),
    (rb"\x89HDF", "HDF5"),
    (rb"\x93NUMPY", "NumPy array"),
    (rb"version https://git-lfs", "a Git LFS pointer"),
    (rb"(\xef\xbb\xbf)?\s*<(!doctype html|html|head|body)", "HTML"),
    (rb"(\xef\xbb\xbf)?\s*<(\?xml|svg|error)", "XML"),
    (rb"(\xef\xbb\xbf)?\s*[\[{]", "JSON"),
    (rb"\0{16}", "zero bytes"),
)
FOREIGN_KINDS = frozenset({"WebP", "TIFF", "AVIF"})
"""What `name_kind` calls the formats that can be converted."""

_KINDS = [(re.compile(rb"(?si:" + signature + rb")"), kind) for signature, kind in _SIGNATURES]
_TEXT = re.compile(rb"[\t\n\f\r\x20-\x7e\x80-\xff]+")
_LOOKED_AT_BYTES = 256


def name_kind(data: bytes) -> str:
    r"""Return what the first bytes look like.

    >>> name_kind(b"RIFF\x24\0\0\0WEBPVP8 ")
    'WebP'
    >>> name_kind(b"\n<HTML>404")
    'HTML'
    >>> name_kind(bytes.fromhex("0102030405060708090a"))
    'unknown, starts with 0102030405060708'
    """
    head = data[:_LOOKED_AT_BYTES]
    for signature, kind in _KINDS:
        if signature.match(head):
            return kind
    if _TEXT.fullmatch(head):
        return "text"
    return f"unknown, starts with {head[:8].hex()}"
