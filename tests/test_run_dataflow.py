"""`run_dataflow.sh`: its options, what it refuses, and the exact command that it runs."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_tfrec.pipelines import cli, coco
from beam_tfrec.pipelines.engines import parse_flags
from tests.coco_command import PROJECT
from tests.fake_programs import FLAGS, IMAGE, REQUIRED, SCRIPT, SOURCES, Launcher, quoted, refused


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path)


GOLDEN = r"""cd HOME && PYTHON -m beam_tfrec.pipelines.coco \
  --runner=DataflowRunner \
  --project=my-project \
  --region=us-central1 \
  --job_name=night-1 \
  --staging_location=gs://stage/jobs/staging \
  --temp_location=gs://stage/jobs/temp \
  --labels=tool=beam-tfrec \
  --labels=command=coco \
  --labels=team=vision \
  --worker_machine_type=n2-standard-4 \
  --number_of_worker_harness_threads=4 \
  --max_num_workers=10 \
  --disk_size_gb=50 \
  --setup_file=./setup.py \
  --no_wait \
  --images 'train=gs://in/my photos' 'val=gs://in/it'\''s' \
  --annotations=gs://in/a.json \
  --output gs://out/set \
  --shard_names 'file_{index:02}.tfrec' \
  --dataflow_kms_key=projects/p/k
"""


def test_check_only_prints_the_command_and_calls_no_gcloud(launcher: Launcher) -> None:
    flags = (
        *("--images", "train=gs://in/my photos", "val=gs://in/it's"),
        *("--annotations=gs://in/a.json", "--output", "gs://out/set"),
        *("--shard_names", "file_{index:02}.tfrec", "--dataflow_kms_key=projects/p/k"),
    )
    launcher.programs.answer("--dry_run=True", out="graph is fine\n", code=5)
    options = ("--job-name", "night-1", "--labels=team=vision", "--check-only")
    run = launcher.submit(*options, flags=flags)
    assert (run.returncode, run.stderr) == (5, "")
    golden = GOLDEN.replace("HOME", quoted(launcher.home))
    golden = golden.replace("PYTHON", quoted(launcher.python))
    assert run.stdout == golden + "graph is fine\n"
    words = shlex.split(run.stdout.removesuffix("graph is fine\n").replace("\\\n", ""))
    assert words[:4] == ["cd", str(launcher.home), "&&", str(launcher.python)]
    assert launcher.job() == [*words[4:], "--dry_run=True"]  # it runs what it prints
    assert launcher.programs.calls("gcloud") == launcher.programs.calls("docker") == []


@pytest.mark.parametrize("flag", ["--plan", "--plan=json"])
def test_a_plan_calls_no_gcloud_and_no_docker(flag: str, launcher: Launcher) -> None:
    run = launcher.submit("--build_container", "host:5000/i", flags=(flag, *FLAGS))
    assert (run.returncode, run.stderr) == (0, "")
    assert launcher.job()[-len(FLAGS) - 1 :] == [flag, *FLAGS]
    assert launcher.programs.calls("gcloud") == launcher.programs.calls("docker") == []


def test_every_option_reaches_beam(launcher: Launcher) -> None:
    options = (
        *("--job_name", "j", "--labels", "a=b", "--labels", "c=", "--machine_type=n2-highmem-2"),
        *("--max_workers", "7", "--disk_size_gb", "99", "--service_account", "w@p.iam"),
        *("--experiments", "e1", "--experiments=e2", "--network", "net", "--subnetwork", "sub"),
        *("--no_public_ips", "--sdk_container_image", IMAGE),
    )
    launcher.programs.answer("subnets describe", out="True\n")
    assert launcher.submit(*options).returncode == 0
    found = PipelineOptions(launcher.job()[2:]).get_all_options()
    expected = {
        **{"runner": "DataflowRunner", "project": "my-project", "region": "us-central1"},
        **{"job_name": "j", "labels": ["tool=beam-tfrec", "command=coco", "a=b", "c="]},
        **{"staging_location": "gs://stage/jobs/staging", "temp_location": "gs://stage/jobs/temp"},
        **{"service_account_email": "w@p.iam", "machine_type": "n2-highmem-2"},
        **{"max_num_workers": 7, "disk_size_gb": 99, "network": "net", "use_public_ips": False},
        **{"subnetwork": "regions/us-central1/subnetworks/sub", "sdk_container_image": IMAGE},
        **{"setup_file": None, "sdk_location": "container", "number_of_worker_harness_threads": 4},
    }
    assert {name: found[name] for name in expected} == expected
    assert {"e1", "e2"} <= {*found["experiments"]}


def test_it_waits_only_with_the_flag(launcher: Launcher) -> None:
    launcher.programs.answer("-m beam_tfrec.pipelines.coco", out="job page\n", code=4)
    run = launcher.submit()
    assert (run.returncode, run.stdout) == (4, "job page\n")
    assert "--no_wait" in launcher.job()
    launcher.submit("--wait")
    assert "--no_wait" not in launcher.programs.calls("-m beam_tfrec.pipelines.coco")[1]


def test_job_names_are_readable_and_differ(launcher: Launcher) -> None:
    runs = [launcher.submit("--check_only").stdout for _ in range(2)]
    names = {re.findall(r"--job_name=(beam-tfrec-coco-20\d{6}-\d{6}-\d{4}) ", r)[0] for r in runs}
    assert len(names) == 2


def test_first_job_of_the_documentation_is_submitted(launcher: Launcher) -> None:
    text = (PROJECT / "docs/dataflow.md").read_text()
    (command,) = re.findall(r"\$ (\./run_dataflow\.sh coco --project \$PROJECT.*?)```", text, re.S)
    variables = {"PROJECT": "my-project", "REGION": "us-central1", "BUCKET": "b-1"}
    run = launcher.programs.run("bash", "-c", command, cwd=launcher.home, **variables)
    assert (run.returncode, run.stderr) == (0, "")
    flags, others = parse_flags(coco.run.parser(), launcher.job()[2:])
    assert flags.images == ["train=gs://b-1/source/train", "val=gs://b-1/source/val"]
    assert (flags.output, flags.max_rejected) == ("gs://b-1/tfrec", "3")
    assert "--service_account_email=tfrec-worker@my-project.iam.gserviceaccount.com" in others


PIPELINES = "coco folder table sidecar voc yolo openimages webdataset pairs arrays records"
ALL = shlex.join(REQUIRED)
PROJECT_ONLY, NO_STAGING = shlex.join(REQUIRED[:2]), shlex.join(REQUIRED[:4])
NO_OUTPUT = "--output is missing after --; give gs://BUCKET/PATH"
WRONG = {
    "": f"no pipeline is called ''; give one first: {PIPELINES}",
    "coco x": "unexpected argument x; the pipeline's own flags go after --",
    "coco --regio r": "unknown option --regio; see --help; the pipeline's own flags go after --",
    "coco --wait=true": "--wait takes no value; write it without one",
    "coco --check-only=x": "--check_only takes no value; write it without one",
    "coco --dry_run": "--dry_run is Beam's name; give --check_only instead",
    "coco --dry-run=True": "--dry_run is Beam's name; give --check_only instead",
    "coco --project": "--project has no value; give one",
    "coco --project --region r": "--project has no value; give one",
    "coco": "--project is missing; give it, see --help",
    f"coco {PROJECT_ONLY}": "--region is missing; give it, see --help",
    f"coco {NO_STAGING}": "--staging is missing; give it, see --help",
    f"coco {ALL} --build_container a --sdk_container_image b": (
        "--sdk_container_image and --build_container are both given; leave one out"
    ),
    f"coco {ALL} --no_public_ips": (
        "--no_public_ips without an image: workers cannot reach PyPI;"
        " add --build_container or --sdk_container_image"
    ),
    f"coco {ALL}": NO_OUTPUT,
    f"coco {ALL} -- {shlex.join(SOURCES)}": NO_OUTPUT,
}
WRONG_VALUES = {
    "--project 123456": "is not a project id; give the id, not the name or number",
    "--region us-central1-a": "is not a region; give one such as europe-west4",
    "--staging gs://b": "is not a bucket; give gs://BUCKET/PATH; BUCKET has 3 characters or more",
    "--max_workers 0": "is not a whole number above 0; give one",
    "--disk_size_gb 5GB": "is not a whole number above 0; give one",
    "--labels Team=a": "is not a label; give key=value in lower case, digits, _ and -",
    "--job_name My_job": "is not a job name; give lower case, digits and -, a letter first",
    "--subnetwork regions/us-east1/subnetworks/s": (
        "is not in us-central1; give one that is, or another --region"
    ),
}
for given, line in WRONG_VALUES.items():
    WRONG[f"coco {ALL} {given} -- {shlex.join(FLAGS)}"] = " ".join([*shlex.split(given), line])


@pytest.mark.parametrize(("words", "line"), WRONG.items(), ids=WRONG)
def test_wrong_options_are_refused(launcher: Launcher, words: str, line: str) -> None:
    refused(launcher(*shlex.split(words)), 2, f"E-ARG run_dataflow: {line}")
    assert launcher.programs.calls() == []


INSTEAD = {  # one of each of the script's branches
    **{flag: flag for flag in ("project", "labels", "sdk_container_image", "machine_type")},
    **{
        "worker_zone": "region",
        "temp_location": "staging",
        "label": "labels",
        "dry_run": "check_only",
    },
    **{"experiment": "experiments", "max_num_workers": "max_workers"},
    **{"service_account_email": "service_account", "use_public_ips": "no_public_ips"},
    "worker_harness_container_image": "sdk_container_image",
}
OURS = {
    **{
        flag: f"--{flag} is given after --; give --{own} before --" for flag, own in INSTEAD.items()
    },
    **{
        flag: f"this script sets --{flag} itself; leave it out"
        for flag in ("runner", "setup_file", "no_wait")
    },
}


@pytest.mark.parametrize(("flag", "line"), OURS.items())
def test_flags_of_the_script_are_refused_after_the_dashes(
    launcher: Launcher, flag: str, line: str
) -> None:
    for given in ((f"--{flag}", "x"), (f"--{flag}=x",)):
        refused(launcher.submit(flags=(*FLAGS, *given)), 2, f"E-ARG run_dataflow: {line}")


def test_help_names_every_option_and_pipeline(launcher: Launcher) -> None:
    for words in (("--help",), ("coco", "--help"), ("-h",)):
        run = launcher(*words)
        assert (run.returncode, run.stderr) == (0, "")
        assert run.stdout.startswith("usage: ./run_dataflow.sh PIPELINE --project P")
    assert f'PIPELINES="{" ".join(cli.PIPELINES)}"' in SCRIPT.read_text()
    options = re.findall(r"^  --([a-z_]+)", run.stdout, re.MULTILINE)
    assert len(options) == 18
    assert all(name in run.stdout for name in cli.PIPELINES)
    for explained in ("Beam calls it --dry_run", "A bucket alone means the whole bucket"):
        assert explained in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 99
    for name in options:
        assert "unknown option" not in launcher("coco", f"--{name}=1").stderr


def test_python_is_the_one_given_else_the_projects_else_the_systems(launcher: Launcher) -> None:
    programs = launcher.programs
    programs.add("python3")
    programs.add("mine", at=launcher.home.parent / "bin2/mine")
    launcher.submit(PYTHON="bin2/mine")  # relative to the user's folder
    launcher.submit()
    shutil.rmtree(launcher.home / ".venv")
    launcher.submit()
    called = [call[0] for call in programs.calls("-m beam_tfrec.pipelines.coco")]
    assert called == ["mine", "python", "python3"]


NO_MODULE = "ModuleNotFoundError: No module named 'apitools'"


@pytest.mark.parametrize(
    ("asked", "said", "line"),
    [
        ("version_info < (3, 11)", "", "is older than Python 3.11; set PYTHON to a newer one"),
        (
            "version_info[:2] != (3, 11)",
            "",
            "is not Python 3.11, which the image has; set PYTHON to one that is",
        ),
        (
            "import apache_beam.runners.dataflow",
            f"Traceback\n{NO_MODULE}\n",
            f"lacks a package ({NO_MODULE});"
            " run QUOTED -m pip install --require-hashes --no-deps -r LOCK",
        ),
    ],
)
def test_unsuitable_python_is_refused(launcher: Launcher, asked: str, said: str, line: str) -> None:
    launcher.programs.answer(asked, err=said, code=1)
    line = line.replace("QUOTED", quoted(launcher.python))
    line = line.replace("LOCK", quoted(launcher.home / "requirements-worker.lock"))
    run = launcher.submit("--build_container", IMAGE)
    refused(run, 2, f"E-ARG run_dataflow: {launcher.python} {line}")
