"""Flags of `beam-tfrec coco` and runners: what is refused, how they are parsed, what they do."""

import argparse
import contextlib
import datetime
import importlib
import re
import shlex
from pathlib import Path

import grpc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from google.api_core.exceptions import Forbidden

from beam_tfrec.pipelines import cli, coco, engines
from beam_tfrec.pipelines.data_set import DataSetConfig
from beam_tfrec.pipelines.engines import engine_fault, runner_of, runs_workers_here
from beam_tfrec.pipelines.flags import parse_per_split, parse_size
from beam_tfrec.schemas.samples import Order
from beam_tfrec.transforms.earlier import Since
from beam_tfrec.transforms.gate import GateLimits
from beam_tfrec.transforms.shard_table import Sharding
from beam_tfrec.transforms.storage import Access
from tests.coco_command import MakeCoco, command, committed, run_coco, run_pipeline, snapshot
from tests.gcs_stand_in import SOURCES as IN_STORE
from tests.gcs_stand_in import GcsStandIn, Kind, put_sources
from tests.servers import free_port
from tests.side_folders import with_data_file

OUR_FLAGS = sorted(flag.option_strings[0] for flag in coco.run.parser().flags)
SOURCES = ("--images", "i", "--annotations", "a.json")
NEEDED = (*SOURCES, "--output", "no-such-output")
IN_BUCKET = (
    *("--images", "gs://b/photos", "--annotations", "gs://b/instances.json"),
    *("--output", "gs://b/out"),
)


def configured(flags: str = "", needed: tuple[str, ...] = NEEDED) -> DataSetConfig:
    config, _ = coco.run.configure([*needed, *shlex.split(flags)])
    return config


REFUSED = [
    ("--since ''", "argument --since: must not be empty: see --help"),
    ("--since gs://b/1 'gs://b-{date}/2'", "since needs {date} after the bucket, got 'gs://b-{dat"),
    ("--date 2026-11-20", "date needs {date} in output or since, got 2026-11-20: add {date} to ou"),
    ("--images train=j", "images must come once per split, got i, j: remove one"),
    ("--images Val=j", "images: splits are lower case, got 'Val=j': write val=, or put ./ before"),
    ("--licenses 4,x", "licenses must be a whole number, got 'x'"),
    ("--images val=j", "images and annotations must name the same splits, got images ['train',"),
    ("--split Train", "a split must be lower-case letters, digits and _, a letter first, at"),
    ("--overwrite --trust_manifest", "overwrite and trust_manifest exclude each other, got both:"),
    ("--order input --seed 3", "seed needs a shuffled split, got 3: leave it out"),
    ("--order input train=shuffled", "order must be for a split, got input for none: leave it out"),
    ("--num_shards 4 train=2", "num_shards must be for a split, got 4 for none: leave it out"),
    ("--orphans keep", "argument --orphans: invalid choice: 'keep' (choose from stop, drop):"),
    ("--num_shards val=3", "num_shards must name splits of --images, got ['val']: give ['train']"),
    ("--num_shards 4 --records_per_shard 2", "argument --records_per_shard: not allowed with argu"),
    ("--records_per_shard x", "argument --records_per_shard: invalid int value: 'x': see --help"),
    ("--shard_names all.tfrec", "shard_names must hold {index} for several shards, got"),
    (
        "--shard_names '{index}' --images val=i --annotations val=a",
        "shard_names must hold {split} for splits ['train', 'val'], got '{index}': add",
    ),
    ("--order random", "order must be shuffled or input, got 'random'"),
    ("--order val=input", "order must name splits of --images, got ['val']: give ['train']"),
    ("--max_reads_per_second 100", "max_reads_per_second must come with images that are not"),
    ("--anonymous", "anonymous must come with a path that is not local, got True: leave it out"),
    ("--billing_project p", "billing_project must come with a path on gs://, got p: leave it out"),
    ("--kms_key k", "kms_key must come with an output on gs://, got k: leave it out"),
    ("--max_rejected some", "max_rejected must be a count such as 5 or a percentage such as 1%,"),
    ("--report --no_report", "argument --no_report: not allowed with argument --report: see"),
    ("--max_rej 1", "unknown argument '--max_rej': did you mean --max_rejected?"),
    ("--splits train=90 val=10", "unknown argument 'val=10': separate splits by commas, as in --s"),
    ("--direct_num_workers x", "argument --direct_num_workers: invalid int value: 'x': see --help"),
    ("--split val --split_by hash --splits a=1", "split must come with a path without SPLIT=, and"),
    (f"--split {201 * 's'}", "a split must be lower-case letters, digits and _, a letter first, a"),
    (f"--shard_names {120 * 'é'}-{{index:05}}-{{records}}", "shard_names must make names of at mo"),
]
ALONE = [
    ("--images i --annotations a.json --output ''", "argument --output: must not be empty: see"),
    ("--images i --annotations a.json --output {date} --date x", "date must be a day as YYYY-MM-D"),
    ("", "the following arguments are required: --images, --annotations, --output: see --help"),
    ("--images val=i --annotations val=a --output o --split val", "split must come with a path wi"),
    ("--images", "argument --images: expected at least one argument: see --help"),
    ("--images train= --annotations a --output o", "images of train must not be empty: give a"),
    ("--images '' --annotations a.json --output o", "argument --images: must not be empty"),
    ("--images all=i --annotations all=a.json --output o", "a split must be lower-case letters, d"),
]


@pytest.mark.parametrize(
    ("flags", "message", "needed"),
    [(*row, NEEDED) for row in REFUSED] + [(*row, ()) for row in ALONE],
)
def test_bad_flags_are_refused_in_one_line(
    flags: str, message: str, needed: tuple[str, ...]
) -> None:
    """Python 3.12.8 and 3.13.1 leave out the quotes around argparse's choices."""
    with pytest.raises(ValueError) as refused:
        configured(flags, needed)
    said = re.sub(r"choose from [^)]*", lambda match: match[0].replace("'", ""), str(refused.value))
    assert said.startswith(message)
    assert "\n" not in said


def test_a_refused_flag_touches_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command takes hyphens in flags, too."""
    monkeypatch.chdir(tmp_path)
    flags = ("--num-shards", "0", "--shard-names=plain")
    run = run_pipeline(cli.run_command, "coco", *NEEDED, *flags)
    line = "E-ARG command line: num_shards must be at least 1, got 0; give a larger number\n"
    assert run == (2, "", line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--num_shards", 10**400), "give at most --num_shards 5"),
        (("--runner", "NoSuchRunner"), "NoSuchRunner"),
    ],
)
def test_flags_refused_after_reading_the_sources(
    flags: tuple[object, ...], said: str, make_coco: MakeCoco, tmp_path: Path
) -> None:
    run = run_coco(*command(make_coco(5), tmp_path / "out"), *flags)
    assert run.ended == (2, "E-ARG")
    assert said in run.fault


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("150 MB", 150_000_000),
        ("1.1GB", 1_100_000_000),
        ("0.3kB", 300),
        ("256Mi", 268_435_456),
        ("2T", 2 * 10**12),
        ("7B", 7),
        ("1.9", 1),
        (" 5k ", 5000),
        ("9007199254740993", 2**53 + 1),  # one more than a float holds
    ],
)
def test_parse_size(text: str, size_bytes: int) -> None:
    assert parse_size("shard_size", text) == size_bytes


@pytest.mark.parametrize("text", ["", "MB", "-1", "1e6", "1.", ".5MB", "1MiBB", "1KB", "٣"])
def test_parse_size_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"^shard_size must be a size such as 150MB"):
        parse_size("shard_size", text)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["./Train=a"], {"bare": "./Train=a"}),
        (["train=a=b"], {"train": "a=b"}),
        (["=a"], {"bare": "=a"}),
        (["./train=a"], {"bare": "./train=a"}),  # ./ marks a path with = in it
    ],
)
def test_parse_per_split(values: list[str], expected: dict[str, str]) -> None:
    assert parse_per_split("images", values, bare="bare") == expected


def test_our_flags_are_not_beams() -> None:
    for module in ("dataflow.dataflow_runner", "interactive.interactive_runner", "portability"):
        with contextlib.suppress(ImportError):  # loads more of Beam's options
            importlib.import_module(f"apache_beam.runners.{module}")
    of_beam = engines.flags_of(engines.beam_parser())
    assert "--runner" in of_beam
    assert sorted(of_beam.intersection(OUR_FLAGS)) == []


@pytest.mark.parametrize(
    ("flags", "again"),
    [
        ("--output out-{date} --overwrite", "--output 'out-{date}' --date TODAY"),
        ("--output out-{date} --date=2026-11-20", "--output 'out-{date}' --date=2026-11-20"),
        ("--output o --since one day-{date}", "--output o --since one 'day-{date}' --date TODAY"),
        ("--output o --since one", "--output o --since one"),
    ],
)
def test_the_command_to_accept_rejects_keeps_the_day(flags: str, again: str) -> None:
    """It may be run after midnight, and it must not overwrite."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    begins = "beam-tfrec coco --images i --annotations a.json"
    accept = configured(flags, SOURCES).command
    assert accept == f"{begins} {again}".replace("TODAY", today)


def test_the_day_replaces_date_in_the_configuration() -> None:
    pattern = "gs://b/{date}/{x}"
    given = f"--output {pattern} --since {pattern} --date 2026-11-20"
    config = configured(given, SOURCES)
    assert config.output == "gs://b/2026-11-20/{x}"
    assert config.since == Since((pattern,), datetime.date(2026, 11, 20))
    assert "{date}" not in str(config.options())


def test_help_shows_required_or_default_for_each_flag() -> None:
    for action in coco.run.parser().flags:
        text = action.help or ""
        assert ("(required)" in text) == action.required, action
        assert action.required or "default" in text, action


@pytest.mark.parametrize("name", cli.PIPELINES)
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The short help has the common flags, the runner, and two commands that parse."""
    texts = []
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit, match=r"^0$"):
            cli.run_command([name, flag])
        texts.append(capsys.readouterr().out)
    short, full = texts
    assert full.isascii()
    listed = [re.findall(r"^  (?:-h, )?(--\w+)", text, re.MULTILINE) for text in texts]
    assert len(listed[0]) <= 25
    assert set(listed[0]) < set(listed[1])
    source = importlib.import_module(f"beam_tfrec.pipelines.{name}").run
    flags = [flag for flag in source.parser().flags if flag.help != argparse.SUPPRESS]
    ours = {flag.option_strings[0] for flag in flags}
    assert set(listed[1]) == ours | {"--runner", "--help", "--help_all"}
    assert [flag for flag in ("--readers", "--split_seed", "--anonymous") if flag in short] == []
    assert short.startswith(f"usage: beam-tfrec {name} ")
    groups = re.findall(r"^(\w[a-z ]+)\b.*:$", short, re.MULTILINE)
    assert groups[:2] == ["sources", "output"]
    assert groups[-2:] == ["runners", "examples"]
    for line in short.splitlines()[-2:]:
        program, command, *words = shlex.split(line)
        assert (program, command) == ("beam-tfrec", name)
        source.configure(with_data_file(words))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--num-shards", "--num_shards"),
        ("my-photos", "my-photos"),
        ("--a folder-with blanks", "--a folder-with blanks"),
        ("--job-server-timeout=5", "--job_server_timeout=5"),
    ],
)
def test_hyphens_in_flags(given: str, expected: str) -> None:
    assert cli.with_underscores(given) == expected
    of_beam = engines.flags_of(engines.beam_parser())
    assert {*map(cli.with_underscores, of_beam)} <= of_beam


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        ("--foo", "see --help_all"),
        ("-foo", "see --help_all"),
        ("--image", "did you mean --images?"),
        ("--shards", "did you mean --shard_size?"),
        ("--runer", "did you mean --runner?"),
        ("--worker", "did you mean --workers?"),
    ],
)
def test_only_close_names_are_proposed(flag: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"unknown argument '{flag}': {remedy}")):
        configured(flag)


TWO = ("--images", "i", "val=j", "--annotations", "a.json", "val=b.json", "--output", "o")
SHARDINGS = {
    "--num_shards 3 --order input": Sharding({"": 3}, order={"": Order.INPUT}),
    "--num_shards train=4 val=1": Sharding({"train": 4, "val": 1}),
    "--records_per_shard 3 --order val=input": Sharding(
        records_per_shard=3, order={"val": Order.INPUT}
    ),
    "--hosts 2 --seed 1 --shard_size 1MB": Sharding(hosts=2, seed=1, shard_bytes=10**6),
}


@pytest.mark.parametrize("flags", SHARDINGS)
def test_flags_of_shards_and_order_have_an_effect(flags: str) -> None:
    assert configured(flags, TWO).sharding.options() == SHARDINGS[flags].options()


def test_filters_are_in_the_plan() -> None:
    """`test_coco_samples.py` tests what each does."""
    flags = "--licenses 5,4,5 --skip_crowd --min_box_px 3.5 --skip_unannotated --orphans drop"
    expected = {"licenses": "4,5", "min_box_px": "3.5", "skip_crowd": "yes", "orphans": "drop"}
    assert configured(flags).options().items() >= {**expected, "skip_unannotated": "yes"}.items()
    assert configured().options()["orphans"] == "stop"


@pytest.mark.thorough
def test_trust_manifest(make_coco: MakeCoco, tmp_path: Path) -> None:
    """`--trust_manifest` lists no sources, so they may be gone."""
    sources, out = make_coco(3), tmp_path / "out"
    committed(sources, out)
    before = snapshot(out)
    sources[0].rename(tmp_path / "moved")
    assert run_coco(*command(sources, out)).code != 0
    run = run_coco(*command(sources, out), "--trust_manifest")
    assert (run.code, run.out) == (0, f"already complete: {out}/manifest.json\n")
    other = run_coco(*command(sources, out), "--trust_manifest", "--seed", 1)
    assert other.ended == (5, "E-OUT-PLAN")
    assert snapshot(out) == before


def test_requests_name_billing_project_and_key(make_coco: MakeCoco, stand_in: GcsStandIn) -> None:
    put_sources(stand_in, make_coco(3))
    output = ("--output", "gs://out/o", "--kms_key", "projects/p/key")
    run = run_coco(*IN_STORE, *output, "--billing_project", "payer")
    assert run.code == 0, run.err
    for request in stand_in.requests:
        payer = request.query.get("userProject", request.headers.get("x-goog-user-project"))
        assert payer == "payer", request
        if request.kind is Kind.UPLOAD:
            assert request.query["kmsKeyName"] == "projects/p/key"


def test_limits_reach_the_workers() -> None:
    """`tests/test_gate.py` tests what each limit does."""
    flags = "--shards_in_flight 3 --bytes_in_flight 700kB --readers 5 --workers 4"
    config = configured(f"{flags} --anonymous", IN_BUCKET)
    assert config.limits == GateLimits(3, 700_000, 5, 4)
    assert config.access == Access(anonymous=True)


@pytest.mark.parametrize(
    ("flags", "named", "here"),
    [
        ("", "FnApiRunner", True),  # downloads nothing
        ("--runner DirectRunner", "FnApiRunner", True),
        ("--runner direct", "FnApiRunner", True),  # Beam knows runners without their last word
        ("--runner apache_beam.runners.portability.fn_api_runner.FnApiRunner", "FnApiRunner", True),
        ("--runner PrismRunner", "PrismRunner", True),  # its workers are threads here by default
        ("--runner PrismRunner --environment_type DOCKER", "PrismRunner", False),
        ("--runner PortableRunner --environment_type LOOPBACK", "PortableRunner", True),
        ("--runner PortableRunner", "PortableRunner", False),
        ("--runner dataflow", "dataflow", False),
    ],
)
def test_runners_are_known_by_name_and_place_of_workers(flags: str, named: str, here: bool) -> None:
    options = PipelineOptions(flags.split())
    assert (runner_of(options), runs_workers_here(options)) == (named, here)


def test_a_missing_job_service_is_one_line(make_coco: MakeCoco, tmp_path: Path) -> None:
    endpoint = ("--runner", "PortableRunner", "--job_endpoint", f"localhost:{free_port()}")
    run = run_coco(*command(make_coco(2), tmp_path / "out", *endpoint))
    assert run.ended == (6, "E-JOB")
    assert "Connection refused; start the job service" in run.fault


FAILED = "Pipeline job-1 failed in state FAILED: "
TRACEBACK = 'Traceback (most recent call last):\n  File "transforms/commit.py", line 3, in commit\n'
LOST = f"{FAILED}Error running pipeline.\n{TRACEBACK}RuntimeError: Channel closed prematurely.\n"


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (RuntimeError(f"{FAILED}panic:\ngoroutine 99"), f"{FAILED}panic: goroutine 99"),
        (Forbidden("POST https://dataflow: no"), "403 POST https://dataflow: no"),
        (RuntimeError(LOST), "a worker has ended"),
        (grpc.FutureTimeoutError(), "no answer from its job service"),
        (RuntimeError("x" * 5000), "x" * 300),
    ],
)
def test_a_failed_engine_is_one_line(error: Exception, what: str) -> None:
    line = f"E-JOB engine: {what}; see its log, then run again to resume"
    assert str(engine_fault(error)) == line


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(f"{FAILED}{TRACEBACK}KeyError: 3\n"),
        RuntimeError(f"{LOST}KeyError: 3\n"),
        RuntimeError("E-IO-AUTH gs://b: refused; log in [while running 'Commit']"),
        ValueError("region must be given: add it"),
    ],
)
def test_faults_and_bugs_of_ours_are_not_blamed_on_the_engine(error: Exception) -> None:
    assert engine_fault(error) is error
