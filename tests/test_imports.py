"""Where modules may import from, what they may touch, and what they load."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import Feature, FeatureSpec, Kind
from beam_tfrec.schemas.tfrecord import frame_record
from tests.coco_command import MakeCoco
from tests.small_data_sets import write_data_set

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "transforms", "readers", "pipelines")
NOT_SHIPPED = ("tests", "benchmarks", "examples")

STORAGE, IMAGES, SHUFFLE, SOURCES, RECORDS, VERIFY, FORECAST, REPORT = (
    f"transforms/{name}"
    for name in (
        *("storage", "images", "shuffle", "sources"),
        *("records", "verify", "forecast", "report"),
    )
)
INDEX = "transforms/shard_index"  # a module: finished data sets are read with it
FLOW = {"schemas", STORAGE, IMAGES, SHUFFLE, SOURCES, INDEX, "transforms"}
MAY_IMPORT = {
    "schemas": set(),
    STORAGE: {"schemas", INDEX},
    INDEX: {"schemas"},
    IMAGES: {"schemas"},
    SHUFFLE: {"schemas", STORAGE},
    SOURCES: {"schemas", STORAGE, IMAGES, SHUFFLE},
    "transforms": FLOW,
    RECORDS: FLOW,
    VERIFY: FLOW,
    FORECAST: FLOW,
    REPORT: FLOW | {VERIFY},
    "pipelines": FLOW | {RECORDS, VERIFY, FORECAST, REPORT},
    "readers": {"schemas", STORAGE, INDEX, REPORT},  # the report draws pictures
}
"""Each folder, with the other folders it may import."""

PUBLIC = {"_replace", "_asdict", "_fields", "_exit"}
"""Documented names with an underscore: those of named tuples, and `os._exit`."""
HOOKS = {"threading.excepthook"}
"""Names of other modules that their documentation asks programs to set."""


def folder_of(module: str) -> str:
    """Return the longest folder of `MAY_IMPORT` that holds a module, or its package."""
    name = module.removeprefix("beam_tfrec.").replace(".", "/")
    inside = [folder for folder in MAY_IMPORT if f"{name}/".startswith(f"{folder}/")]
    return max(inside, key=len, default=name.split("/")[0])


def breaches(folder: str, source: str) -> Iterator[str]:
    """Yield the rules that a source of this folder breaks; ruff checks the others."""
    tree = ast.parse(source)
    foreign: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    foreign.add(alias.asname or alias.name.split(".")[0])
                    yield from bad_import(folder, alias.name)
            case ast.ImportFrom(module=module, names=names):
                for alias in names:
                    yield from bad_import(folder, module or "", alias.name)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr, ctx=ast.Store() | ast.Del()):
                if name in foreign and f"{name}.{attr}" not in HOOKS:
                    yield f"sets {name}.{attr}"
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[ast.Name(id=name), *_]):
                if name in foreign:
                    yield f"sets {name} by setattr"
        match node:
            case ast.Attribute(value=owner, attr=attr):
                if attr == "meta_path":
                    yield "uses sys.meta_path"
                own = ast.unparse(owner) in {"self", "cls", "super()"}
                if re.match("_[^_]", attr) and attr not in PUBLIC and not own:
                    yield f"uses {attr}"


def bad_import(folder: str, module: str, name: str = "") -> Iterator[str]:
    """Yield what is wrong with importing a name from a module."""
    package = module.split(".")[0]
    if package in NOT_SHIPPED:
        yield f"imports {package}"
    if package != "beam_tfrec" or (module, name) == ("beam_tfrec", "__version__"):
        return
    whole = folder_of(f"{module}.{name}")
    if whole != folder and whole not in MAY_IMPORT[folder]:
        yield f"imports {whole}"
    if any(re.match("_[^_]", part) for part in f"{module}.{name}".split(".")):
        yield f"imports {module}.{name}"


@pytest.mark.parametrize(
    ("folder", "source", "broken"),
    [
        ("schemas", "import os, beam_tfrec.schemas.faults as f", []),
        ("pipelines", "from beam_tfrec import __version__", []),
        ("pipelines", "from beam_tfrec import load", ["imports load"]),
        ("schemas", "def f():\n  import beam_tfrec.transforms.gate", ["imports transforms"]),
        ("transforms", "import beam_tfrec.transforms.report.page", [f"imports {REPORT}"]),
        ("transforms", "from tests.conftest import rounds", ["imports tests"]),
        (
            "pipelines",
            "from beam_tfrec.pipelines.run import _f",
            ["imports beam_tfrec.pipelines.run._f"],
        ),
        ("pipelines", "import beam\nbeam.x = 1", ["sets beam.x"]),
        ("pipelines", "import beam\nsetattr(beam, x, 1)", ["sets beam by setattr"]),
        ("pipelines", "config.x = 1\nself._x = 1\ncls._x = super()._x", []),
        ("pipelines", "import sys\nsys.meta_path.insert(0, x)", ["uses sys.meta_path"]),
        ("pipelines", "other._x + self._y._z + a._replace(b=1)", ["uses _x", "uses _z"]),
    ],
)
def test_breaches_are_found(folder: str, source: str, broken: list[str]) -> None:
    assert sorted(breaches(folder, source)) == broken


def test_modules_keep_the_rules() -> None:
    found: dict[tuple[str, str], str] = {}
    for package in PACKAGES:
        for path in sources(package):
            name = path.relative_to(ROOT)
            folder = folder_of(".".join(name.with_suffix("").parts))
            found |= {(folder, rule): str(name) for rule in breaches(folder, path.read_text())}
    assert found == {}


def sources(package: str) -> Iterator[Path]:
    return (ROOT / package).rglob("*.py")


def modules(package: str) -> list[str]:
    names = [path.relative_to(ROOT).with_suffix("").parts for path in sources(package)]
    return sorted(f"beam_tfrec.{'.'.join(parts)}".removesuffix(".__init__") for parts in names)


LATE = {
    "beam_tfrec.schemas.geometry.masks",  # numpy
    "beam_tfrec.readers.tf_data",  # tensorflow
}


# Workers import these: TensorFlow costs seconds and 0.4 GB a process, Pillow decodes natively.
# Beam costs each builder process a second and a hundred megabytes.
@pytest.mark.parametrize(
    ("package", "names", "barred"),
    [
        ("schemas", [], {"tensorflow", "apache_beam", "numpy", "PIL", "pyarrow"}),
        ("transforms", [], {"tensorflow"}),
        ("readers", [], {"tensorflow", "apache_beam", "PIL", "pyarrow"}),
        (
            "transforms",
            ["beam_tfrec.transforms.builders"],
            {"apache_beam", "tensorflow", "pipelines"},
        ),
    ],
)
def test_importing_a_package_avoids_heavy_libraries(
    package: str, names: list[str], barred: set[str]
) -> None:
    names = names or [name for name in modules(package) if name not in LATE]
    found = packages_of(loaded_by(f"import {', '.join(names)}"))
    assert package in found
    assert found & barred == set()


COMMAND = "from beam_tfrec.pipelines.cli import run_command; run_command(sys.argv[1:])"
MOST_MODULES = 75
ONE = FeatureSpec("one", (Feature("n", Kind.INT64, False, "a number"),))
RECORD = {"n": (Kind.INT64, [7])}


def test_a_run_loads_few_modules_and_no_image_library(make_coco: MakeCoco, tmp_path: Path) -> None:
    (images, annotations), out = make_coco(3), tmp_path / "out"
    given = ("--images", images, "--annotations", annotations, "--output", out, "--no_report")
    loaded = loaded_by(COMMAND, "coco", *given)
    assert (out / "manifest.json").exists()
    assert packages_of(loaded) & {"tensorflow", "PIL", "torch", "pandas"} == set()
    ours = [name for name in loaded if name.startswith("beam_tfrec.")]
    assert 30 < len(ours) <= MOST_MODULES, ours


@pytest.mark.parametrize(
    ("command", "barred"),
    [
        ("verify", {"apache_beam", "tensorflow", "PIL", "pyarrow", "numpy"}),
        ("show", {"apache_beam", "tensorflow", "PIL", "pyarrow", "numpy"}),
        ("diff", {"apache_beam", "tensorflow", "PIL"}),
    ],
)
def test_commands_on_files_start_without_heavy_libraries(
    command: str, barred: set[str], tmp_path: Path
) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"".join(frame_record([b""])))
    one = tmp_path / "a.tfrecord"
    if command == "diff":
        one = write_data_set(tmp_path / "out", ONE, {"train": [{"1": encode_example(RECORD)}]})
    loaded = packages_of(loaded_by(COMMAND, command, *[one] * (1 + (command == "diff"))))
    assert "msgspec" in loaded and not loaded & barred


def loaded_by(program: str, *arguments: object) -> list[str]:
    """Return the modules that a process has loaded when its program ends."""
    at_exit = "import atexit, sys\natexit.register(lambda: print(*sorted(sys.modules)))\n"
    words = [sys.executable, "-c", at_exit + program, *map(str, arguments)]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()[-1].split()


def packages_of(modules: list[str]) -> set[str]:
    return {name.removeprefix("beam_tfrec.").split(".")[0] for name in modules}
