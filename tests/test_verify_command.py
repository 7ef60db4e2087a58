"""The command `beam-tfrec verify`: exit codes and literal lines."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from beam_tfrec.schemas.tfrecord import frame_record
from tests.coco_command import PROJECT

RECORD = b"".join(frame_record([bytes.fromhex("0a0c0a0a0a016112051a030a0101")]))


def run(
    *arguments: object, program: str = "beam_tfrec.pipelines.verify"
) -> tuple[int, list[str], str]:
    found = subprocess.run(
        [sys.executable, "-m", program, *map(str, arguments)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return found.returncode, found.stdout.splitlines(), found.stderr


def test_exit_codes_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(2 * RECORD)
    code, lines, err = run("verify", path, program="beam_tfrec.pipelines.cli")
    assert (code, err) == (0, "")
    assert lines[:2] == ["features of 2 Examples:", "  a  int64  in 2 of 2  1 value"]
    assert re.match(r"1 file, 2 records, 60 B read in 0\..*: all is well$", lines[2])
    path.write_bytes(RECORD[:-1] + b"\0" + RECORD)
    code, lines, err = run(path)
    assert (code, err) == (7, "")
    assert lines[0].startswith(f"E-VER-CRC {path} record 0 at byte 0: its data's checksum is ")
    assert lines[-1].endswith(": 1 finding")
    code, lines, err = run("a" * 300 + ".tfrecord")
    assert (code, lines) == (6, []) and err.startswith("E-IO-READONLY ./aaa")


USAGE = {
    "no argument": ((), "the following arguments are required: PATH"),
    "an unknown flag": (("a", "--shallow"), "unrecognized arguments: --shallow"),
    "a missing file": (("no/such",), "E-ARG no/such: no such file; give a finished data set"),
    "a folder without records": ((PROJECT / "docs",), "has no manifest.json and no TFRecord files"),
    "workers": (("a", "--workers", "0"), "workers must be at least 1, got 0"),
    "sources of files": ((__file__, "--sources", "b"), "sources must come with one complete"),
    "an empty source": ((__file__, "--sources", "val="), "sources of val must not be empty"),
}


@pytest.mark.parametrize(("arguments", "said"), USAGE.values(), ids=USAGE)
def test_wrong_usage_is_exit_code_2(arguments: tuple[object, ...], said: str) -> None:
    code, lines, err = run(*arguments)
    assert (code, lines) == (2, [])
    assert err.startswith("E-ARG ") and said in err and len(err.splitlines()) == 1
