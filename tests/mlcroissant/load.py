"""Load a `croissant.json` with MLCommons' reader, and print its metadata and all records as JSON.

    python load.py OUT/croissant.json

The reader's warnings are in `warnings`; its errors end the program.
"""

import json
import sys

import mlcroissant


def main(path: str) -> None:
    data_set = mlcroissant.Dataset(jsonld=path)
    metadata = data_set.metadata
    issues = metadata.ctx.issues
    sets = {
        record_set.id: [as_text(record) for record in data_set.records(record_set.id)]
        for record_set in metadata.record_sets
    }
    print(
        json.dumps(
            {
                "warnings": sorted(issues.warnings),
                "errors": sorted(issues.errors),
                "licenses": [[found.name, found.url] for found in metadata.license or []],
                "files": {file.id: getattr(file, "sha256", None) for file in metadata.distribution},
                "sets": sets,
            }
        )
    )


def as_text(record: dict) -> dict:
    """Return a record with JSON's types."""
    return {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in record.items()
    }


if __name__ == "__main__":
    main(sys.argv[1])
