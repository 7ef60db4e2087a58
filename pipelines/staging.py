"""`StagingConfig`: the configuration of sources that copy their data to temporary files first."""

import hashlib
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import apache_beam as beam

from beam_tfrec.pipelines.data_set import DataSetConfig
from beam_tfrec.schemas.manifest import Manifest
from beam_tfrec.schemas.samples import records_root
from beam_tfrec.transforms.storage import is_local, join_uri
from beam_tfrec.transforms.storage.staging import Staging


@dataclass(frozen=True)
class StagingConfig(DataSetConfig):
    """A data set with samples that are staged before they are written.

    Attributes:
        temp_location: folder for staged files, which other programs may use too; empty for a
            folder in the output.
        run: name of this run's folder of staged files.
    """

    temp_location: str = field(default="", kw_only=True)
    run: str = field(default_factory=lambda: uuid.uuid4().hex, kw_only=True, compare=False)

    split_fields: ClassVar[None] = None  # only the data show their fields
    staged_root: ClassVar[str] = records_root("", 0)
    """Name of the root of staged files."""

    @property
    def stages(self) -> bool:
        """Whether a run may stage something."""
        return True

    @property
    def staging(self) -> Staging:
        """Place of the staged files."""
        folder = join_uri(self.output, "_staged")
        if self.temp_location:
            output = os.path.abspath(self.output) if is_local(self.output) else self.output
            digest = hashlib.blake2b(output.encode(), digest_size=16).hexdigest()
            folder = join_uri(self.temp_location, f"staged-{digest}")
        return Staging(folder, self.run, self.access)

    @property
    def roots(self) -> Mapping[str, str]:
        """URI per root name of the samples' blobs."""
        return {**self.listed_roots, self.staged_root: self.staging.uri}

    def after_commit(self, manifests: beam.PCollection[Manifest]) -> beam.PCollection[Manifest]:
        """Delete the run's staged files at its end, and those of dead runs at once."""
        if not self.stages:
            return manifests
        staging = manifests.pipeline | "Staging" >> beam.Create([self.staging])
        staging | "DeleteOthers" >> beam.Map(Staging.delete_others)
        return manifests | "DeleteStaged" >> beam.Map(self.staging.delete)

    def clean_up(self, manifest: Manifest) -> None:
        """Delete staged files, since a complete data set needs none."""
        if self.stages:
            self.staging.delete_others()
            self.staging.delete(manifest)
