"""What a command does before its imports, and that whoever imports us as a library is spared it."""

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import pytest

from pipelines import start
from tests.coco_command import PROJECT, settings_kept

LOCAL = ["--output", "o"]
LOOK = """
import gc, json, sys
import pipelines.coco
from pipelines.options import beam_flags
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker.statesampler import StateSampler
from apache_beam.transforms import userstate
print(json.dumps({
    "modules": list(sys.modules),
    "collects": gc.isenabled(),
    "finders": [type(finder).__name__ for finder in sys.meta_path],
    "finds_specs": type(userstate.get_dofn_specs).__name__,
    "samples_after_ms": StateSampler("test", None).sampling_period_ms,
    "keeps_mb": worker_handlers.STATE_CACHE_SIZE_MB,
    "flags": sorted(beam_flags()),
}))
"""
BEGIN = f"import sys; from pipelines.start import begin; begin('coco', {LOCAL!r})\n"


def python(program: str, *arguments: str) -> str:
    """Run a program in a process of its own and return what it printed."""
    command = [sys.executable, "-c", program, *arguments]
    ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.fixture
def settings() -> Iterator[None]:
    gc.enable()
    with settings_kept():
        yield
    gc.enable()


def test_a_local_run_imports_beam_without_clients() -> None:
    """And takes the same flags, and leaves nothing behind that changes other imports."""
    light, whole = json.loads(python(BEGIN + LOOK)), json.loads(python(LOOK))
    clients = {"google.cloud.storage", "google.cloud.dataflow_v1beta3", "pymongo"}
    assert clients <= set(whole["modules"])
    assert not clients & set(light["modules"])
    assert light["flags"] == whole["flags"]
    assert light["finders"] == whole["finders"]
    assert light["finds_specs"] == "_RememberedSpecs"
    assert light["samples_after_ms"] == 10
    assert light["keeps_mb"] == 0


def test_a_library_finds_python_and_beam_as_they_were() -> None:
    whole = json.loads(python(LOOK))
    assert whole["collects"]
    assert whole["finds_specs"] == "function"
    assert whole["samples_after_ms"] == 200
    assert whole["keeps_mb"] == 100
    assert "apache_beam.io.gcp.gcsfilesystem" in whole["modules"]


def test_what_was_left_out_can_be_imported_later() -> None:
    program = """
import apache_beam.io.gcp.gcsfilesystem, google.cloud.dataflow, pymongo
from apache_beam.internal.http_client import get_new_http
from apache_beam.io.filesystems import FileSystems
print(type(FileSystems.get_filesystem('gs://b/o')).__name__, type(get_new_http()).__name__)
"""
    assert python(BEGIN + program) == "GCSFileSystem Http\n"


@pytest.mark.parametrize(
    ("command", "arguments", "is_light"),
    [
        ("coco", LOCAL, True),
        ("plan", ["folder", *LOCAL], True),
        ("coco", ["--output", "gs://b/o"], False),
        ("coco", ["--output=hdfs://n/o"], False),
        ("coco", [*LOCAL, "--temp_location=gs://b/t"], False),
        ("coco", [*LOCAL, "--runner", "PrismRunner"], False),
        ("coco", [*LOCAL, "--runner=DataflowRunner"], False),
        ("verify", ["o"], False),  # which needs no Beam at all
    ],
)
def test_only_local_runs_in_this_process(
    command: str, arguments: list[str], is_light: bool
) -> None:
    program = (
        "import json, sys; from pipelines.start import begin\n"
        "begin(sys.argv[1], sys.argv[2:]); print('apache_beam' in sys.modules)"
    )
    assert python(program, command, *arguments) == f"{is_light}\n"


def test_another_beam_is_imported_whole() -> None:
    """Nobody has looked which imports it does without."""
    program = f"""
import sys
from pipelines import start
start._KNOWN_BEAM = "2.76."
start.begin("coco", {LOCAL!r})
print("apache_beam" in sys.modules)
"""
    assert python(program) == "False\n"


def test_the_locked_beam_is_known() -> None:
    """A newer one wants a look at `_LEFT_OUT`: Beam must still guard each of these imports."""
    lock = (PROJECT / "requirements.lock").read_text()
    assert f"apache-beam=={start._KNOWN_BEAM}" in lock.replace("[gcp]", "")


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["-m", "pipelines.coco", "o"], True),
        (["-X", "dev", "-mpipelines.coco", "o"], True),
        (["-m", "tool", "o"], False),
        (["-m", "tool.pipelines.coco", "o"], False),
    ],
)
def test_python_m_of_ours_alone(
    words: list[str], begins: bool, monkeypatch: pytest.MonkeyPatch, settings: None
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", *words])
    monkeypatch.setattr(sys, "argv", ["-m", "o"])
    start.begin_module()
    assert gc.isenabled() is not begins


def test_nothing_begins_with_an_import(monkeypatch: pytest.MonkeyPatch, settings: None) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "pipelines.coco", "o"])
    monkeypatch.setattr(sys, "argv", ["/x/pipelines/show.py", "o"])
    start.begin_module()
    assert gc.isenabled()


@pytest.mark.parametrize(("command", "collects"), [("table", False), ("verify", True)])
def test_only_runs_go_on_without_the_collector(
    command: str, collects: bool, settings: None
) -> None:
    """Since they alone start it again, sparing what was imported."""
    start.begin(command, ["--output", "gs://b/o"])
    assert gc.isenabled() is collects


def test_specs_are_found_once_for_each_dofn() -> None:
    asked = []

    def find(dofn: beam.DoFn) -> start.Specs:
        asked.append(dofn)
        return {len(asked)}, set()

    remembered = start._RememberedSpecs(find)
    one, two = beam.DoFn(), beam.DoFn()
    assert [remembered(dofn)[0] for dofn in (one, two, one)] == [{1}, {2}, {1}]
    assert asked == [one, two]


def test_specs_keep_no_dofn_alive_and_pass_to_no_other() -> None:
    remembered = start._RememberedSpecs(lambda dofn: (set(), set()))
    dofn = beam.DoFn()
    remembered(dofn)
    (known,) = remembered._known
    gone, specs = weakref.ref(dofn), ({1}, {2})
    del dofn
    assert gone() is None
    another = beam.DoFn()
    remembered._known[id(another)] = gone, specs  # as if it lay where the first one was
    assert known in remembered._known
    assert remembered(another) == (set(), set())


LONG, LONGER, SHORT = "long.json", "longer.json", "short.json"


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is read ahead of time, in a folder with files of three sizes."""
    monkeypatch.chdir(tmp_path)
    for path, size in ((LONG, start._LONG_BYTES), (LONGER, 2**30), (SHORT, 9)):
        Path(path).touch()
        os.truncate(path, size)
    files: list[list[str]] = []
    monkeypatch.setattr("transforms.processes.coco_reader_process.begin_reading", files.append)
    return files


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (f"--images i --annotations {LONG} --output o", [LONG]),
        (f"--annotations={LONG}", [LONG]),
        (f"--annotations train={LONG} val={LONGER} --images {LONG}", [LONG, LONGER]),
        (f"--annotations train={LONG} val={SHORT}", [LONG]),
        (f"--annotations train={LONG} --annotations val={LONGER}", [LONG, LONGER]),
        (f"--annotations {LONG} --output gs://bucket/o", [LONG]),
        (f"--annotations {SHORT}", None),
        ("--annotations nothing.json .", None),
        (f"--annotations {LONG} {SHORT}", None),  # of one split
        (f"--annotations train={LONG} train={SHORT}", None),
        (f"--annotations {LONG} --runner FlinkRunner", None),
        (f"--annotations {LONG} --direct_num_workers=2", None),
        (f"--images {LONG}", None),
        ("", None),
    ],
)
def test_long_annotation_files_are_read_ahead(
    words: str, files: list[str] | None, begun: list[list[str]]
) -> None:
    start._begin_reading(words.split())
    assert begun == ([] if files is None else [files])


@pytest.mark.parametrize(
    ("arguments", "is_read"),
    [(["coco"], True), (["plan", "coco"], True), (["folder"], False), (["plan", "table"], False)],
)
def test_only_coco_reads_ahead(
    arguments: list[str], is_read: bool, begun: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "apache_beam")
    monkeypatch.setattr(start, "_import_beam", lambda: None)
    with settings_kept():
        command, *others = arguments
        start.begin(command, [*others, "--annotations", LONG])
    assert begun == ([[LONG]] if is_read else [])
