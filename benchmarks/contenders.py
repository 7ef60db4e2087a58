"""The contenders: programs that do the job, their environments, and the output they must write."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from records import count_offsets, count_tar_samples, count_tfrecords, shard_sizes

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
OUR_PYTHON = PROJECT / ".venv/bin/python"
OUR_PACKAGES = ("beam_tfrec", "schemas", "transforms", "pipelines", "readers")
SHARDS = 16
SLOW_IMAGES = 5000
"""The most photos for contenders that need minutes, or all memory, for ten times as many."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment of peers that resolve together, made on first use."""

    folder: Path
    lock: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin/python"


ENVIRONMENTS = {
    "tensorflow": Environment(HERE / ".venv", HERE / "requirements.lock"),
    "torch": Environment(HERE / ".venv-torch", HERE / "requirements-torch.lock"),
    "arrow": Environment(HERE / ".venv-arrow", HERE / "requirements-arrow.lock"),
}
PEERS_PYTHON = ENVIRONMENTS["tensorflow"].python


@dataclass(frozen=True)
class Data:
    """One drawn data set.

    Attributes:
        folder: folder of the photos and annotations.
        images: number of its photos.
        outputs: folder for the runs' outputs; next to `folder` if it is None.
    """

    folder: Path
    images: int
    outputs: Path | None = None

    def photo_bytes(self) -> int:
        """Return the sum of the photos' sizes."""
        return sum(path.stat().st_size for path in (self.folder / "images").iterdir())


@dataclass(frozen=True)
class Contender:
    """A program that does the job.

    Attributes:
        command: its command line; {images}, {annotations} and {out} are filled in.
        records: counts the records of a finished run; None if it writes none.
        exact: whether shards may differ by one record at most and a manifest must be there.
        environment: key of ENVIRONMENTS; empty for the project's own.
        most_images: number of photos above which it takes no part.
    """

    command: tuple[str, ...]
    records: Callable[[Path], int] | None = count_tfrecords
    exact: bool = False
    environment: str = ""
    most_images: int | None = None

    def command_for(self, data: Data, out: Path) -> list[str]:
        """Return the command line for one run."""
        values = {
            "images": data.folder / "images",
            "annotations": data.folder / "instances.json",
            "out": out,
        }
        return [word.format(**values) for word in self.command]

    def fault(self, data: Data, out: Path) -> str | None:
        """Return what is wrong with a finished run's output, counted independently, or None."""
        try:
            written = data.images if self.records is None else self.records(out)
            sizes = shard_sizes(out) if self.exact else []
        except (OSError, ValueError) as error:
            return str(error)
        if written != data.images:
            return f"wrote {written:,} of {data.images:,} records"
        if not self.exact:
            return None
        if len(sizes) != SHARDS or max(sizes) - min(sizes) > 1:
            return f"wanted {SHARDS} even shards, got {sizes}"
        return None if (out / "manifest.json").exists() else "no manifest.json"


def count_rows(out: Path) -> int:
    """Return the rows of Arrow, Parquet or ArrayRecord files, by their formats' own libraries."""
    python, script = ENVIRONMENTS["arrow"].python, HERE / "peers/count_rows.py"
    found = subprocess.run([python, script, out], capture_output=True, text=True, check=False)
    if found.returncode:
        raise ValueError(f"{script.name}: {found.stderr.strip()[-200:]}")
    return int(found.stdout)


def _peer(script: str, *flags: str, environment: str = "tensorflow", **options) -> Contender:
    paths = ("{images}", "{annotations}", "{out}")
    python = str(ENVIRONMENTS[environment].python)
    command = (python, str(HERE / "peers" / script), *paths, *flags)
    return Contender(command, environment=environment, **options)


OURS = (
    *(str(OUR_PYTHON), "-m", "beam_tfrec.pipelines.coco"),
    *("--images", "train={images}"),
    *("--annotations", "train={annotations}"),
    *("--output", "{out}"),
    *("--num_shards", str(SHARDS)),
)
TWO = ("--processes", "2")
TORCH = {"environment": "torch", "records": count_offsets}
ARROW = {"environment": "arrow", "records": count_rows}

CONTENDERS = {
    "cat": _peer("cat_files.py", records=None),
    "floor": _peer("floor.py"),
    "floor_2": _peer("floor.py", *TWO),
    "ours": Contender((*OURS, "--no_report"), exact=True),
    "ours_report": Contender(OURS, exact=True),
    "webdataset": _peer("webdataset_writer.py", records=count_tar_samples),
    "webdataset_2": _peer("webdataset_writer.py", *TWO, records=count_tar_samples),
    "keras_loop": _peer("keras_loop.py"),
    "array_record": _peer("array_record_writer.py", **ARROW),
    "hugging_face": _peer("hugging_face.py", **ARROW),
    "hugging_face_2": _peer("hugging_face.py", *TWO, **ARROW),
    "tfds": _peer("tfds_writer.py"),
    "mosaicml": _peer("mosaicml_writer.py", **TORCH),
    "mosaicml_2": _peer("mosaicml_writer.py", *TWO, **TORCH),
    "litdata": _peer("litdata_optimize.py", **TORCH),
    "litdata_2": _peer("litdata_optimize.py", *TWO, **TORCH),
    "ray_data": _peer("ray_data.py", **ARROW, most_images=SLOW_IMAGES),
    "beam_naive": _peer("beam_naive.py", most_images=SLOW_IMAGES),
}
NOT_PEERS = ("cat", "floor", "floor_2", "ours", "ours_report")


def set_up(names: list[str]) -> None:
    """Make the environments of contenders that are not there, and byte-compile all.

    Some installers leave no bytecode; every contender would then pay seconds of compiling. If an
    environment cannot be made, a line says so, and its contenders fail.
    """
    if not OUR_PYTHON.exists():
        raise SystemExit("there is no .venv: run `make setup` first")
    # The first draws the photos.
    wanted = dict.fromkeys(["tensorflow", *(CONTENDERS[name].environment for name in names)])
    wanted.pop("", None)
    for key in wanted:
        try:
            _make(ENVIRONMENTS[key])
        except subprocess.CalledProcessError as error:
            print(f"{ENVIRONMENTS[key].folder} cannot be made: {error}", file=sys.stderr)
    print("byte-compiling", file=sys.stderr)
    for key in wanted:
        compile_all(ENVIRONMENTS[key].python, ENVIRONMENTS[key].folder / "lib", HERE / "peers")
    compile_all(OUR_PYTHON, PROJECT / ".venv/lib", *(PROJECT / name for name in OUR_PACKAGES))


def _make(environment: Environment) -> None:
    """Install an environment's lock file, unless the same one is installed."""
    folder, lock = environment.folder, environment.lock
    stamp = folder / ".installed"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    if folder.is_symlink():
        raise SystemExit(f"{folder} is a link: setting it up would empty what it leads to")
    print(f"setting up {folder} from {lock.name} (once, some minutes)", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    install = "install --quiet --disable-pip-version-check --require-hashes --no-deps -r"
    command = [str(environment.python), "-m", "pip", *install.split(), str(lock)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    stamp.write_text(digest)


def compile_all(python: Path, *folders: Path) -> None:
    """Write the bytecode of all modules below folders, where it is missing or old."""
    if python.exists():
        subprocess.run([str(python), "-m", "compileall", "-qq", *map(str, folders)], check=False)
