"""The package that workers get: built in a folder that goes again, and looked into."""

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from transforms.doctor.diagnosis import Diagnosis, fine, wrong
from transforms.quantities import counted

PACKAGES = ("schemas", "transforms", "pipelines", "readers")
_ROOT = Path(__file__).resolve().parents[2]
_BUILD_S = 90.0
_MAX_COPIED_BYTES = 2**20
_NOT_LINKED = (".git", "build", "dist")
_SHOWN = 3
_TRIES = 3
_RUNNING: list["subprocess.Popen[str]"] = []
_FOLDERS: list[str] = []


def check_worker_package(setup_file: str) -> Iterator[Diagnosis]:
    """Yield whether the source package of a setup.py can be built, and holds our modules.

    Args:
        setup_file: as Beam's flag has it.
    """
    path = Path(setup_file)
    if not path.is_file() or path.name not in ("setup.py", "pyproject.toml"):
        remedy = "run from the project's folder, with --setup_file ./setup.py"
        yield wrong("E-ARG", setup_file, "is no setup.py that is there", remedy)
        return
    if not os.path.dirname(setup_file):
        remedy = f"write ./{setup_file}"
        yield wrong(
            "E-ARG", setup_file, "has no folder before it, without which Beam fails", remedy
        )
        return
    with _own_folder() as folder:
        said = build_package(path.resolve().parent, folder)
        archives = list(Path(folder, "made").glob("*.tar.gz"))
        if not archives:
            remedy = f"mend {setup_file}"
            yield wrong("E-ARG", setup_file, f"no package can be built of it ({said})", remedy)
            return
        yield judge_contents(setup_file, modules_in(archives[0]), modules_here())


def build_package(source: Path, folder: Path) -> str:
    """Build the source package into `folder/made` and return the last line of what was said.

    setuptools writes beside what it builds, so it is given a folder of links to the source.
    """
    tree = folder / "tree"
    tree.mkdir()
    for entry in source.iterdir():
        if entry.is_dir():
            if entry.name not in _NOT_LINKED and not entry.name.endswith(".egg-info"):
                (tree / entry.name).symlink_to(entry)
        elif entry.is_file() and entry.stat().st_size <= _MAX_COPIED_BYTES:
            shutil.copyfile(entry, tree / entry.name)
    made = str(folder / "made")
    legacy = ["setup.py", "-q", "sdist", "--formats=gztar", "--dist-dir", made]
    build = ["-m", "build", "--no-isolation", "--sdist", "--outdir", made, "."]
    running = subprocess.Popen(
        [sys.executable, "-B", *(legacy if (tree / "setup.py").exists() else build)],
        cwd=tree,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    _RUNNING.append(running)
    with running:
        try:
            said = running.communicate(timeout=_BUILD_S)[1]
        except subprocess.TimeoutExpired:
            running.kill()
            return f"not done within {_BUILD_S:.0f} s"
    return (said.strip().splitlines() or [f"exit code {running.returncode}"])[-1]


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """Give a folder for a build, which goes again, by `stop_builds` too."""
    with tempfile.TemporaryDirectory(prefix="doctor-", ignore_cleanup_errors=True) as folder:
        _FOLDERS.append(folder)
        yield Path(folder)


def stop_builds() -> None:
    """End what is being built and remove its folder, for a process that ends at once."""
    for running in _RUNNING:
        running.kill()
    for folder in _FOLDERS:
        for _ in range(_TRIES):  # its thread may yet put files there
            shutil.rmtree(folder, ignore_errors=True)


def judge_contents(where: str, packed: Iterable[str], needed: Iterable[str]) -> Diagnosis:
    """Return whether a package holds what workers import.

    >>> judge_contents("setup.py", ["schemas/a.py"], ["schemas/a.py", "transforms/b.py"]).line
    'wrong    E-ARG setup.py: the package lacks 1 module, such as transforms/b.py; \
name all packages in find_packages(include=...)'
    """
    held = {*packed}
    missing = sorted({*needed} - held)
    if missing:
        shown = ", ".join(missing[:_SHOWN])
        what = f"the package lacks {counted(len(missing), 'module')}, such as {shown}"
        return wrong("E-ARG", where, what, "name all packages in find_packages(include=...)")
    return fine(where, f"builds the package for workers, of {counted(len(held), 'module')}")


def modules_in(archive: Path) -> list[str]:
    """Return the Python files of a source package, relative to its one folder."""
    with tarfile.open(archive) as packed:
        names = [name.partition("/")[2] for name in packed.getnames()]
    return [name for name in names if name.endswith(".py") and name.partition("/")[0] in PACKAGES]


def modules_here() -> list[str]:
    """Return the Python files that this process has its code from."""
    return [
        path.relative_to(_ROOT).as_posix()
        for package in PACKAGES
        for path in (_ROOT / package).rglob("*.py")
    ]
