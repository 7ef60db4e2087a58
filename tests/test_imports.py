import ast
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"schemas", "transforms", "pipelines", "readers", "tests", "benchmarks", "examples"}
MAY_IMPORT = {
    "schemas": {"schemas"},
    "transforms": {"schemas", "transforms"},
    "readers": {"schemas", "transforms", "readers"},
    "pipelines": {"schemas", "transforms", "pipelines"},
}


def imported_packages(source: str) -> set[str]:
    """Return the packages of ours that a source imports, anywhere in it."""
    modules: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append(node.module if node.level == 0 and node.module else "relative")
    return {module.split(".")[0] for module in modules} & (PACKAGES | {"relative"})


def sources(package: str) -> Iterator[Path]:
    return (ROOT / package).rglob("*.py")


@pytest.mark.parametrize(
    ("source", "packages"),
    [
        ("import transforms.gate", {"transforms"}),
        ("import os, schemas.faults as f", {"schemas"}),
        ("from pipelines import coco", {"pipelines"}),
        ("from . import coco", {"relative"}),
        ("def late():\n    from tests.conftest import jpeg_bytes", {"tests"}),
        ("import schemas_of_others", set()),
    ],
)
def test_imports_are_found(source: str, packages: set[str]) -> None:
    assert imported_packages(source) == packages


@pytest.mark.parametrize("package", [name for name in MAY_IMPORT if (ROOT / name).is_dir()])
def test_imports_point_one_way(package: str) -> None:
    against = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(package)
        for name in imported_packages(path.read_text()) - MAY_IMPORT[package]
    }
    assert against == set()


def modules(package: str) -> list[str]:
    names = [path.relative_to(ROOT).with_suffix("").parts for path in sources(package)]
    return sorted(".".join(parts).removesuffix(".__init__") for parts in names)


LATE = {
    # where masks are made, by numpy
    *("schemas.gray_png", "schemas.geometry.masks", "schemas.geometry.panoptic"),
    *("readers.tf_data", "readers.parsed_features"),  # where TensorFlow reads
}

NOT_IN_SCHEMAS = {"tensorflow", "apache_beam", "numpy", "PIL", "pyarrow"}


# Workers import these: TensorFlow costs seconds and 0.4 GB a process, Pillow decodes natively.
@pytest.mark.parametrize(
    ("package", "some", "barred"),
    [
        ("schemas", "schemas.annotations.coco", NOT_IN_SCHEMAS),
        ("transforms", "transforms.write_shards", {"tensorflow"}),
        ("readers", "readers.hosts", {"tensorflow", "apache_beam", "PIL", "pyarrow"}),
    ],
)
def test_importing_a_package_leaves_out(package: str, some: str, barred: set[str]) -> None:
    names = [name for name in modules(package) if name not in LATE]
    assert some in names
    program = f"import sys, {', '.join(names)}\nprint(*sorted(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in run.stdout.split()}
    assert package in loaded
    assert loaded & barred == set()


def test_what_runs_beside_a_run_starts_without_beam() -> None:
    """A second and a hundred megabytes that each such process would cost."""
    program = "import sys, transforms.processes.build_beside\nprint(*sorted(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in run.stdout.split()}
    assert "transforms" in loaded
    assert loaded & {"apache_beam", "tensorflow", "pipelines"} == set()


def test_every_package_is_shipped() -> None:
    """A wheel without one of them works from a clone, and fails where it is installed."""
    (included,) = re.findall(r"include=\[(.*?)\]", (ROOT / "setup.py").read_text(), re.DOTALL)
    patterns = re.findall(r'"(.+?)"', included)
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for name in MAY_IMPORT
        for path in (ROOT / name).rglob("__init__.py")
    }
    assert {"schemas.layouts", "transforms.storage", "pipelines"} <= packages
    missing = [p for p in packages if not any(fnmatch.fnmatchcase(p, of) for of in patterns)]
    assert not missing
