"""The lock overrides apache-beam's pin of Pillow; this tells when it no longer has to."""

import re
from pathlib import Path

LOCK = Path(__file__).parent.parent / "requirements.lock"


def test_lock_has_a_pillow_without_the_jpeg_overflow():
    (version,) = re.findall(r"^pillow==(\d+)", LOCK.read_text(), re.MULTILINE)
    assert int(version) >= 13  # CVE-2026-112403


def test_lock_pins_every_requirement_with_hashes_and_names_no_host():
    text = LOCK.read_text()
    pins = re.findall(r"^[a-z0-9._-]+==", text, re.MULTILINE)
    blocks = re.split(r"^(?=[a-z0-9._-]+==)", text, flags=re.MULTILINE)[1:]
    assert len(pins) > 50
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert "://" not in text
