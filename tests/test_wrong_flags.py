"""Flags of a source that do not fit together are refused before any file is read."""

import importlib
import re
import shlex

import pytest

PHOTOS, PAIR = "--images i --annotations a", "--low x --high y"
BOXES = "--images i --boxes b.csv"
CLASSES = f"{BOXES} --classes c.csv"
FIELD = f"{PHOTOS} --fields a=int64"
REFUSED: dict[str, list[tuple[str, str]]] = {
    "coco": [
        (f"{PHOTOS} --features boxes,mask", "features must be boxes, "),
        (f"{PHOTOS} --features ''", "argument --features: must not be empty"),
        (f"{PHOTOS} --features masks", "features masks must come with boxes"),
        (f"{PHOTOS} --layout keras --features boxes,masks", "features must be boxes"),
        (f"{PHOTOS} --layout tfds --category_ids original", "category_ids of layout tfds must be"),
        (f"{PHOTOS} --layout keras --string_ids", "string_ids needs layout detection, got keras"),
        (f"{PHOTOS} --resize big", "resize must be N, WxH or max:N in px, got 'big'"),
        (f"{PHOTOS} --resize 0", "resize must be N, WxH or max:N in px, got '0'"),
        (f"{PHOTOS} --resize 99999", "sides must be 1 to 65500 px, got 99999"),
        (f"{PHOTOS} --resize_mode fill", "resize_mode must come with a box, got fill with resize"),
        (f"{PHOTOS} --resize max:9 --resize_mode fill", "resize_mode must come with a box, got fi"),
        (f"{PHOTOS} --reencode jpeg --quality 101", "quality must be 1 to 100, got 101"),
        (f"{PHOTOS} --quality 90", "quality must not be alone, got 90"),
        (f"{PHOTOS} --reencode png --quality 90", "quality must come with JPEGs, got 90 with"),
        (f"{PHOTOS} --array_record_options uncompressed", "array_record_options must come with re"),
        (f"{PHOTOS} --shard_names {{index}}.array_record", "shard_names must not hold .array_reco"),
        (
            f"{PHOTOS} --record_format array_record --shard_names {{index}}.tfrec",
            "shard_names must hold .array_record for",
        ),
    ],
    "folder": [
        ("--images a b", "images must come once per split, got a, b: remove one"),
        ("--images a --dtype uint8", "dtype must come with layout tensor or raw, got classificati"),
        ("--images a --layout imagenet --reencode png", "layout imagenet holds JPEGs of RGB, got"),
    ],
    "sidecar": [
        ("--images a=x --annotations b=x", "images and annotations must name the same "),
        (f"{PHOTOS} --features masks", "features masks must come with boxes, got"),
        (f"{FIELD} --max_dropped 4", "max_dropped must come without field"),
        (f"{FIELD} --on_size_mismatch reject", "on_size_mismatch must come without fields, got re"),
    ],
    "voc": [
        (
            f"{PHOTOS} --image_sets sets",
            "image_sets must come with splits, and with folders without SPLIT=, got splits None"
            " and folders of train",
        ),
        (f"{PHOTOS} --image_sets sets --splits train=1,val=1", "image_sets must come with splits"),
        (f"{PHOTOS} --features masks", "features must be of boxes, difficult, truncated, occluded"),
        (f"{PHOTOS} --segmentation a b c", "segmentation must be one or two folders"),
        (f"{PHOTOS} --segmentation val=a", "images and segmentation must name the same splits"),
        (f"{PHOTOS} --split_by folder --splits a,b", "split_by must be given, hash or strat"),
    ],
    "openimages": [
        ("--images i --boxes val=b.csv --classes c.csv", "images and boxes must name the same spl"),
        (f"{CLASSES} --image_labels val=l.csv", "image_labels must name splits of --images"),
        (f"{BOXES} --classes c.txt", "classes must be a .csv file, got 'c.txt'"),
        (BOXES, "the following arguments are required: --classes"),
        (f"{CLASSES} --rotation r.csv", "rotation must come with orientation"),
        (f"{CLASSES} --masks m.csv", "masks and mask_images must name the same"),
    ],
    "pairs": [
        ("--low a=x --high b=x", "low and high must name the same splits, got low ['a'] and high"),
        ("--low x/ --high x", "low and high must be two folders, got 'x/': give another"),
        (f"{PAIR} --resize 64", "pairs take no resize and no buckets, got resize: leave it out"),
        (f"{PAIR} --buckets auto:64:2", "pairs take no resize and no buckets, got buckets: leave"),
        (f"{PAIR} --tensors --reencode png", "reencode and quality must come with image files, n"),
    ],
    "arrays": [
        ("--arrays x.npy --image_array x", "image_array must come with a folder or an .npz file,"),
        ("--arrays x.npz --image_array x --label_array x", "arrays must be named once, got ['x']"),
        ("--arrays x.npz --feature_arrays label", "feature_arrays must be letters, digits and _,"),
        ("--arrays x.npz --check decode", "unknown argument '--check'"),
        ("--arrays a=x b=x --label_array a=y", "label_array must be given for every split, got no"),
        ("--arrays x.npy --tensor_arrays m,c", "tensor_arrays must come with a folder or an .npz"),
        ("--arrays x.npz --tensor_arrays m,m", "arrays must be named once, got ['m'] and ['m']: n"),
        ("--arrays x.npz --tensor_arrays m,shape", "tensor_arrays must be letters, digits and _,"),
        ("--arrays x.npz --tensor_arrays m --encoding raw", "tensor_arrays must come without enco"),
        ("--arrays d --key_array k --one_sample_per_file", "key_array must come without one_sampl"),
    ],
}


@pytest.mark.parametrize(
    ("source", "flags", "message"),
    [(source, *row) for source, rows in REFUSED.items() for row in rows],
)
def test_flags_that_do_not_fit_together(source: str, flags: str, message: str) -> None:
    command = importlib.import_module(f"beam_tfrec.pipelines.{source}").run
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        command.configure([*shlex.split(flags), "--output", "out"])
