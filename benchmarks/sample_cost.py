"""Print what a sample of boxes takes, alone and over all group-bys: see test_sample_cost.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from schemas.samples import Sample
from tests.test_sample_cost import boxes_only, grouped_bytes
from transforms.sources.elements import StructCoder

if __name__ == "__main__":
    grouped = grouped_bytes()
    alone = len(StructCoder(Sample).encode(boxes_only()))
    print(
        f"{grouped / 3:.0f} bytes encoded, as batches travel ({alone} alone),"
        f" {grouped:.0f} bytes over all group-bys"
    )
