"""The outputs of readers beside their samples, by the tags that they have in the graph."""

from typing import Literal

import apache_beam as beam

from schemas.faults import Rejected
from transforms.sources.split_sources import SplitSource

RejectedOutput = beam.pvalue.TaggedOutput[Literal["rejected"], Rejected]
"""The second output of a step that rejects."""
SplitSourceOutput = beam.pvalue.TaggedOutput[Literal["files"], SplitSource]
