"""Flags of `python -m pipelines.coco`: what is refused, how they are parsed, and their help."""

import contextlib
import datetime
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipelines import coco
from pipelines.coco import COMMAND, CocoConfig
from pipelines.engines import beam_flags, parse_flags
from pipelines.flags import FlagParser, parse_per_split, parse_size
from tests.coco_command import (
    PROJECT,
    MakeCoco,
    check_committed,
    command,
    committed,
    counts,
    run_coco,
    source_ids,
)
from tests.conftest import coco_dict, jpeg_bytes
from transforms.earlier import Since

OUR_FLAGS = sorted(set(coco.COMMAND.parser()._option_string_actions) - {"-h", "--help"})


SOURCES = ("--images", "i", "--annotations", "a.json")
NEEDED = (*SOURCES, "--output", "no-such-output")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "the following arguments are required: --images, --annotations, --output; see --help"),
        (SOURCES, "the following arguments are required: --output; see --help"),
        (("--images",), "argument --images: expected at least one argument; see --help"),
        ((*SOURCES, "--output", ""), "argument --output: must not be empty; see --help"),
        ((*NEEDED, "--exclude", ""), "argument --exclude: must not be empty; see --help"),
        ((*NEEDED, "--since", ""), "argument --since: must not be empty; see --help"),
        (
            (*NEEDED, "--since", "gs://b/1", "gs://b-{date}/2"),
            "since must have {date} behind the bucket, got 'gs://b-{date}/2';"
            " give the data sets by their names",
        ),
        (
            (*NEEDED, "--date", "2026-11-20"),
            "date 2026-11-20 must have {date} to stand for in output or since; add it, or leave"
            " --date out",
        ),
        (
            (*SOURCES, "--output", "out-{date}", "--date", "2026-11-31"),
            "date must be a day as YYYY-MM-DD, got '2026-11-31'; give one such as 2026-11-20",
        ),
        (
            (*SOURCES, "--output", "out-{date}", "--date="),
            "date must be a day as YYYY-MM-DD, got ''; give one such as 2026-11-20",
        ),
        (
            (*NEEDED, "--images", "train=j"),
            "images of train must come once, got 'i' and 'j'; remove one",
        ),
        (
            ("--images", "train=", "--annotations", "a.json", "--output", "o"),
            "images of train must not be empty; give a value",
        ),
        (
            ("--images", "", "--annotations", "a.json", "--output", "o"),
            "images of train must not be empty; give a value",
        ),
        (
            (*NEEDED, "--annotations", "train=a.json"),
            "annotations of train must name each file once, got 'a.json' twice; remove one",
        ),
        (
            (*NEEDED, "--annotations", "train="),
            "annotations of train must not be empty; give a value",
        ),
        (
            (*NEEDED, "--licenses", "4,x"),
            "licenses must be a whole number, got 'x'; see --help",
        ),
        (
            (*NEEDED, "--licenses", ""),
            "licenses must be a whole number, got ''; see --help",
        ),
        (
            (*NEEDED, "--min_box_px", "-1"),
            "min_box_px must be at least 0, got -1.0; give 0 or more",
        ),
        (
            (*NEEDED, "--images", "val=j"),
            "images and annotations must name the same splits, got images ['train', 'val'] and"
            " annotations ['train']; give both as SPLIT=PATH",
        ),
        (
            ("--images", "all=i", "--annotations", "all=a.json", "--output", "o"),
            "a split must be lower-case letters, digits and _, a letter first, and not 'all'; got"
            " 'all'; rename it",
        ),
        (
            (*NEEDED, "--split", "Train"),
            "a split must be lower-case letters, digits and _, a letter first, and not 'all'; got"
            " 'Train'; rename it",
        ),
        (
            (*NEEDED, "--split", ""),
            "a split must be lower-case letters, digits and _, a letter first, and not 'all'; got"
            " ''; rename it",
        ),
        (
            (*NEEDED, "--split", "s" * 201),
            "a split must have at most 200 characters, got 201; give a shorter one",
        ),
        (
            (*NEEDED, "--shard_names", "\u00e9" * 120 + "-{index:05}-{records}"),
            "shard_names must make names of at most 255 bytes, got one of 257 for split train;"
            " give a shorter template or split",
        ),
        (
            (*NEEDED, "--orphans", "keep"),
            "argument --orphans: invalid choice: 'keep' (choose from stop, drop); see --help",
        ),
        (
            (*NEEDED, "--check", "none"),
            "argument --check: invalid choice: 'none' (choose from header, decode); see --help",
        ),
        (
            (*NEEDED, "--on_size_mismatch", "keep"),
            "argument --on_size_mismatch: invalid choice: 'keep' (choose from auto, reject,"
            " trust_image, trust_json); see --help",
        ),
        (
            (*NEEDED, "--num_shards", "0"),
            "num_shards must be at least 1, got 0; give a larger number",
        ),
        (
            (*NEEDED, "--num_shards", "many"),
            "num_shards must be a whole number, got 'many'; see --help",
        ),
        (
            (*NEEDED, "--num_shards", "1.5"),
            "num_shards must be a whole number, got '1.5'; see --help",
        ),
        (
            (*NEEDED, "--num_shards", "4", "5"),
            "num_shards of all splits must come once, got '4' and '5'; remove one",
        ),
        (
            (*NEEDED, "--num_shards", "val=3"),
            "num_shards must name splits of --images, got ['val']; give ['train']",
        ),
        (
            (*NEEDED, "--num_shards", "4", "--hosts", "3"),
            "num_shards must be a multiple of hosts 3, got 4; give 3 or 6",
        ),
        (
            (*NEEDED, "--num_shards", "2", "--hosts", "3"),
            "num_shards must be a multiple of hosts 3, got 2; give 3",
        ),
        (
            (*NEEDED, "--num_shards", "4", "--records_per_shard", "2"),
            "argument --records_per_shard: not allowed with argument --num_shards; see --help",
        ),
        (
            (*NEEDED, "--num_shards", "4", "--shard_size", "1MB"),
            "argument --shard_size: not allowed with argument --num_shards; see --help",
        ),
        (
            (*NEEDED, "--records_per_shard", "0"),
            "records_per_shard must be at least 1, got 0; give a larger number",
        ),
        (
            (*NEEDED, "--records_per_shard", "x"),
            "argument --records_per_shard: invalid int value: 'x'; see --help",
        ),
        ((*NEEDED, "--hosts", "0"), "hosts must be at least 1, got 0; give a larger number"),
        ((*NEEDED, "--hosts", "x"), "argument --hosts: invalid int value: 'x'; see --help"),
        (
            (*NEEDED, "--shard_size", "0"),
            "shard_size must be at least 1, got 0; give a larger number",
        ),
        (
            (*NEEDED, "--shard_size", "0.4B"),
            "shard_size must be at least 1, got 0; give a larger number",
        ),
        (
            (*NEEDED, "--shard_size=-5MB"),
            "shard_size must be a size such as 150MB or 256MiB, got '-5MB'; see --help",
        ),
        (
            (*NEEDED, "--shard_size", "5 parsecs"),
            "shard_size must be a size such as 150MB or 256MiB, got '5 parsecs'; see --help",
        ),
        (
            (*NEEDED, "--shard_size", "inf"),
            "shard_size must be a size such as 150MB or 256MiB, got 'inf'; see --help",
        ),
        (
            (*NEEDED, "--shard_names", "all.tfrec"),
            "shard_names must hold {index} for several shards, got 'all.tfrec'; add it, or give"
            " --num_shards 1",
        ),
        (
            (*NEEDED, "--shard_names", "{index}-{host}"),
            "shard_names must be counted, plain or a template with {index} and at most {split},"
            " {num_shards}, {records}; got '{index}-{host}'; see --help",
        ),
        (
            (*NEEDED, "--shard_names", "a/{index}"),
            "shard_names must name files in the output itself, not hidden ones, got 'a/{index}';"
            " remove the slash, dot or underscore",
        ),
        (
            (*NEEDED, "--shard_names", "_{index}"),
            "shard_names must name files in the output itself, not hidden ones, got '_{index}';"
            " remove the slash, dot or underscore",
        ),
        (
            (*NEEDED, "--shard_names", "{index}", "--images", "val=i", "--annotations", "val=a"),
            "shard_names must hold {split} for splits ['train', 'val'], got '{index}'; add it",
        ),
        (
            (*NEEDED, "--order", "random"),
            "order must be shuffled or input, got 'random'; see --help",
        ),
        (
            (*NEEDED, "--order", "val=input"),
            "order must name splits of --images, got ['val']; give ['train']",
        ),
        (
            (*NEEDED, "--max_reads_per_second", "100"),
            "max_reads_per_second must come with images that are not local, got 100.0;"
            " leave it out",
        ),
        (
            (*NEEDED, "--since", "gs://b/x//coco-{date}"),
            "a path must not hold '//' after its store, got 'gs://b/x//coco-{date}'; write one '/'",
        ),
        (
            (*NEEDED, "--anonymous"),
            "anonymous must come with a path that is not local, got True; leave it out",
        ),
        (
            (*NEEDED, "--billing_project", "p"),
            "billing_project must come with a path on gs://, got p; leave it out",
        ),
        (
            (*NEEDED, "--kms_key", "k"),
            "kms_key must come with an output on gs://, got k; leave it out",
        ),
        (
            (*NEEDED, "--max_reads_per_second=-1"),
            "max_reads_per_second must be a number of requests, or 0 for no limit, got -1.0;"
            " give one such as 1000",
        ),
        ((*NEEDED, "--seed", "x"), "argument --seed: invalid int value: 'x'; see --help"),
        (
            (*NEEDED, "--max_rejected", "some"),
            "max_rejected must be a count such as 5 or a percentage such as 1%, got 'some'; see"
            " --help",
        ),
        (
            (*NEEDED, "--max_dropped", "all"),
            "max_dropped must be a count such as 5 or a percentage such as 1%, got 'all'; see"
            " --help",
        ),
        (
            (*NEEDED, "--max_rejected", "101%"),
            "max_rejected must be a count such as 5 or a percentage such as 1%, got '101%'; see"
            " --help",
        ),
        (
            (*NEEDED, "--max_rejected", "nan%"),
            "max_rejected must be a count such as 5 or a percentage such as 1%, got 'nan%'; see"
            " --help",
        ),
        (
            (*NEEDED, "--max_rejected=-1"),
            "max_rejected must be a count such as 5 or a percentage such as 1%, got '-1'; see"
            " --help",
        ),
        (
            (*NEEDED, "--shards_in_flight", "0"),
            "shards_in_flight must be at least 1, got 0; give a larger number",
        ),
        (
            (*NEEDED, "--bytes_in_flight", "0"),
            "bytes_in_flight must be at least 1, got 0; give a larger number",
        ),
        (
            (*NEEDED, "--bytes_in_flight", ""),
            "bytes_in_flight must be a size such as 150MB or 256MiB, got ''; see --help",
        ),
        ((*NEEDED, "--readers", "0"), "readers must be at least 1, got 0; give a larger number"),
        ((*NEEDED, "stray"), "unknown argument 'stray'; see --help"),
        ((*NEEDED, "--imagse", "x"), "unknown argument '--imagse'; did you mean --images?"),
        (("--imagse", "x"), "unknown argument '--imagse'; did you mean --images?"),
        (("--imagse=x",), "unknown argument '--imagse'; did you mean --images?"),
        ((*NEEDED, "--max_rej", "1"), "unknown argument '--max_rej'; did you mean --max_rejected?"),
        ((*NEEDED, "--xyzzy", "1"), "unknown argument '--xyzzy'; see --help"),
        (
            (*NEEDED, "--direct_num_workers", "x"),
            "argument --direct_num_workers: invalid int value: 'x'; see --help",
        ),
    ],
)
def test_refuses_in_one_line(
    arguments: tuple[str, ...], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12.8 and 3.13.1 leave out the quotes around argparse's choices."""
    monkeypatch.chdir(tmp_path)
    run = run_coco(*arguments)
    err = re.sub(r"choose from [^)]*", lambda match: match[0].replace("'", ""), run.err)
    assert (run.code, run.out, err) == (2, "", f"E-ARG command line: {line}\n")
    assert list(tmp_path.iterdir()) == []  # refused before anything is touched


@pytest.mark.parametrize(
    ("flag", "number"),
    [
        ("--num_shards", 2**63),
        ("--num_shards", 10**400),
        ("--records_per_shard", 10**30),
        ("--hosts", 10**30),
        ("--shard_size", "9" * 400),
        ("--shard_size", "9" * 300 + "TB"),
        ("--seed", 10**70),
        ("--seed", -(10**70)),
    ],
)
def test_refuses_numbers_beyond_all_measure(
    flag: str, number: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, and before the sources are read; no float's or hash's own words."""
    monkeypatch.chdir(tmp_path)
    run = run_coco(*NEEDED, f"{flag}={number}")
    assert run.ended == (2, "E-ARG")
    assert run.fault.startswith(f"E-ARG command line: {flag.strip('-')} must be ")
    assert list(tmp_path.iterdir()) == []


def test_takes_large_numbers(make_coco: MakeCoco, tmp_path: Path) -> None:
    """As many bytes, readers and shards in flight as anybody could have."""
    large = ("--bytes_in_flight", "1024TiB", "--readers", 1000, "--shards_in_flight", 10**6)
    out = tmp_path / "out"
    committed(make_coco(2), out, "--records_per_shard", 2**63 - 1, "--seed", 2**63, *large)
    assert counts(out) == [2]
    sources = make_coco(2, name="val")
    committed(sources, tmp_path / "size", "--shard_size", "9000000TB")
    run = run_coco(*command(sources, tmp_path / "many"), "--num_shards", 2**63 - 1)
    assert run.ended == (2, "E-ARG")
    assert run.fault.endswith("; give at most --num_shards 2")


def test_records_per_shard_cannot_promise_shards_for_hosts(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    """Three shards for two hosts: a multiple of --hosts was promised, so one of them has to go."""
    run = run_coco(*command(make_coco(7), tmp_path / "out"), "--records_per_shard", 3, "--hosts", 2)
    assert run.ended == (2, "E-ARG")


def test_hosts_beyond_the_samples(make_coco: MakeCoco, tmp_path: Path) -> None:
    run = run_coco(*command(make_coco(5), tmp_path / "out"), "--hosts", 7)
    assert run.ended == (2, "E-ARG")
    assert "--hosts 7 " in run.fault
    assert " 5 samples" in run.fault


def test_unknown_runner(make_coco: MakeCoco, tmp_path: Path) -> None:
    run = run_coco(*command(make_coco(1), tmp_path / "out"), "--runner", "NoSuchRunner")
    assert run.ended == (2, "E-ARG")
    assert "NoSuchRunner" in run.fault


@pytest.mark.parametrize("runner", ["DirectRunner", "FnApiRunner"])
def test_in_process_runners(runner: str, make_coco: MakeCoco, tmp_path: Path) -> None:
    committed(make_coco(2), tmp_path / "out", "--runner", runner)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("150MB", 150_000_000),
        ("150 MB", 150_000_000),
        ("1.1GB", 1_100_000_000),
        ("0.3kB", 300),
        ("256MiB", 268_435_456),
        ("256Mi", 268_435_456),
        ("2T", 2 * 10**12),
        ("1TiB", 2**40),
        ("7", 7),
        ("7B", 7),
        ("1.9", 1),
        (" 5k ", 5000),
        ("9007199254740993", 2**53 + 1),  # one more than a float holds
    ],
)
def test_parse_size(text: str, size_bytes: int) -> None:
    assert parse_size("shard_size", text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "MB", "-1", "1e6", "1.", ".5MB", "1MiBB", "1 M B", "1KB", "٣"]
)
def test_parse_size_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"^shard_size must be a size such as 150MB"):
        parse_size("shard_size", text)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], {}),
        (["a"], {"bare": "a"}),
        (["train=a", "val=b"], {"train": "a", "val": "b"}),
        (["/x/a=b"], {"bare": "/x/a=b"}),  # what stands before = can be no split
        (["Train=a"], {"bare": "Train=a"}),
        (["train=a=b"], {"train": "a=b"}),
        (["=a"], {"bare": "=a"}),
        (["gs://b/o?x=1"], {"bare": "gs://b/o?x=1"}),
        (["./train=a"], {"bare": "./train=a"}),  # how a folder with = in its name is given
    ],
)
def test_parse_per_split(values: list[str], expected: dict[str, str]) -> None:
    assert parse_per_split("images", values, bare="bare") == expected


def test_no_flag_is_beams() -> None:
    for module in ("dataflow.dataflow_runner", "interactive.interactive_runner", "portability"):
        with contextlib.suppress(ImportError):  # loads more of Beam's options
            importlib.import_module(f"apache_beam.runners.{module}")
    assert "--runner" in beam_flags()
    assert sorted(beam_flags().intersection(OUR_FLAGS)) == []


def test_beams_flags_are_handed_on() -> None:
    flags, others = parse_flags(
        coco.COMMAND.parser(),
        [*NEEDED, "--runner=FlinkRunner", "--job_name", "j", "--streaming", "--seed", "3"],
    )
    assert flags.seed == 3
    assert others == ["--runner=FlinkRunner", "--job_name", "j", "--streaming"]


DATED = (*SOURCES, "--output", "out-{date}")


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (
            (*DATED, "--max_rejected", "1"),
            "--images i --annotations a.json --output 'out-{date}' --date TODAY"
            " --max_rejected COUNT",
        ),
        (
            (*DATED, "--date=2026-11-20"),
            "--images i --annotations a.json --output 'out-{date}' --date=2026-11-20"
            " --max_rejected COUNT",
        ),
        (
            (*NEEDED, "--since", "one", "day-{date}"),
            "--images i --annotations a.json --output no-such-output --since one 'day-{date}'"
            " --date TODAY --max_rejected COUNT",
        ),
        (
            (*NEEDED, "--since", "one"),
            "--images i --annotations a.json --output no-such-output --since one"
            " --max_rejected COUNT",
        ),
    ],
)
def test_the_command_that_accepts_rejects_is_of_the_same_day(
    arguments: tuple[str, ...], command: str
) -> None:
    """It may be given after midnight."""
    before = datetime.datetime.now(datetime.UTC).date()
    run, _ = coco.COMMAND.configure(arguments)
    after = datetime.datetime.now(datetime.UTC).date()

    expected = {command.replace("TODAY", day.isoformat()) for day in (before, after)}
    assert run.config.accept_command.removeprefix("python -m pipelines.coco ") in expected


def test_the_day_is_in_the_output_before_anything_begins() -> None:
    run, _ = coco.COMMAND.configure(
        [
            *(*SOURCES, "--output", "gs://b/{date}/{x}"),
            *("--since", "gs://b/{date}/{x}", "--date", "2026-11-20"),
        ]
    )

    assert run.config.output == "gs://b/2026-11-20/{x}"
    assert run.since == Since(("gs://b/{date}/{x}",), datetime.date(2026, 11, 20))
    assert "{date}" not in str(run.config.options())


def test_one_line_reads_the_clock() -> None:
    """What a run does must not depend on when one of its steps is executed."""
    clock = re.compile(
        r"\b(datetime\.now|utcnow|date\.today|time\.time|strftime|localtime|gmtime)\("
    )
    found = [
        f"{path.relative_to(PROJECT)}: {line.strip()}"
        for package in ("schemas", "transforms", "pipelines")
        for path in sorted((PROJECT / package).rglob("*.py"))
        for line in path.read_text().splitlines()
        if clock.search(line)
    ]
    line = "return datetime.datetime.now(datetime.UTC).date()"
    assert found == [f"pipelines/flags.py: {line}"]


def test_a_dash_and_a_space_begin_a_value() -> None:
    flags, _ = parse_flags(coco.COMMAND.parser(), ["--images", "--my photos", *NEEDED[2:]])
    assert flags.images == ["--my photos"]


def test_help_gives_default_or_need_of_every_flag() -> None:
    for action in coco.COMMAND.parser()._actions:
        flag, text = action.option_strings[-1], action.help or ""
        if flag == "--help":
            continue
        assert ("(required)" in text) == action.required, flag
        assert action.required or "default" in text, flag
        if isinstance(action.default, str | int) and not isinstance(action.default, bool):
            assert str(action.default) in text, flag
        assert action.metavar not in (None, flag.lstrip("-").upper()) or (
            action.choices or action.nargs == 0 or flag in ("--split", "--seed")
        ), f"{flag} has no metavar that says its unit or kind"


def test_help_is_complete_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        coco.run(["--help"])
    text = capsys.readouterr().out
    assert text.isascii()
    for flag in OUR_FLAGS:
        assert f"\n  {flag}" in text


def test_flag_parser_takes_no_abbreviations() -> None:
    flags = FlagParser("p", "d")
    flags.add_argument("--number")
    with pytest.raises(ValueError, match=r"^unknown argument '--num': did you mean --number\?$"):
        parse_flags(flags, ["--num", "1"])


def test_one_image_root_can_serve_two_splits(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    spec = coco_dict(4)
    for place, image in enumerate(spec["images"]):
        (images / image["file_name"]).write_bytes(jpeg_bytes(color=place))
    for split in ("train", "val"):
        (tmp_path / f"{split}.json").write_text(json.dumps(spec))
    run = run_coco(
        *("--images", f"train={images}", f"val={images}/"),
        *("--annotations", f"train={tmp_path}/train.json", f"val={tmp_path}/val.json"),
        *("--output", tmp_path / "out"),
    )
    assert run.code == 0, run.err
    check_committed(tmp_path / "out")
    assert sorted(source_ids(tmp_path / "out", "train")) == [1, 2, 3, 4]
    assert sorted(source_ids(tmp_path / "out", "val")) == [1, 2, 3, 4]


SOURCES_OF_A_SPLIT: dict[str, tuple[Any, str]] = {
    "text": (
        "a.json",
        "annotations of train must be a list of files, got the text 'a.json': give ['a.json']",
    ),
    "none": ([], "annotations of train must not be empty, got []: give a file"),
    "one twice": (
        ("a.json", "b.json", "a.json"),
        "annotations of train must name each file once, got 'a.json' twice: remove one",
    ),
}


@pytest.mark.parametrize(
    ("given_files", "message"), SOURCES_OF_A_SPLIT.values(), ids=SOURCES_OF_A_SPLIT
)
def test_annotation_files_of_a_split(given_files: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        CocoConfig(images={"train": "i"}, annotations={"train": given_files}, output="o")


def test_annotation_files_in_the_order_given() -> None:
    flags = "--images=i --output=o --annotations a b --annotations train=c"
    run_config, _ = COMMAND.configure(flags.split())
    assert run_config.config.annotations == {"train": ("a", "b", "c")}
    assert run_config.uris() == ["i", "a", "b", "c", "o"]


def test_what_a_layout_asks_for_of_annotation_files() -> None:
    plain, masks, keras = (
        COMMAND.configure([*SOURCES, "--output=o", *flags.split()])[0].config.reading().rules
        for flags in ("", "--features boxes,masks", "--layout keras")
    )
    assert (plain.segmentations, plain.per_annotation) == (False, False)
    assert masks.segmentations
    assert keras.per_annotation
