"""`beam-tfrec doctor` on this machine and on local files: each planted fault is named."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import children
from tests.coco_command import PROJECT, MakeCoco, command, digests, run_coco, snapshot
from tests.doctor_command import (
    doctor_on_small_disk,
    doctor_with_small_temporary_folder,
    probe,
    run_doctor,
)
from tests.memory_store import MemoryStore, Moment, Step, served
from transforms.doctor.buckets import PROBE_NAME
from transforms.doctor.choose_samples import Chosen, Listed
from transforms.doctor.diagnosis import Diagnosis, Mark, exit_code_of, fine, warning, wrong
from transforms.doctor.google_requests import Reply
from transforms.doctor.machine import judge_open_files
from transforms.doctor.outputs import check_by_object
from transforms.doctor.packages import judge_conflicts, judge_pillow, judge_tensorflow
from transforms.doctor.run_checks import Check, run_checks
from transforms.doctor.worker_package import check_worker_package
from transforms.storage import Entry, open_storage
from transforms.storage.local import LocalStorage

# --- values


def test_the_first_wrong_thing_decides_the_exit_code() -> None:
    found = [
        fine("a", "b"),
        warning("a", "b", "c"),
        wrong("E-IO-AUTH", "a", "b", "c"),
        wrong("E-ARG", "a", "b", "c"),
    ]
    assert [exit_code_of(found[:n]) for n in (0, 2, 3, 4)] == [0, 0, 6, 6]
    assert exit_code_of(found[::-1]) == 2


@pytest.mark.parametrize(
    ("mark", "remedy", "code"),
    [
        (Mark.WRONG, "c", ""),
        (Mark.WRONG, "c", "E-IMG-EMPTY"),  # of an image, and no run ends with it
        (Mark.WARNING, "", ""),
        (Mark.OK, "", "E-ARG"),
        (Mark.OK, "c", ""),
    ],
)
def test_what_is_no_diagnosis(mark: Mark, remedy: str, code: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        Diagnosis(mark, "a", "b", remedy, code)


def test_names_are_printed_without_control_characters() -> None:
    assert warning("a\x1b[2J", "b\u202e", "c").line == "warning  a\\x1b[2J: b\\u202e; c"


# --- checks beside each other


def test_checks_go_on_behind_one_that_fails_and_one_that_hangs() -> None:
    released = threading.Event()

    def fails() -> Iterator[Diagnosis]:
        yield fine("first", "there")
        raise RuntimeError("E-IO-READONLY out: read-only; give another")

    def hangs() -> Iterator[Diagnosis]:
        yield fine("second", "there")
        released.wait()

    started_s = time.monotonic()
    checks = [Check("a", fails), Check("b", hangs, 0.2), Check("c", lambda: [fine("c", "d")])]
    lines = [diagnosis.line for diagnosis in run_checks(checks)]
    released.set()
    assert lines == [
        "ok       first: there",
        "wrong    E-IO-READONLY out: read-only; give another",
        "ok       second: there",
        "wrong    E-IO-RETRIES b: no answer within 0 s; look at the network and the storage,"
        " then run again",
        "ok       c: d",
    ]
    assert time.monotonic() - started_s < 5


def test_a_bug_in_a_check_is_told_behind_all_others() -> None:
    def fails() -> list[Diagnosis]:
        raise KeyError("bug")

    found = run_checks([Check("a", fails), Check("b", lambda: [fine("b", "c")])])
    assert next(found) == fine("b", "c")
    with pytest.raises(KeyError, match="bug"):
        next(found)


def test_samples_are_the_same_in_any_order() -> None:
    names = [f"{number:05}.jpg" for number in range(1000)]
    kept = []
    for order in (names, names[::-1]):
        chosen: Chosen[str] = Chosen(3)
        for name in order:
            chosen.add(name, name)
        kept.append((chosen.items, chosen.seen))
    assert kept[0] == kept[1]
    assert kept[0] == (["00077.jpg", "00774.jpg", "00013.jpg"], 1000)


def test_a_listing_ends_in_time() -> None:
    entries = [Entry(str(number), 10, "") for number in range(10)]
    few, all_of_them = Listed(), Listed()
    assert len([*few.files(entries, most=4)]) == 4
    assert (few.is_all, few.bytes) == (False, 40)
    assert len([*all_of_them.files([*entries, Entry("d", 0, "", kind="directory")])]) == 10
    assert (all_of_them.is_all, all_of_them.bytes) == (True, 100)
    assert [*Listed().files(entries, longest_s=-1)] == []


# --- this machine


def test_a_healthy_machine_and_no_beam() -> None:
    program = (
        "import sys\nfrom pipelines import doctor\ndoctor.run([])\n"
        "print({'apache_beam', 'tensorflow', 'google.auth'} & {*sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    *lines, imported = run.stdout.splitlines()
    assert imported == "set()"
    assert lines[-1].endswith("0 wrong: nothing would end the run")
    told = " ".join(lines)
    assert all(f" {thing}: " in told for thing in ("Python", "TensorFlow", "open files", "memory"))


def test_an_old_package_and_a_missing_one_are_named(tmp_path: Path) -> None:
    """As Python finds them: by what is first on its path."""
    for name, version in (("msgspec", "0.20.0"), ("obstore", "0.7.9")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        folder.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    broken = tmp_path / "pycocotools"
    broken.mkdir()
    broken.joinpath("__init__.py").write_text("raise ImportError('built for another NumPy')")
    run = subprocess.run(
        [sys.executable, "-m", "pipelines.doctor"],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    said = run.stdout
    assert "wrong    E-ARG msgspec: 0.20.0 is installed, >=0.21 is asked for; install" in said
    assert "wrong    E-ARG obstore: 0.7.9 is installed, >=0.8 is asked for; install" in said
    assert "wrong    E-ARG import pycocotools.mask: ImportError: built for another NumPy; " in said


def test_what_packages_ask_of_each_other() -> None:
    asked = {"apache-beam": ["pillow<13", "pyarrow<20"], "torch": ["pillow<13"]}
    found = judge_conflicts(asked, {"pillow": "13.0.0", "pyarrow": "21.0.0"}.get)
    assert [(d.mark, d.where, d.what) for d in found] == [
        (Mark.WARNING, "apache-beam", "asks for pyarrow<20, 21.0.0 is there"),
        (Mark.WARNING, "torch", "asks for pillow<13, 13.0.0 is there"),
    ]  # Beam's pin of Pillow is the one that our lock overrides


@pytest.mark.parametrize(
    ("version", "decodes", "count"),
    [
        ("12.9", None, 1),
        ("12.9", True, 1),
        ("12.9", False, 0),
        ("13.0.0", True, 0),
        (None, True, 0),
    ],
)
def test_an_old_pillow_is_told_of_where_it_would_decode(
    version: str | None, decodes: bool | None, count: int
) -> None:
    found = [*judge_pillow(version, decodes)]
    assert len(found) == count
    assert all("have it decode" in d.what for d in found) == (decodes is True or not found)


def test_tensorflow_is_not_needed() -> None:
    assert judge_tensorflow(None).line.startswith("ok       TensorFlow: not installed; nothing")


@pytest.mark.parametrize(
    ("limit", "mark"),
    [(64, Mark.WRONG), (256, Mark.WARNING), (1024, Mark.OK), (-1, Mark.OK)],
)
def test_open_files(limit: int, mark: Mark) -> None:
    assert judge_open_files(limit).mark is mark


def test_a_refusal_tells_its_reasons() -> None:
    details = {"details": [{"reason": "SERVICE_DISABLED"}, {"@type": "other"}]}
    assert Reply(403, {"error": details}).reasons == {"SERVICE_DISABLED"}
    assert Reply(401, {"error": "invalid_grant"}).message == "invalid_grant"
    assert Reply(502).message == "status 502"


# --- runs on local files


def test_a_healthy_run_leaves_nothing(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(12)
    before = snapshot(tmp_path)
    seen = run_doctor("coco", *command(sources, tmp_path / "deep" / "out"))
    assert (seen.code, seen.wrong, seen.warnings) == (0, [], [])
    assert "images: 12 sampled of 12 images, read and checked: all would be written" in " ".join(
        seen.lines
    )
    assert snapshot(tmp_path) == before
    assert not (tmp_path / "deep").exists() and not (tmp_path / PROBE_NAME).exists()


def test_the_same_line_as_the_pipeline_for_a_bad_flag(tmp_path: Path) -> None:
    flags = ("--images", tmp_path, "--annotations", tmp_path / "a.json", "--output", "", "--hosts")
    for given in ((*flags, "0"), ("--imagse", "x"), (*flags, "1")):
        (line,) = run_coco(*given).err.splitlines()
        seen = run_doctor("coco", *given)
        assert (seen.code, seen.wrong) == (2, [line])
        assert len(seen.marked("ok")) > 5  # and the machine is looked at all the same


def test_help_is_the_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    seen = run_doctor("coco", "--help")
    assert seen.code == 0
    assert seen.lines[0].startswith("usage: beam-tfrec coco ")


def test_missing_sources_are_each_named(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(2)
    nowhere = (tmp_path / "no images", tmp_path / "no.json")
    seen = run_doctor("coco", *command(nowhere, tmp_path / "out"))
    assert seen.code == 2
    assert [line.split(";")[0] for line in seen.wrong] == [
        f"E-ARG {tmp_path}/no images: no such folder",
        f"E-ARG {tmp_path}/no.json: no such file",
    ]
    assert run_doctor("coco", *command(sources, tmp_path / "out")).code == 0


def test_damaged_images_are_told_by_reason(make_coco: MakeCoco, tmp_path: Path) -> None:
    images, annotations = make_coco(6)
    cut = images / "a003.jpg"
    cut.write_bytes(cut.read_bytes()[:300])
    (images / "a004.jpg").write_text("<html>not found</html>")
    (images / "a005.jpg").unlink()
    arguments = command((images, annotations), tmp_path / "out")
    seen = run_doctor("coco", *arguments)
    assert seen.code == 4
    assert seen.wrong == [
        "E-BUDGET images: 3 of 6 sampled of 6 images would be rejected, --max_rejected is 0;"
        " mend them, accept more, or leave them out with --exclude"
    ]
    told = " ".join(seen.warnings)
    for code, name in (("TRUNCATED", "a003"), ("TYPE", "a004"), ("MISSING", "a005")):
        assert f"1 of 6 sampled of 6 images would be rejected as E-IMG-{code} (first '{name}.jpg'"
        assert f"E-IMG-{code} (first '{name}.jpg'" in told
    accepted = run_doctor("coco", *arguments, "--max_rejected", "3")
    assert (accepted.code, len(accepted.warnings)) == (0, 3)
    assert run_coco(*arguments).code == seen.code  # as foretold


def test_a_wrong_size_is_found_as_the_run_finds_it(make_coco: MakeCoco, tmp_path: Path) -> None:
    def grow(spec: dict) -> None:
        spec["images"][1].update(width=640, height=100)

    sources = make_coco(3, edit=grow)
    seen = run_doctor("coco", *command(sources, tmp_path / "out"))
    assert seen.code == 4
    assert "would be rejected as E-IMG-SIZE (first 'a001.jpg'" in seen.warnings[0]


def test_pixels_are_converted_where_that_is_asked(make_coco: MakeCoco, tmp_path: Path) -> None:
    images, annotations = make_coco(3)
    data = bytearray((images / "a001.jpg").read_bytes())
    middle = data.index(b"\xff\xda") + 14
    data[middle : middle + 20] = b"\xff\xd9" * 10  # its pixels end at once
    (images / "a001.jpg").write_bytes(data)
    arguments = command((images, annotations), tmp_path / "out")
    assert run_doctor("coco", *arguments, "--check", "decode").code == 4
    seen = run_doctor("coco", *arguments, "--resize", "32")
    assert run_coco(*arguments, "--resize", "32").code == seen.code


def test_broken_annotations_end_as_the_run_does(make_coco: MakeCoco, tmp_path: Path) -> None:
    images, annotations = make_coco(2)
    annotations.write_text(annotations.read_text()[:-40])
    arguments = command((images, annotations), tmp_path / "out")
    seen = run_doctor("coco", *arguments)
    assert (seen.code, seen.wrong) == (3, [run_coco(*arguments).fault])
    annotations.write_text("<html>")
    seen = run_doctor("coco", *arguments)
    assert seen.code == 3
    assert f"E-ANN-JSON {annotations}: is no JSON, but HTML; give the JSON" in seen.wrong[0]


def test_a_claimed_output(make_coco: MakeCoco, tmp_path: Path) -> None:
    arguments = command(make_coco(4), tmp_path / "out")
    assert run_coco(*arguments, "--num_shards", 2).code == 0
    before = digests(tmp_path / "out")

    def told(*flags: object) -> tuple[int, list[str], list[str]]:
        seen = run_doctor("coco", *arguments, *flags)
        return seen.code, seen.wrong, seen.warnings

    assert told("--num_shards", 2) == (0, [], [])
    code, wrongs, _ = told("--num_shards", 4)
    assert code == 5
    assert wrongs == [run_coco(*arguments, "--num_shards", 4).fault]
    code, wrongs, warnings = told("--num_shards", 4, "--overwrite")
    assert (code, wrongs, len(warnings)) == (0, [], 1)
    assert "is to be deleted: options num_shards was 'all=2', is 'all=4'" in warnings[0]
    _, _, warnings = told("--num_shards", 2, "--overwrite")
    assert "to be deleted; leave --overwrite out, to keep it" in warnings[0]
    assert digests(tmp_path / "out") == before
    (tmp_path / "out" / "_plan.json").unlink()
    assert told("--num_shards", 2)[:2] == (0, [])  # its manifest tells, too
    (tmp_path / "out" / "manifest.json").unlink()
    assert told()[:2] == (5, [run_coco(*arguments).fault])


def test_beginnings_are_to_be_resumed(make_coco: MakeCoco, tmp_path: Path) -> None:
    arguments = command(make_coco(4), tmp_path / "out")
    assert run_coco(*arguments).code == 0
    (tmp_path / "out" / "manifest.json").unlink()
    assert any("to be resumed" in line for line in run_doctor("coco", *arguments).lines)


def test_no_room_for_the_output(make_coco: MakeCoco, tmp_path: Path) -> None:
    if not children.can_mount():
        pytest.skip("this machine lets no process mount a disk of its own")
    disk = tmp_path / "disk"
    disk.mkdir()
    arguments = ["coco", *command(make_coco(64), disk / "out")]
    size = sum(path.stat().st_size for path in (tmp_path / "train-images").iterdir())
    seen = children.outcome_of(doctor_on_small_disk, arguments, disk, size // 2)
    assert seen.code == 6
    (line,) = seen.wrong
    assert line.startswith(f"E-IO-NOSPACE {disk}/out: ") and "what is to be written take" in line
    assert children.outcome_of(doctor_on_small_disk, arguments, disk, 8 * size).code == 0


def test_no_room_for_temporary_files(tmp_path: Path) -> None:
    if not children.can_mount():
        pytest.skip("this machine lets no process mount a disk of its own")
    seen = children.outcome_of(doctor_with_small_temporary_folder, [], tmp_path, 1 << 20)
    assert seen.code == 6
    assert seen.wrong == [
        f"E-IO-NOSPACE {tmp_path}: 1.0 MB free, spools take 1000 MB; free some, or give another"
        " folder"
    ]


def test_an_output_that_may_not_be_written(make_coco: MakeCoco, tmp_path: Path) -> None:
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root is bound by no permissions, and setpriv is not there to change that")
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    run = subprocess.run(
        [
            *(drop if os.geteuid() == 0 else []),
            *(sys.executable, "-m", "pipelines.doctor", "coco"),
            *command(make_coco(2), folder / "out"),
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 6
    assert f"wrong    E-IO-AUTH {folder}/out: Permission denied; give this user" in run.stdout


def test_a_file_in_the_place_of_the_output(make_coco: MakeCoco, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    seen = run_doctor("coco", *command(make_coco(2), tmp_path / "out"))
    assert f"E-IO-READONLY {tmp_path}/out: is no folder" in seen.wrong[0]
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("below", ["file/out", "file/deep/out", "link"])
def test_a_file_or_a_broken_link_on_the_way_to_the_output(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = snapshot(tmp_path)
    (line,) = probe(tmp_path / below)
    assert line.startswith(f"wrong    E-IO-READONLY {tmp_path / below}: ")
    assert line.endswith("is no folder; give an --output that is a folder")
    assert snapshot(tmp_path) == before


# --- probes that were killed


@pytest.mark.parametrize("nth", range(1, 4))
def test_a_killed_probe_is_told_of_and_goes(nth: int, tmp_path: Path) -> None:
    assert children.exit_code_of(_probe_and_die, tmp_path, nth) == children.KILLED
    (left,) = tmp_path.iterdir()
    assert left.name == PROBE_NAME
    lines = probe(tmp_path)
    assert lines[0] == f"ok       {left}: was left by an earlier doctor, and is deleted now"
    assert lines[1].startswith(f"ok       {tmp_path}: files can be created")
    assert [*tmp_path.iterdir()] == []


def _probe_and_die(folder: Path, nth: int) -> None:
    children.die_at(nth)
    probe(folder)


def test_what_only_looks_like_a_probe_stays(tmp_path: Path) -> None:
    mine = tmp_path / PROBE_NAME / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    (line,) = probe(tmp_path)
    assert line.startswith(f"warning  {mine.parent}: is there, and not the doctor's")
    assert mine.read_text() == "mine"


def test_a_probe_object_is_deleted_again_and_a_killed_ones_too(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    assert [d.mark for d in check_by_object(storage)] == [Mark.OK]
    assert [*tmp_path.iterdir()] == []
    (tmp_path / PROBE_NAME).write_bytes(b"A probe of beam-tfrec doctor; it may be deleted.\n")
    first, _ = check_by_object(storage)
    assert first.what == "was left by an earlier doctor, and is deleted now"
    assert [*tmp_path.iterdir()] == []
    (tmp_path / PROBE_NAME).write_bytes(b"mine")
    assert [d.mark for d in check_by_object(storage)] == [Mark.WARNING]
    assert (tmp_path / PROBE_NAME).read_bytes() == b"mine"


def test_one_who_may_not_delete_is_told_which_object_is_left() -> None:
    def forbid(step: Step, moment: Moment) -> None:
        if step.operation == "delete" and moment is Moment.BEFORE:
            raise RuntimeError("E-IO-AUTH memory://s3: 403; give the account permission")

    store = MemoryStore()
    with served():
        (found,) = check_by_object(open_storage(f"{store.start(forbid).uri}/out"))
    assert found.mark is Mark.WARNING
    assert found.where.endswith(f"/out/{PROBE_NAME}") and "it is still there" in found.what


# --- the package for workers


def project(folder: Path, included: str) -> Path:
    """Return the setup.py of a project that names these packages, with our code beside it."""
    for name in ("schemas", "transforms", "pipelines", "readers"):
        (folder / name).symlink_to(PROJECT / name)
    setup = folder / "setup.py"
    setup.write_text(
        "from setuptools import find_packages, setup\n"
        f"setup(name='mine', version='1', packages=find_packages(include={included}))\n"
    )
    return setup


def test_the_package_for_workers(tmp_path: Path) -> None:
    before = sorted(os.listdir(PROJECT))
    (whole,) = check_worker_package(str(PROJECT / "setup.py"))
    assert whole.mark is Mark.OK
    lacks = project(tmp_path, "['schemas', 'schemas.*', 'transforms', 'pipelines', 'readers']")
    (found,) = check_worker_package(str(lacks))
    assert found.line.startswith(f"wrong    E-ARG {lacks}: the package lacks ")
    assert "such as transforms/doctor/__init__.py" in found.what
    lacks.write_text("import nothing_of_this_name\n")
    (found,) = check_worker_package(str(lacks))
    assert "no package can be built of it (ModuleNotFoundError: No module named 'noth" in found.what
    assert sorted(os.listdir(PROJECT)) == before
    assert not [*tmp_path.glob("*.egg-info")]


def test_a_build_that_is_interrupted_leaves_no_folder(tmp_path: Path) -> None:
    """The build itself asks for the end, so that it is in the midst of it."""
    setup = tmp_path / "mine" / "setup.py"
    setup.parent.mkdir()
    setup.write_text(
        "import os, signal, time\nos.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    job = (
        *("--runner", "DataflowRunner", "--project", "my-project", "--region", "us-central1"),
        *("--temp_location", "gs://staging/temp", "--no_auth", "--setup_file", setup),
    )
    arguments = ("coco", *command(("gs://in/photos", "gs://in/a.json"), "gs://out/coco", *job))
    nobody = "http://127.0.0.1:9"
    run = subprocess.run(
        [sys.executable, "-m", "pipelines.doctor", *arguments, "--dataflow_endpoint", nobody],
        cwd=PROJECT,
        env={**os.environ, "TMPDIR": str(temporary), "STORAGE_EMULATOR_HOST": nobody},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 143
    assert "interrupted; nothing was changed; run again" in run.stderr
    assert [*temporary.iterdir()] == []


@pytest.mark.parametrize(
    ("setup_file", "said"),
    [("./no/setup.py", "is no setup.py that is there"), ("setup.py", "has no folder before it")],
)
def test_a_setup_file_that_beam_would_not_take(
    setup_file: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PROJECT)
    (found,) = check_worker_package(setup_file)
    assert (found.code, found.what[: len(said)]) == ("E-ARG", said)


# --- other sources


def test_folders(tmp_path: Path, make_coco: MakeCoco) -> None:
    images, _ = make_coco(5)
    (images / "cat").mkdir()
    for path in images.glob("*.jpg"):
        path.rename(images / "cat" / path.name)
    (images / "cat" / "notes.txt").write_text("no image, and not taken for one")
    given = ("folder", "--images", images, "--output", tmp_path / "out")
    seen = run_doctor(*given)
    assert (seen.code, seen.warnings) == (0, [])
    assert any("5 sampled of 5 images" in line for line in seen.lines)
    (images / "cat" / "a000.jpg").write_bytes(b"\xff\xd8\xff")
    assert run_doctor(*given).code == 4


def test_tables(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("a,b\n1,2\n")
    given = ("table", "--table", table, "--output", tmp_path / "out")
    seen = run_doctor(*given)
    assert seen.code == 0
    assert f"ok       {table}: csv, columns a, b" in seen.lines
    table.write_text("a,a\n1,2\n")
    seen = run_doctor(*given)
    assert seen.code == 3
    assert "E-TAB-HEADER" in seen.wrong[0]


def test_arrays(tmp_path: Path) -> None:
    import numpy as np

    array = tmp_path / "images.npy"
    np.save(array, np.zeros((3, 4, 4, 3), np.uint8))
    given = ("arrays", "--arrays", array, "--output", tmp_path / "out")
    assert run_doctor(*given).code == 0
    array.write_bytes(array.read_bytes()[:200])
    seen = run_doctor(*given)
    assert seen.code == 3
    assert "E-ARR-" in seen.wrong[0]


def test_json_files_beside_images(tmp_path: Path, make_coco: MakeCoco) -> None:
    images, _ = make_coco(2)
    labels = tmp_path / "labels"
    labels.mkdir()
    for path in images.glob("*.jpg"):
        (labels / f"{path.stem}.json").write_text(json.dumps({"shapes": []}))
    given = ("sidecar", "--images", images, "--annotations", labels, "--output", tmp_path / "out")
    assert run_doctor(*given).code == 0
    (labels / "a000.json").write_text("{")
    (warned,) = run_doctor(*given).warnings
    assert f"{labels}: 1 of 2 files looked at cannot be parsed (first 'a000.json': " in warned
    for path in labels.iterdir():
        path.unlink()
    assert "holds no files" in run_doctor(*given).wrong[0]
