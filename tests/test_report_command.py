"""`report.html`: by its command, and after a commit, where it never fails a run."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from beam_tfrec.pipelines import report
from beam_tfrec.schemas.documents.data_card import is_sealed
from beam_tfrec.transforms.report import gather
from beam_tfrec.transforms.report import page as page_module
from beam_tfrec.transforms.report.page import write_report
from beam_tfrec.transforms.storage import Access
from tests.coco_command import (
    MakeCoco,
    Run,
    check_committed,
    command,
    run_coco,
    run_pipeline,
    snapshot,
)
from tests.small_runs import build_run, plan_run, write_set


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    build_run(plan_run(*write_set(folder, 4), folder / "out", num_shards=1))
    return folder / "out"


@pytest.fixture
def out(data_set: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(data_set, tmp_path / "out"))


def run(*arguments: object) -> Run:
    return run_pipeline(report.run, *arguments)


def test_a_report_is_written_and_replaced(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(out)
    ended = run(out)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"report: {out}/report.html (4 records, 4 pictures)\n"
    page = (out / "report.html").read_bytes()
    assert is_sealed(page) and page.count(b"data:image/jpeg;base64,") == 4
    after = snapshot(out)
    del after["report.html"]
    assert after == before
    # Equal data sets have equal reports, however the path is written.
    other = Path(shutil.copytree(out, tmp_path / "other" / out.name))
    monkeypatch.chdir(other)
    (other / "report.html").unlink()
    assert run(out, ".").code == 0
    assert (out / "report.html").read_bytes() == page == (other / "report.html").read_bytes()


@pytest.mark.parametrize("text", ["mine", "edited"])
def test_another_file_is_not_overwritten(text: str, out: Path) -> None:
    page = out / "report.html"
    if text == "edited":
        assert run(out).code == 0
        text = page.read_text() + "edited"
    page.write_text(text)
    for arguments in ([out], [out, "--output", page]):
        ended = run(*arguments)
        assert ended.ended == (5, "E-OUT-CONFLICT")
        assert ended.fault == (
            f"E-OUT-CONFLICT {page}: exists, and is not a report as this program wrote it; give"
            " another --output, or move it away"
        )
        assert page.read_text() == text


def test_files_folders_and_incomplete_data_sets(out: Path, tmp_path: Path) -> None:
    """Shards without a manifest are read like files of other programs."""
    (shard,) = out.glob("*.tfrec")
    shutil.copy(shard, tmp_path / "a.tfrecord")
    (tmp_path / "folder").mkdir()
    shutil.copy(shard, tmp_path / "folder/b.tfrecord-00000-of-00001")
    (out / "manifest.json").unlink()
    page = tmp_path / "page.html"
    ended = run(tmp_path / "a.tfrecord", tmp_path / "folder", out, "--output", page)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"report: {page} (12 records, 12 pictures, 1 note)\n"
    assert b"the data set is not complete" in page.read_bytes()
    shard.unlink()
    for more in ((), ("--output", page)):
        assert run(out, *more).ended == (7, "E-VER-MISSING")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{shard}",), "add --output report.html"),
        (("{out}", "{shard}", "--output", "{page}"), "one data set or of files, got 2"),
        (("{out}", "{out}", "--output", "{page}"), "one data set or of files, got 2"),
        (("{out}/none",), "none: no such file; give a finished"),
        (("{out}/none.tfrecord", "--output", "{page}"), "no such file"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: tuple[str, ...], said: str, out: Path, tmp_path: Path
) -> None:
    (shard,) = out.glob("*.tfrec")
    page = tmp_path / "a.html"
    ended = run(*(text.format(shard=shard, out=out, page=page) for text in arguments))
    assert ended.ended == (2, "E-ARG") and said in ended.fault
    assert not page.exists()


# --- after a commit ---


def test_a_vulnerable_pillow_gets_no_photos(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "version", lambda _: "12.1.0")
    assert write_report(str(out), Access())
    page = (out / "report.html").read_text()
    assert "no pictures: Pillow 12.1.0 has a critical JPEG overflow" in page
    assert "data:image/jpeg" not in page


def test_local_runs_write_the_report_and_restore_a_missing_one(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    """Equal data sets have equal reports."""
    sources, out = make_coco(3), tmp_path / "out"
    ended = run_coco(*command(sources, out))
    assert f"  report: {out}/report.html" in ended.out.splitlines()
    page = (out / "report.html").read_bytes()
    assert is_sealed(page) and len(page) < 5_000_000
    assert page.count(b"data:image/jpeg;base64,") == 3
    check_committed(out)
    whole = snapshot(out)
    (out / "report.html").unlink()
    ended = run_coco(*command(sources, out, "--no_report"))
    assert ended.code == 0 and not (out / "report.html").exists()
    complete = f"already complete: {out}/manifest.json\n"
    assert run_coco(*command(sources, out)).out == f"{complete}report: {out}/report.html\n"
    made = snapshot(out)
    assert made["report.html"][1] == whole["report.html"][1]
    assert {**made, "report.html": whole["report.html"]} == whole  # nothing else was touched
    assert run_coco(*command(sources, out)).out == complete


def test_an_error_is_a_warning(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("a\u202e")

    monkeypatch.setattr(gather, "make_report", fail)
    ended = run_coco(*command(make_coco(3), tmp_path / "out"), "--quiet")
    assert ended.code == 0
    (warning,) = [line for line in ended.err.splitlines() if "no report" in line]
    assert warning.startswith("no report: KeyError('a\\u202e'); the data set is complete")
    assert "report:" not in ended.out
    check_committed(tmp_path / "out")
