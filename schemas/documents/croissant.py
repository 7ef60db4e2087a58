"""`croissant.json`: a data set in MLCommons Croissant 1.0, from its manifest alone.

Croissant (http://mlcommons.org/croissant/1.0) is JSON-LD that search engines and the package
`mlcroissant` read. It knows no TFRecord files: every shard is a file with its size and SHA-256,
and what can be loaded are the indexes, a record of keys, offsets and labels for each Example, and
the tables of splits, features and classes, which stand in the file itself.
"""

import json
import urllib.parse
from collections.abc import Mapping, Sequence

from schemas.documents.data_card import BLANK_SEAL, sealed
from schemas.labels import is_link
from schemas.manifest import FORMAT_VERSION, Manifest, ShardEntry
from schemas.shards import COUNTED, INDEX_DIR, NAMED_TEMPLATES

CROISSANT_NAME = "croissant.json"

# A value may pass through the expression twice, so each also matches the field alone.
_SPLIT_OF_NAME = r"^(?:.*/)?([a-z][a-z0-9_]*)(?:-[0-9]+-of-.*)?$"
_SHARD_OF_NAME = r"^(?:.*-)?([0-9]+)(?:-of-.*)?$"

_Json = dict[str, object]

# The standard's own context, which every file repeats: its terms in their order.
_TERMS = (
    "@language @vocab citeAs column conformsTo cr rai data dataType dct equivalentProperty examples"
    " extract field fileProperty fileObject fileSet format includes isLiveDataset jsonPath key md5"
    " parentField path recordSet references regex repeated replace samplingRate sc separator source"
    " subField transform"
)
_OTHER: _Json = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "sc": "https://schema.org/",
}
_CONTEXT = {term: _OTHER.get(term, f"cr:{term}") for term in _TERMS.split()}


def croissant_json(manifest: Manifest) -> str:
    """Return the Croissant description of a data set.

    A run knows neither `datePublished` nor `citeAs`. `mlcroissant` recommends them, and accepts the
    file.
    """
    layout = manifest.layout
    content: _Json = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "identifier": BLANK_SEAL,
        "name": f"beam_tfrec_{layout}",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "description": _description(manifest),
        "version": f"{FORMAT_VERSION}.0.0",
        "isLiveDataset": False,
        "license": _licenses(manifest),
        "distribution": [*map(_shard, manifest.shards), *([_INDEX] if manifest.shards else [])],
        "recordSet": _record_sets(manifest),
    }
    given = {name: value for name, value in content.items() if value != []}
    return sealed(json.dumps(given, indent=1) + "\n")


def _description(manifest: Manifest) -> str:
    counts = ", ".join(f"{name} {split.records}" for name, split in manifest.splits.items())
    return (
        f"{manifest.layout} records in TFRecord files written by beam-tfrec ({counts});"
        " see README.md and manifest.json."
    )


def _licenses(manifest: Manifest) -> list[_Json]:
    """Return what the sources call the images' licenses, each once: they are of the images."""
    found = {
        (license.name or license.url or f"license {license.id}", license.url)
        for split in manifest.splits.values()
        for license in split.licenses
    }
    return [
        {"@type": "sc:CreativeWork", "name": name, **({"url": url} if is_link(url) else {})}
        for name, url in sorted(found)
    ]


def _shard(shard: ShardEntry) -> _Json:
    return {
        "@type": "cr:FileObject",
        "@id": urllib.parse.quote(shard.file),
        "name": shard.file,
        "contentUrl": urllib.parse.quote(shard.file),
        "contentSize": f"{shard.bytes} B",
        "encodingFormat": "application/x-tfrecord",
        "sha256": shard.sha256,
    }


_INDEX: _Json = {
    "@type": "cr:FileSet",
    "@id": INDEX_DIR,
    "name": INDEX_DIR,
    "description": "Where every record lies in its shard, and what it was made of.",
    "encodingFormat": "application/x-parquet",
    "includes": f"{INDEX_DIR}/*.parquet",
}


def _record_sets(manifest: Manifest) -> list[_Json]:
    features: list[_Json] = [
        {
            "key": feature.key,
            "type": feature.kind.value,
            "repeated": feature.repeated,
            "optional": feature.optional,
            "per_step": feature.per_step,
            "content": feature.content.value,
            "description": feature.doc,
        }
        for feature in manifest.features
    ]
    labels = [{"id": label.id, "name": label.name} for label in manifest.plan.labels]
    splits: list[_Json] = [{"name": name} for name in manifest.splits]
    return [
        *_inline("splits", "The splits.", splits, {"dataType": "cr:Split"}, key="name"),
        *_inline("features", "The features of every record.", features, {}, key="key"),
        *_inline("labels", "The classes, by the labels in the records.", labels, {}, key="id"),
        *([_records(manifest.plan.options.get("shard_names", COUNTED))] if manifest.shards else []),
    ]


def _inline(
    name: str, description: str, rows: Sequence[_Json], more: _Json, key: str
) -> list[_Json]:
    """Return a record set whose rows stand in the file, none where there are no rows."""
    if not rows:
        return []
    types: Mapping[type, str] = {str: "sc:Text", bool: "sc:Boolean", int: "sc:Integer"}
    return [
        {
            "@type": "cr:RecordSet",
            "@id": name,
            "name": name,
            "description": description,
            **more,
            "key": {"@id": f"{name}/{key}"},
            "field": [
                _field(f"{name}/{column}", types[type(value)]) for column, value in rows[0].items()
            ],
            "data": [{f"{name}/{column}": row[column] for column in row} for row in rows],
        }
    ]


def _field(field_id: str, data_type: str, **more: object) -> _Json:
    name = field_id.partition("/")[2]
    return {"@type": "cr:Field", "@id": field_id, "name": name, "dataType": data_type, **more}


def _of_index(name: str, data_type: str, extract: _Json, regex: str = "") -> _Json:
    transform = {"transform": {"regex": regex}} if regex else {}
    source = {"fileSet": {"@id": INDEX_DIR}, "extract": extract, **transform}
    return _field(f"records/{name}", data_type, source=source)


def _records(template: str) -> _Json:
    """Return the record set of all records; names of a user's own template give no split."""
    fields = [_of_index("key", "sc:Text", {"column": "key"})]
    if template in NAMED_TEMPLATES.values():
        split = _of_index("split", "sc:Text", {"fileProperty": "filename"}, _SPLIT_OF_NAME)
        # Another property than the split's: a reader replaces a property's values in place.
        shard = _of_index("shard", "sc:Integer", {"fileProperty": "fullpath"}, _SHARD_OF_NAME)
        fields += [split | {"references": {"field": {"@id": "splits/name"}}}, shard]
    numbers = [_of_index(name, "sc:Integer", {"column": name}) for name in ("offset", "size")]
    labels = _of_index("labels", "sc:Integer", {"column": "labels"}) | {"repeated": True}
    keys = [field["@id"] for field in fields[1::-1]]
    return {
        "@type": "cr:RecordSet",
        "@id": "records",
        "name": "records",
        "description": (
            "Every record, from the indexes: where its framed bytes lie, and its labels."
        ),
        "key": [{"@id": key} for key in keys],
        "field": [*fields, *numbers, labels],
    }
