"""Graphs of whole runs: each step costs a small run a hundredth, so none is there for nothing."""

import importlib

import apache_beam as beam
import pytest
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor

OUT = ("--output", "out", "--num_shards", "2")
COCO = ("--images", "photos", "--annotations", "instances.json", *OUT)
FOLDER = ("--images", "photos", *OUT)
TABLE = ("--table", "rows.csv", *OUT)


class _Labels(PipelineVisitor):
    def __init__(self) -> None:
        self.of: dict[type, set[str]] = {}

    def visit_transform(self, step: AppliedPTransform) -> None:
        self.of.setdefault(type(step.transform), set()).add(step.full_label)


def labels_of(command: str, arguments: tuple[str, ...]) -> dict[type, set[str]]:
    """Return the labels of a run's steps by the type of their transforms."""
    module = importlib.import_module(f"pipelines.{command}")
    pipeline, labels = beam.Pipeline(runner="FnApiRunner"), _Labels()
    module.build(pipeline, module.configure(arguments)[0].config)
    pipeline.visit(labels)
    return labels.of


@pytest.mark.parametrize(
    ("command", "arguments", "impulses"),
    [
        ("coco", COCO, {"ReadCoco/Once", "ListBlobs/Once"}),
        (
            "folder",
            FOLDER,
            {"ListFiles/ListBlobs/Once", "ListFiles/NoEntries/Impulse", "ReadFolder/Once"},
        ),
        ("table", TABLE, {"ListTables/Once", "ReadTable/Once"}),
    ],
)
def test_what_begins_a_run(command: str, arguments: tuple[str, ...], impulses: set[str]) -> None:
    """No empty collection, which is a stage of its own."""
    assert labels_of(command, arguments)[beam.Impulse] == {*impulses, "PlanShards/Once"}


def test_rejects_come_together_where_there_are_two_kinds() -> None:
    assert "RejectedEarly" in labels_of("coco", COCO)[beam.Flatten]
    assert "RejectedEarly" not in labels_of("folder", FOLDER)[beam.Flatten]


def test_tables_are_spread_over_workers_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def spread() -> set[str]:
        groups = labels_of("table", TABLE)[beam.GroupByKey]
        return {label.split("/")[1] for label in groups if label.startswith("DivideTables/")}

    assert spread() == set()
    monkeypatch.setattr("transforms.sources.table_pieces.is_in_process", lambda pipeline: False)
    assert spread() == {"OneByOne", "Spread"}
