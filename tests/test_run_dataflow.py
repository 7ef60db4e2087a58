"""`run_dataflow.sh`: what it asks for, what it refuses, and the exact command that it makes."""

import http.server
import json
import os
import re
import shlex
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_tfrec.pipelines import cli, coco
from beam_tfrec.pipelines.engines import parse_flags
from tests.coco_command import PROJECT
from tests.fake_programs import FakePrograms

SCRIPT = PROJECT / "run_dataflow.sh"
REQUIRED = ("--project", "my-project", "--region", "us-central1", "--staging", "gs://stage/jobs/")
SOURCES = ("--images", "gs://in/photos", "--annotations", "gs://in/a.json")
FLAGS = (*SOURCES, "--output", "gs://out/set")
IMAGE = "us-central1-docker.pkg.dev/my-project/images/beam-tfrec:1"


class Launcher:
    """A copy of the script in a folder whose name must be quoted, and what it calls."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = tmp_path / "it's my project"
        self.home.mkdir()
        shutil.copy(SCRIPT, self.home)
        self.python = self.home / ".venv/bin/python"
        self.programs = FakePrograms(tmp_path / "bin")
        self.programs.add("gcloud", "docker")
        self.programs.add("python", at=self.python)
        self.programs.answer("gcloud version", out="528.0.0\n")
        self.bucket_lies_in("US-CENTRAL1\tregion\t")

    def bucket_lies_in(self, answer: str, bucket: str = "") -> None:
        """Have gcloud answer so for a bucket, or for all."""
        self.programs.answer("buckets describe", f"gs://{bucket}", out=f"{answer}\n")

    def __call__(self, *words: str, **environment: str) -> CompletedProcess[str]:
        """Run the script."""
        script = self.home / "run_dataflow.sh"
        return self.programs.run(script, *words, cwd=self.home.parent, **environment)

    def submit(
        self, *options: str, flags: tuple[str, ...] = FLAGS, **environment: str
    ) -> CompletedProcess[str]:
        """Run it with what it needs, and more."""
        return self("coco", *REQUIRED, *options, "--", *flags, **environment)

    def job(self) -> list[str]:
        """Return the pipeline's arguments, as it was started."""
        (call,) = self.programs.calls("-m beam_tfrec.pipelines.coco")
        return call[1:]


def refused(run: CompletedProcess[str], code: int, line: str) -> None:
    """Check that the script ended with an exit code and one line."""
    assert (run.returncode, run.stderr) == (code, f"{line}\n")


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path)


def quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


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


def test_check_only_prints_the_command_and_checks_the_graph_without_gcloud(
    launcher: Launcher,
) -> None:
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


def test_every_option_arrives_where_beam_reads_it(launcher: Launcher) -> None:
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
    flags, others = parse_flags(coco.COMMAND.parser(), launcher.job()[2:])
    assert flags.images == ["train=gs://b-1/source/train", "val=gs://b-1/source/val"]
    assert (flags.output, flags.max_rejected) == ("gs://b-1/tfrec", "3")
    assert "--service_account_email=tfrec-worker@my-project.iam.gserviceaccount.com" in others


PIPELINES = "coco folder table sidecar pairs arrays"
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
def test_wrong_words_are_refused(launcher: Launcher, words: str, line: str) -> None:
    refused(launcher(*shlex.split(words)), 2, f"E-ARG run_dataflow: {line}")
    assert launcher.programs.calls() == []


PATHS = (
    *("images", "annotations", "exclude", "since", "panoptic_images", "label_file", "table"),
    *("image_root", "low", "high", "arrays"),
)


@pytest.mark.parametrize(
    "given", [("--images", "train=gs://b/i", "val=x"), *((f"--{path}=x", "y") for path in PATHS)]
)
def test_local_paths_are_refused(launcher: Launcher, given: tuple[str, ...]) -> None:
    flag, line = given[0].partition("=")[0], "is a local path, which workers cannot see"
    run = launcher.submit(flags=(*FLAGS, *given))
    remedy = "copy it to a bucket, and give gs://BUCKET/PATH"
    refused(run, 2, f"E-ARG run_dataflow: {flag} x {line}; {remedy}")
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
def test_a_flag_that_the_script_has_or_sets_is_refused_after_the_dashes(
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
    launcher.submit(PYTHON="bin2/mine")  # from where the user is, not the script
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


GONE = "WARNING: x\nERROR: (gcloud.storage.buckets.describe) gs://in not found: 404.\n"
NOT_ALLOWED = "ERROR: no permission (or it may not exist)"


@pytest.mark.parametrize(
    ("asked", "said", "code", "line"),
    [
        (
            "print-access-token",
            "none\n",
            6,
            "E-IO-AUTH run_dataflow: there are no Application Default Credentials;"
            " run gcloud auth application-default login",
        ),
        (
            "buckets describe gs://in ",
            GONE,
            2,
            "E-ARG run_dataflow: gs://in does not exist; create it, or correct its name",
        ),
        (
            "buckets describe gs://out ",
            f"{NOT_ALLOWED}\n",
            6,
            f"E-IO-AUTH run_dataflow: gs://out cannot be looked up ({NOT_ALLOWED});"
            " run gcloud auth login, or ask for storage.buckets.get on it",
        ),
        (
            "subnets describe",
            "ERROR: not found\n",
            6,
            "E-IO-AUTH run_dataflow: regions/us-central1/subnetworks/s cannot be looked up"
            " (ERROR: not found); correct its name, or ask for compute.subnetworks.get",
        ),
    ],
)
def test_what_google_refuses_is_one_line(
    launcher: Launcher, asked: str, said: str, code: int, line: str
) -> None:
    launcher.programs.answer(asked, err=said, code=1)
    private = ("--no_public_ips", "--subnetwork", "s", "--build_container", IMAGE)
    refused(launcher.submit(*private), code, line)
    assert launcher.programs.calls("docker build") == []  # nothing is built in vain


@pytest.mark.parametrize(
    ("region", "place", "named"),
    [
        ("us-central1", "US-CENTRAL1\tregion\t", ""),
        ("us-central1", "NAM4\tdual-region\t", ""),
        ("europe-north1", "EUR4\tdual-region\t", ""),
        ("asia-northeast2", "ASIA1\tdual-region\t", ""),
        ("us-west1", "US\tdual-region\tUS-EAST1;US-WEST1", ""),
        # Accepted with a note on price.
        ("us-east5", "US\tmulti-region\t", "the multi-region US"),
        ("europe-west4", "EU\tmulti-region\t", "the multi-region EU"),
        ("asia-east1", "ASIA\tmulti-region\t", "the multi-region ASIA"),
        # Refused.
        ("us-central1", "US-EAST1\tregion\t", "US-EAST1"),
        ("us-central1", "US\tdual-region\tUS-EAST1;US-WEST1", "US (US-EAST1;US-WEST1)"),
        ("europe-west6", "EU\tmulti-region\t", "EU"),
        ("northamerica-northeast1", "US\tmulti-region\t", "US"),
    ],
)
def test_jobs_run_where_a_bucket_lies(
    launcher: Launcher, region: str, place: str, named: str
) -> None:
    launcher.bucket_lies_in(f"{region.upper()}\tregion\t")
    launcher.bucket_lies_in(place, "in ")
    run = launcher.submit("--region", region)
    if named and not named.startswith("the"):
        line = (
            f"E-ARG run_dataflow: gs://in is in {named}, the job in {region}: traffic between"
            " them costs money; choose a region of the bucket, or add --allow_cross_region"
        )
        refused(run, 2, line)
        run = launcher.submit("--region", region, "--allow_cross_region")
        assert (run.returncode, run.stderr) == (0, "")
    else:
        charged = f"Google charges for reads from it even by workers in {region}"
        note = f"note: gs://in is in {named}: {charged}\n" if named else ""
        assert (run.returncode, run.stderr) == (0, note)


def test_private_workers_need_private_google_access(launcher: Launcher) -> None:
    launcher.programs.answer("subnets describe", out="False\n")
    run = launcher.submit("--no_public_ips", "--sdk_container_image", IMAGE, "--subnetwork", "sub")
    line = (
        "regions/us-central1/subnetworks/sub has no Private Google Access: workers without public"
        " IPs could not reach storage; run gcloud compute networks subnets update sub"
        " --project=my-project --region=us-central1 --enable-private-ip-google-access"
    )
    refused(run, 2, f"E-ARG run_dataflow: {line}")


@pytest.mark.parametrize("docker", ["there", "missing", "not running"])
def test_image_is_built_by_docker_or_google_and_used(launcher: Launcher, docker: str) -> None:
    if docker == "missing":
        launcher.programs.remove("docker")
    launcher.programs.answer("docker info", code=int(docker == "not running"))
    assert launcher.submit("--build_container", IMAGE).returncode == 0
    home, google = str(launcher.home), ["gcloud", "builds", "submit", "--project=my-project"]
    by_docker = ["docker", "build", "--platform=linux/amd64", f"--tag={IMAGE}", home]
    pushed = [by_docker, ["docker", "push", IMAGE]]
    built = pushed if docker == "there" else [[*google, f"--tag={IMAGE}", home]]
    assert launcher.programs.calls(IMAGE)[:-1] == built
    assert f"--sdk_container_image={IMAGE}" in launcher.job()


@pytest.mark.parametrize(
    ("fails", "code", "line"),
    [
        ("build", 2, f"E-ARG run_dataflow: docker could not build {IMAGE}; see"),
        ("push", 6, f"E-IO-AUTH run_dataflow: docker could not push {IMAGE}; run gcloud"),
    ],
)
def test_image_that_fails_ends_it(launcher: Launcher, fails: str, code: int, line: str) -> None:
    launcher.programs.answer(f"docker {fails}", err="denied\n", code=1)
    run = launcher.submit("--build_container", IMAGE)
    assert run.returncode == code and run.stderr.startswith(f"denied\n{line}")
    assert launcher.programs.calls("-m pipelines") == []


# --- with a real gcloud, which asks a server of ours: the script reads its words

GCLOUD = shutil.which("gcloud")
PLACE = {"customPlacementConfig": {"dataLocations": ["US-EAST1", "US-CENTRAL1"]}}
FOUND: dict[str, dict[str, object]] = {
    "stage": {"location": "US-CENTRAL1", "locationType": "region"},
    "out": {"location": "US", "locationType": "dual-region", **PLACE},
    "in": {"location": "US", "locationType": "multi-region"},
    "east": {"location": "US-EAST1", "locationType": "region"},
    "s": {"kind": "compute#subnetwork", "id": "1", "privateIpGoogleAccess": False},
}
LOGGED_IN = f"""#!/usr/bin/env bash
[[ $* != *print-access-token* ]] || {{ echo token; exit 0; }}
exec {GCLOUD} "$@"
"""


class Google(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.partition("?")[0].rstrip("/").rpartition("/")[2]
        found = {"kind": "storage#bucket", "id": name, "name": name, **FOUND.get(name, {})}
        missing = {"error": {"code": 404, "message": "not here"}}
        body = json.dumps(found if name in FOUND else missing).encode()
        self.send_response(200 if name in FOUND else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Google) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        yield {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{address}/storage/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{address}/compute/v1/",
        }
        server.shutdown()


PRIVATE = ("--no_public_ips", "--sdk_container_image", IMAGE, "--subnetwork", "s")


@pytest.mark.slow
@pytest.mark.skipif(GCLOUD is None, reason="gcloud is not installed")
@pytest.mark.parametrize(
    ("options", "bucket", "code", "said"),
    [
        ((), "in", 0, "note: gs://in is in the multi-region US: Google charges for reads from it"),
        ((), "nowhere", 2, "gs://nowhere does not exist; create it, or correct its name\n"),
        ((), "east", 2, "gs://east is in US-EAST1, the job in us-central1: traffic between"),
        (PRIVATE, "out", 2, "regions/us-central1/subnetworks/s has no Private Google Access"),
    ],
)
def test_what_gcloud_says_is_understood(
    environment: dict[str, str],
    launcher: Launcher,
    options: tuple[str, ...],
    bucket: str,
    code: int,
    said: str,
) -> None:
    gcloud = launcher.programs.folder / "gcloud"
    gcloud.write_text(LOGGED_IN)
    gcloud.chmod(0o755)
    flags = ("--images=gs://out/i", "--annotations=gs://out/a", f"--output=gs://{bucket}/x")
    run = launcher.submit(*options, flags=flags, **environment)
    assert (run.returncode, said in run.stderr) == (code, True), run.stderr
