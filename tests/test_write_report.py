"""`report.html` after the commit: it never replaces a user's file, and never fails a run."""

from pathlib import Path
from typing import Any

import pytest

from beam_tfrec.schemas.documents.data_card import is_sealed
from beam_tfrec.transforms.report import gather
from beam_tfrec.transforms.report import page as page_module
from beam_tfrec.transforms.report.page import write_report
from beam_tfrec.transforms.storage import Access
from tests.coco_command import MakeCoco, check_committed, command, run_coco, snapshot

REPORT = "report.html"


@pytest.mark.thorough
def test_a_vulnerable_pillow_gets_no_photos(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert run_coco(*command(make_coco(3), out, "--no_report")).code == 0
    monkeypatch.setattr(page_module, "version", lambda _: "12.1.0")
    assert write_report(str(out), Access())
    page = (out / REPORT).read_text()
    assert "no pictures: Pillow 12.1.0 has a critical JPEG overflow" in page
    assert "data:image/jpeg" not in page


def test_local_runs_write_the_report_and_restore_a_missing_one(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    """Equal data sets have equal reports."""
    sources, out = make_coco(3), tmp_path / "out"
    run = run_coco(*command(sources, out))
    assert run.code == 0, run.err
    assert f"  report: {out}/report.html" in run.out.splitlines()
    page = (out / REPORT).read_bytes()
    assert is_sealed(page) and len(page) < 5_000_000
    assert page.count(b"data:image/jpeg;base64,") == 3
    check_committed(out)
    whole = snapshot(out)
    (out / REPORT).unlink()
    run = run_coco(*command(sources, out, "--no_report"))
    assert run.code == 0 and not (out / REPORT).exists()
    run = run_coco(*command(sources, out))
    assert run.out.splitlines() == [
        f"already complete: {out}/manifest.json",
        f"report: {out}/report.html",
    ]
    made = snapshot(out)
    assert made[REPORT][1] == whole[REPORT][1]
    assert {**made, REPORT: whole[REPORT]} == whole  # nothing else was touched
    run = run_coco(*command(sources, out))
    assert run.out.splitlines() == [f"already complete: {out}/manifest.json"]


def test_an_error_is_a_warning(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("a\u202e")

    monkeypatch.setattr(gather, "make_report", fail)
    run = run_coco(*command(make_coco(3), tmp_path / "out"), "--quiet")
    assert run.code == 0
    (warning,) = [line for line in run.err.splitlines() if "no report" in line]
    assert warning.startswith("no report: KeyError: 'a\\u202e'; the data set is complete")
    assert "report:" not in run.out
    check_committed(tmp_path / "out")
