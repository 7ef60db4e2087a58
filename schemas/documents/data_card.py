"""The data card: `README.md` of a data set, made from its manifest.

It lists contents, counts, features with units, licenses, origin, and how to read the data. It has
no times and no paths, so equal data sets have equal cards. Text from the data is escaped for
CommonMark and GitHub's dialect: it cannot make links, tags or new lines.

Users may have a `README.md` or `croissant.json` of their own. So a run writes a seal, a digest of
the file's text, into its files. A file without a seal, or edited later, belongs to the user.
"""

import hashlib
import html
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from beam_tfrec.schemas.documents.tensorflow_files import tfds_template
from beam_tfrec.schemas.faults import FAULTS
from beam_tfrec.schemas.features import Feature, Kind
from beam_tfrec.schemas.labels import is_link
from beam_tfrec.schemas.manifest import Manifest, SplitSummary

if TYPE_CHECKING:
    from jinja2 import Environment

CARD_NAME = "README.md"

_SOURCES = {  # by an option that no other source has
    "orphans": "COCO annotation files and their images",
    "join_by": "images with a JSON file beside each",
    "key_column": "rows of tables",
    "low_suffix": "pairs of images",
    "encoding": "arrays in `.npy` and `.npz` files",
    "voc_offset": "Pascal VOC's XML files and their images",
}
_PARSED_AS = {  # dtype, and the default of a missing optional value
    Kind.BYTES: ("tf.string", 'b""'),
    Kind.FLOAT: ("tf.float32", "0.0"),
    Kind.INT64: ("tf.int64", "0"),
}
_MOST_CHARACTERS = 100
# Control, bidi and invisible characters, line separators, halves of surrogate pairs, tags.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    "\u2028-\u202f\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"
    "\ud800-\udfff\U000e0000-\U0010ffff]"
)
_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]{}|~$@"})
_LINK = re.compile(r"(?i)(:)(?=//)|(?<=www)(\.)")  # GitHub turns such text into links

BLANK_SEAL = f"beam-tfrec-sha256:{'0' * 64}"
"""Placeholder for the seal in a text. It comes before any text from the data."""

_SEAL = re.compile(rb"beam-tfrec-sha256:([0-9a-f]{64})")


class Markdown(str):
    """Text that is Markdown already."""


def data_card(manifest: Manifest) -> str:
    """Return the data card of a data set, in Markdown."""
    spec = manifest.spec
    message = "tf.train.SequenceExample" if spec.is_sequence else "tf.train.Example"
    environment = template_environment("beam_tfrec.schemas", "documents", finalize=_shown)
    environment.filters.update(link=_link, parsed=_parsed)
    text = environment.get_template("data_card.md.j2").render(
        manifest=manifest,
        splits=list(manifest.splits.values()),
        left_out=list(_left_out(manifest.splits)),
        source_kind=Markdown(source_kind(manifest)),
        spec=spec,
        message="bytes" if spec.is_opaque else message,
        first_split=Markdown(manifest.shards[0].split if manifest.shards else ""),
        is_for_tfds=tfds_template(manifest) is not None,
        seal=BLANK_SEAL,
    )
    return sealed(text)


def source_kind(manifest: Manifest) -> str:
    """Return the kind of sources of a data set, in words; empty if its options do not say."""
    kinds = (text for option, text in _SOURCES.items() if option in manifest.plan.options)
    return next(kinds, "")


def escaped(text: str) -> str:
    r"""Return text escaped for Markdown, on one line. It must not be put at a line's beginning.

    Invisible characters are shown as Python's escapes, and long text is cut.

    >>> escaped("a|b <script>\n"), escaped("http://x.org/_a_")
    ('a\\|b &lt;script&gt;\\\\n', 'http\\://x.org/\\_a\\_')
    """
    marked = html.escape(seen(text, _MOST_CHARACTERS), quote=False).translate(_MARKS)
    return _LINK.sub(lambda found: f"\\{found[0]}", marked)


def seen(text: str, most_characters: int) -> str:
    r"""Return the first characters of a text, with invisible ones as Python's escapes.

    The result is not escaped for Markdown or HTML.

    >>> seen("gpj\u202e.exe\n", 100), seen("abcdef", 4)
    ('gpj\\u202e.exe\\n', 'abc…')
    """
    shown = text if len(text) <= most_characters else f"{text[: most_characters - 1]}…"
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], shown)


def sealed(text: str) -> str:
    """Return a text with `BLANK_SEAL` replaced by the seal.

    >>> is_sealed(sealed(f"<!-- {BLANK_SEAL} -->").encode())
    True
    """
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text.replace(BLANK_SEAL, BLANK_SEAL.replace("0" * 64, digest), 1)


def is_sealed(data: bytes) -> bool:
    """Return whether a file was written by any run of beam-tfrec and not edited since."""
    found = _SEAL.search(data)
    if found is None:
        return False
    blank = data[: found.start(1)] + b"0" * 64 + data[found.end(1) :]
    return hashlib.sha256(blank).hexdigest().encode() == found[1]


def template_environment(package: str, folder: str, **options: Any) -> "Environment":
    """Return the Jinja2 environment for templates in a package's folder."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # takes 50 ms

    return Environment(
        loader=PackageLoader(package, folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )


def _shown(value: Any) -> Any:
    """Return a value as shown in the card. All text but `Markdown` is escaped."""
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, Markdown) else escaped(value)


def _left_out(splits: Mapping[str, SplitSummary]) -> Iterator[tuple[str, str, str, int]]:
    """Yield (split, what, reason, count) for all differences from the sources."""
    for name, split in splits.items():
        fate = split.annotations
        counts: Mapping[str, Mapping[str, int]] = {
            "samples rejected": split.rejected,
            "samples in earlier data sets": {"": split.earlier},
            "samples excluded": {"on request": split.excluded},
            "samples skipped": split.skipped,
            "annotations dropped": fate.dropped,
            "annotations lost": {"with their images": fate.lost},
            "annotations in earlier data sets": {"": fate.earlier},
            "annotations excluded": {"on request": fate.excluded},
            "annotations skipped": fate.skipped,
            "repaired": split.repairs,
            "unusual": split.traits,
        }
        for what, reasons in counts.items():
            for reason, count in reasons.items():
                meaning = f": {FAULTS[reason].meaning}" if reason in FAULTS else ""
                if count:
                    yield name, what, reason + meaning, count


def _link(url: str) -> str:
    return Markdown(f"<{url}>") if is_link(url) and "|" not in url else url


def _parsed(feature: Feature) -> Markdown:
    """Return the line of code with which `tf.io` parses a feature."""
    dtype, default = _PARSED_AS[feature.kind]
    if feature.repeated:
        parser = f"RaggedFeature({dtype})"
    elif feature.per_step:
        missing = ", allow_missing=True" if feature.optional else ""
        parser = f"FixedLenSequenceFeature([], {dtype}{missing})"
    else:
        parser = f"FixedLenFeature([], {dtype}{f', {default}' if feature.optional else ''})"
    # A key may be any text. `!a` (ascii) makes it a literal on one line.
    return Markdown(f"{feature.key!a}: tf.io.{parser}")
