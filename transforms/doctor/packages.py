"""Python and the packages: versions against what we and they ask for, and whether they import."""

import ast
import functools
import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from transforms.doctor.diagnosis import Diagnosis, fine, warning, wrong
from transforms.images.check_images import SAFE_PILLOW_MAJOR
from transforms.quantities import counted

OLDEST_PYTHON = (3, 11)
_DISTRIBUTION = "beam-tfrec"
_SETUP = Path(__file__).resolve().parents[2] / "setup.py"
_IMPORT_S = 60.0
_MODULES = (
    *("apache_beam", "google.cloud.storage", "google_crc32c", "jinja2", "msgspec", "obstore"),
    *("PIL.Image", "pyarrow.parquet", "pycocotools.mask", "tqdm"),
)
_TRY_IMPORTS = """
import importlib, json, sys
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}"
print("\\n" + json.dumps(failed))
"""
_INSTALL = "install what is asked for: python -m pip install --upgrade"
_OVERRIDDEN = ("pillow", "apache-beam")
"""A package that our lock takes newer than its asker wants it; see the README on security."""

VersionOf = Callable[[str], str | None]
"""The version of a distribution that is installed, None where it is not."""


def check_packages(*, decodes: bool | None) -> Iterator[Diagnosis]:
    """Yield what is found of Python and of the packages.

    Args:
        decodes: whether the run hands images to a native decoder; None where no run is asked about.
    """
    yield judge_python(sys.version_info[:3])
    yield from judge_versions(our_requirements(), version_of)
    yield from judge_conflicts(requirements_below(our_requirements()), version_of)
    yield from judge_pillow(version_of("pillow"), decodes)
    yield judge_tensorflow(version_of("tensorflow") or version_of("tensorflow-cpu"))


def judge_python(version: tuple[int, ...]) -> Diagnosis:
    """Return whether a Python is new enough.

    >>> judge_python((3, 10, 2)).line
    'wrong    E-ARG Python: 3.10.2, 3.11 is the oldest that will do; run a newer one'
    """
    told = ".".join(map(str, version))
    if version < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        what = f"{told}, {oldest} is the oldest that will do"
        return wrong("E-ARG", "Python", what, "run a newer one")
    return fine("Python", told)


def judge_versions(asked: Sequence[str], installed: VersionOf) -> Iterator[Diagnosis]:
    """Yield a line for each requirement that is not met, or one for all.

    >>> [d.line for d in judge_versions(["obstore>=0.8"], {"obstore": "0.7.2"}.get)]
    ["wrong    E-ARG obstore: 0.7.2 is installed, >=0.8 is asked for; \
install what is asked for: python -m pip install --upgrade 'obstore>=0.8'"]
    """
    unmet = [text for text in asked if not _is_met(Requirement(text), installed)]
    for text in unmet:
        wanted = Requirement(text)
        version = installed(wanted.name)
        what = f"{version} is installed" if version else "not installed"
        what += f", {wanted.specifier} is asked for"
        yield wrong("E-ARG", wanted.name, what, f"{_INSTALL} '{text}'")
    if not unmet:
        yield fine("packages", f"{counted(len(asked), 'requirement')} met")


def judge_conflicts(
    asked: Mapping[str, Sequence[str]], installed: VersionOf
) -> Iterator[Diagnosis]:
    """Yield a warning for each requirement of a package of others that is not met.

    Args:
        asked: requirements by who asks.
        installed: what is there.
    """
    for asking, texts in sorted(asked.items()):
        for text in texts:
            wanted = Requirement(text)
            if _is_met(wanted, installed) or (wanted.name.lower(), asking) == _OVERRIDDEN:
                continue
            what = f"asks for {wanted.name}{wanted.specifier}, {installed(wanted.name)} is there"
            yield warning(asking, what, f"install the versions of requirements.lock, or '{text}'")


def judge_pillow(version: str | None, decodes: bool | None) -> Iterator[Diagnosis]:
    """Yield a warning where images of strangers may meet an old decoder.

    >>> [d.line[:60] for d in judge_pillow("12.1.0", True)]
    ['warning  pillow: 12.1.0 has a critical JPEG overflow (CVE-20']
    """
    if version is None or Version(version).major >= SAFE_PILLOW_MAJOR or decodes is False:
        return
    what = f"{version} has a critical JPEG overflow (CVE-2026-112403)"
    what += ", and these flags have it decode images" if decodes else ""
    remedy = f"do not let it decode images of strangers, or install Pillow {SAFE_PILLOW_MAJOR}"
    yield warning("pillow", what, f"{remedy} as requirements.lock does (README, security)")


def judge_tensorflow(version: str | None) -> Diagnosis:
    """Return that TensorFlow is not needed, whether it is there or not."""
    told = f"{version} is installed" if version else "not installed"
    return fine("TensorFlow", f"{told}; nothing here needs it, only readers of records do")


def check_imports() -> Iterator[Diagnosis]:
    """Yield what does not import, tried in a process of its own."""
    try:
        done = _try_imports()
    except subprocess.TimeoutExpired:
        what = f"not done within {_IMPORT_S:.0f} s"
        yield warning("imports", what, "look at the disk that the packages are on")
        return
    if done.returncode:
        what = f"the process that tried ended with {done.returncode}"
        yield wrong("E-ARG", "imports", what, "install the packages of requirements.lock anew")
        return
    failed: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    for name, said in failed.items():
        remedy = "install the packages of requirements.lock anew"
        yield wrong("E-ARG", f"import {name}", " ".join(said.split())[:200], remedy)
    if not failed:
        yield fine("imports", f"Apache Beam and {len(_MODULES) - 1} others import")


@functools.cache  # what is installed stays so while a process runs
def _try_imports() -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", _TRY_IMPORTS, *_MODULES],
        capture_output=True,
        text=True,
        timeout=_IMPORT_S,
        cwd=_SETUP.parent,
    )


def version_of(name: str) -> str | None:
    """Return the version of a distribution that is installed, None where it is not."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def our_requirements() -> list[str]:
    """Return what setup.py asks for: that beside this code, or that of the installed package."""
    if _SETUP.is_file():
        return requirements_in(_SETUP.read_text(encoding="utf-8"))
    asked = importlib.metadata.requires(_DISTRIBUTION) or []
    return [text for text in asked if not _is_extra(Requirement(text))]


def requirements_in(setup: str) -> list[str]:
    """Return `install_requires` of a setup.py.

    >>> requirements_in("setup(name='a', install_requires=['msgspec>=0.21'])")
    ['msgspec>=0.21']
    """
    for node in ast.walk(ast.parse(setup)):
        if isinstance(node, ast.keyword) and node.arg == "install_requires":
            return list(ast.literal_eval(node.value))
    return []


def requirements_below(asked: Sequence[str]) -> dict[str, list[str]]:
    """Return what the installed packages of these requirements ask for in turn, by who asks."""
    found: dict[str, list[str]] = {}
    names = [Requirement(text).name for text in asked]
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name in found or version_of(name) is None:
            continue
        of_one = [Requirement(text) for text in importlib.metadata.requires(name) or []]
        here = [r for r in of_one if not _is_extra(r)]
        found[name] = [str(r) for r in here if r.marker is None or r.marker.evaluate({"extra": ""})]
        names += [Requirement(text).name for text in found[name]]
    return found


def _is_met(wanted: Requirement, installed: VersionOf) -> bool:
    version = installed(wanted.name)
    return version is not None and wanted.specifier.contains(version, prereleases=True)


def _is_extra(wanted: Requirement) -> bool:
    return wanted.marker is not None and "extra" in str(wanted.marker)
