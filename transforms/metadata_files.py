"""The files that other tools read with the shards, made from the manifest."""

from schemas.documents.croissant import CROISSANT_NAME, croissant_json
from schemas.documents.data_card import CARD_NAME, data_card
from schemas.documents.tensorflow_files import (
    NOT_PLAIN_TEMPLATE,
    PLAIN_SHARD_TEMPLATE,
    TfdsSplit,
    dataset_info_json,
    features_json,
    label_files,
    label_map_pbtxt,
    schema_pbtxt,
)
from schemas.features import FeatureSpec
from schemas.layouts import Layout
from schemas.manifest import FORMAT_VERSION, Manifest
from schemas.shards import PLAIN


def metadata_files(manifest: Manifest, layout: Layout) -> dict[str, str]:
    """Return the files that other tools read with the shards, by file name."""
    return metadata_of_spec(manifest, layout.spec, has_names=layout.first_label_id == 0)


def metadata_of_spec(manifest: Manifest, spec: FeatureSpec, *, has_names: bool) -> dict[str, str]:
    """Return the same for the features of a layout.

    Args:
        manifest: of the data set.
        spec: of its layout.
        has_names: whether the layout counts labels from 0, so that TFDS can have their names.
    """
    labels = [(label.id, label.name) for label in manifest.plan.labels]
    is_plain = manifest.plan.options.get("shard_names") == PLAIN
    template = PLAIN_SHARD_TEMPLATE if is_plain else NOT_PLAIN_TEMPLATE
    splits = [
        TfdsSplit(
            name=split,
            shard_lengths=tuple(e.records for e in manifest.shards if e.split == split),
            shards_bytes=summary.bytes,
            filepath_template=template,
        )
        for split, summary in manifest.splits.items()
        if summary.shards
    ]
    names = [label.name for label in manifest.plan.labels] if has_names else []
    texts = {"label_map.pbtxt": label_map_pbtxt(labels), "schema.pbtxt": schema_pbtxt(spec)}
    if spec.is_sequence:  # TFDS would take them for Examples, and find the context alone
        return texts
    description = f"{manifest.layout} Examples written by beam-tfrec; see manifest.json."
    return texts | {
        "features.json": features_json(spec, len(names)),
        "dataset_info.json": dataset_info_json(
            f"beam_tfrec_{manifest.layout}", f"{FORMAT_VERSION}.0.0", description, splits
        ),
        **(label_files(spec, names) if names else {}),
    }


def documents(manifest: Manifest) -> dict[str, str]:
    """Return what describes the data set to people and search engines, by file name."""
    return {CARD_NAME: data_card(manifest), CROISSANT_NAME: croissant_json(manifest)}
