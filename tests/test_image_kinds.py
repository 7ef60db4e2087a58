import pytest
from hypothesis import given
from hypothesis import strategies as st

from transforms.images.findings import name_kind

KINDS = [
    (b"\xff\xd8\x00\x00", "a JPEG whose first segment is missing"),
    (b"\x89PNG\n\x1a\n", "a PNG changed in transfer as text"),
    (b"GIF80a", "a GIF of an unknown version"),
    (b"RIFF\x0a\0\0\0WEBPVP8 ", "WebP"),
    (b"RIFF\x0a\0\0\0AVI LIST", "AVI video"),
    (b"\0\0\0\x20ftypavif", "AVIF"),
    (b"\0\0\0\x0aftypheic", "HEIC"),
    (b"\0\0\0\x20ftypisom", "MP4 video"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\xff\x0a\x00", "JPEG XL"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"\0\0\x01\0\x01\0", "ICO"),
    (b"\0\0\x02\0\x01\0", "CUR"),
    (b"P6\n3 2 255\n", "PNM"),
    (b"8BPS", "PSD"),
    (b"v/1\x01", "OpenEXR"),
    (b"#?RADIANCE\n", "Radiance HDR"),
    (b"DDS ", "DDS"),
    (b"SIMPLE  =  T", "FITS"),
    (bytes(128) + b"DICM", "DICOM"),
    (b"%PDF-1.7", "PDF"),
    (b"PK\x03\x04", "ZIP"),
    (b"\x1f\x8b\x08", "gzip"),
    (b"\x89HDF\r\n", "HDF5"),
    (b"\x93NUMPY\x01", "NumPy array"),
    (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    (b"<!DOCTYPE html>", "HTML"),
    (b"\xef\xbb\xbf \n<HTML>", "HTML"),
    (b"<?xml version='1.0'?><Error>", "XML"),
    (b"<svg/>", "XML"),
    (b' {"error": 404}', "JSON"),
    (bytes(16), "zero bytes"),
    (b"not found\n", "text"),
    ("Gr\u00fc\u00dfe".encode(), "text"),
    (b"text\0", "unknown, starts with 7465787400"),
    (bytes(15), "unknown, starts with 0000000000000000"),
]


@pytest.mark.parametrize(("data", "kind"), KINDS)
def test_name_kind(data, kind):
    assert name_kind(data) == kind
    if len(data) >= 16:
        assert name_kind(data + bytes(10_000)) == kind or kind == "text"


@given(st.binary(min_size=1))
def test_any_bytes_have_a_name_of_one_line(data):
    assert name_kind(data).isascii()
    assert name_kind(data).isprintable()
