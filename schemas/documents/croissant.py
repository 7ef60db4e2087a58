"""`croissant.json`: a data set in MLCommons Croissant 1.0, made from its manifest.

Croissant (http://mlcommons.org/croissant/1.0) is JSON-LD that search engines and the package
`mlcroissant` read. It cannot describe the records of TFRecord files, so a shard is a plain file
with size and SHA-256. Readers can load the indexes (key, offset and labels of each Example), and
the tables of splits, features and classes in `croissant.json` itself.
"""

import json
import urllib.parse
from collections.abc import Mapping, Sequence

from beam_tfrec.schemas.documents.data_card import BLANK_SEAL, sealed
from beam_tfrec.schemas.labels import is_link
from beam_tfrec.schemas.manifest import Manifest, ShardEntry
from beam_tfrec.schemas.shards import COUNTED, INDEX_DIR, PLAIN, in_format
from beam_tfrec.schemas.tfrecord import is_array_record

CROISSANT_NAME = "croissant.json"

# A reader may apply an expression to its own result, so each also matches that.
_SPLIT_OF_NAME = r"^(?:.*/)?([a-z][a-z0-9_]*)(?:-[0-9]+-of-.*)?$"
_SHARD_OF_NAME = r"^(?:.*-)?([0-9]+)(?:-of-.*)?$"

_Json = dict[str, object]

# Terms of the standard's JSON-LD context, in its order. Every Croissant file repeats them.
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

    It lacks `datePublished` and `citeAs`, which a run does not know. `mlcroissant` recommends them
    but accepts the file.
    """
    layout, names = manifest.layout, manifest.plan.options.get("shard_names", COUNTED)
    indexes = [_index(names)] if manifest.shards else []
    kind = "ArrayRecord" if manifest.is_array_record else "TFRecord"
    counts = ", ".join(f"{name} {split.records}" for name, split in manifest.splits.items())
    content: _Json = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "identifier": BLANK_SEAL,
        "name": f"beam_tfrec_{layout}",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "description": f"{layout} records in {kind} files written by beam-tfrec ({counts});"
        " see README.md and manifest.json.",
        "version": f"{manifest.format_version}.0.0",
        "isLiveDataset": False,
        "license": _licenses(manifest),
        "distribution": [*map(_shard, manifest.shards), *indexes],
        "recordSet": _record_sets(manifest),
    }
    given = {name: value for name, value in content.items() if value != []}
    return sealed(json.dumps(given, indent=1) + "\n")


def _licenses(manifest: Manifest) -> list[_Json]:
    """Return the licenses of the images as the sources name them, without repeats."""
    found = {
        (license.name or license.url or f"license {license.id}", license.url)
        for split in manifest.splits.values()
        for license in split.licenses
    }
    return [
        {"@type": "sc:CreativeWork", "name": name, **({"url": url} if is_link(url) else {})}
        for name, url in sorted(found)
    ]


def _node(kind: str, node_id: str, name: str = "", /, **more: object) -> _Json:
    """Return a Croissant node; its default name is the last part of its id."""
    name = name or node_id.rpartition("/")[2]
    return {"@type": f"cr:{kind}", "@id": node_id, "name": name, **more}


def _shard(shard: ShardEntry) -> _Json:
    url = urllib.parse.quote(shard.file)
    return _node(
        "FileObject",
        url,
        shard.file,
        contentUrl=url,
        contentSize=f"{shard.bytes} B",
        encodingFormat=f"application/x-{'array' if is_array_record(shard.file) else 'tf'}record",
        sha256=shard.sha256,
    )


def _index(template: str) -> _Json:
    folders = "*/" * template.count("/")
    return _node(
        "FileSet",
        INDEX_DIR,
        description="Where every record lies in its shard, and what it was made of.",
        encodingFormat="application/x-parquet",
        includes=f"{INDEX_DIR}/{folders}*.parquet",
    )


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
    sets = [
        _inline("splits", "The splits.", splits, dataType="cr:Split"),
        _inline("features", "The features of every record.", features),
        _inline("labels", "The classes, by the labels in the records.", labels),
    ]
    records = [_records(manifest.plan.options.get("shard_names", COUNTED))]
    return [*filter(None, sets), *(records if manifest.shards else [])]


def _inline(name: str, description: str, rows: Sequence[_Json], **more: object) -> _Json:
    """Return a record set with inline rows, keyed by the first column; empty without rows."""
    if not rows:
        return {}
    types: Mapping[type, str] = {str: "sc:Text", bool: "sc:Boolean", int: "sc:Integer"}
    fields = [
        _node("Field", f"{name}/{column}", dataType=types[type(value)])
        for column, value in rows[0].items()
    ]
    data = [{f"{name}/{column}": row[column] for column in row} for row in rows]
    key = {"@id": fields[0]["@id"]}
    return _node(
        "RecordSet", name, description=description, **more, key=key, field=fields, data=data
    )


def _index_field(name: str, data_type: str, extract: _Json, **transform: object) -> _Json:
    source = {"fileSet": {"@id": INDEX_DIR}, "extract": extract, **transform}
    return _node("Field", f"records/{name}", dataType=data_type, source=source)


def _records(template: str) -> _Json:
    """Return the record set of all records. Split and shard need one of our name templates."""
    fields = [_index_field("key", "sc:Text", {"column": "key"})]
    is_array = is_array_record(template)
    if template in (in_format(of, array_record=is_array) for of in (COUNTED, PLAIN)):
        # They use two properties, since a reader replaces a property's values in place.
        parts = (
            ("split", "sc:Text", "filename", _SPLIT_OF_NAME),
            ("shard", "sc:Integer", "fullpath", _SHARD_OF_NAME),
        )
        fields += [
            _index_field(name, data_type, {"fileProperty": of}, transform={"regex": regex})
            for name, data_type, of, regex in parts
        ]
        fields[1]["references"] = {"field": {"@id": "splits/name"}}
    keys = [{"@id": field["@id"]} for field in fields[1::-1]]
    fields += [
        _index_field(name, "sc:Integer", {"column": name}) for name in ("offset", "size", "labels")
    ]
    fields[-1]["repeated"] = True
    what = "Every record, from the indexes: where its framed bytes lie, and its labels."
    if is_array_record(template):
        what = "Every record, from the indexes: its number in its file, its size, and its labels."
    return _node("RecordSet", "records", description=what, key=keys, field=fields)
