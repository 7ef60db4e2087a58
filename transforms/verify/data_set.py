"""Verify a data set around its shards: manifest, plan, rejects, listing and side files."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from schemas.example_rules import rules_of
from schemas.faults import Findings, Verified
from schemas.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    JobPlan,
    Manifest,
    contradictions,
    from_json,
    has_sums,
    index_names_of,
    plan_digest,
    read_manifest,
)
from schemas.samples import Order
from schemas.shards import (
    INDEX_DIR,
    NAMED_TEMPLATES,
    RECEIPTS_DIR,
    ShardNames,
    is_index_name,
    receipt_name,
    shard_stems,
)
from transforms.output_files import receipts, split_of
from transforms.storage import Access, Storage, is_local, join_uri, open_storage
from transforms.verify.reports import ShardRules, ShardTask
from transforms.verify.side_files import COPY, check_side_files, check_sums

_MOVE = "move it away: no reader of the manifest sees it, a reader of a glob does"
_CONVERTED = ("image_turned", "image_converted")
_PLAIN_BYTES = ("table", "arrays")  # layouts whose sources are not what their images hold


class AroundShards(NamedTuple):
    """What was found around the shards of a data set, and what is left to be done.

    Attributes:
        found: what is wrong, and how many shards are looked at; notes come after the shards'.
        tasks: the shards, in the manifest's order.
        rules: of all shards; None where there is no manifest to tell.
    """

    found: Verified
    tasks: list[ShardTask]
    rules: ShardRules | None


def verify_around(root: str, access: Access, *, deep: bool) -> AroundShards:
    """Return what is wrong with a data set but for its shards, and what those are to be like.

    Raises:
        RuntimeError: where the store fails, or the manifest is of a newer format.
    """
    storage, findings = open_storage(root, access), Findings()
    manifest = find_manifest(storage, findings)
    if manifest is None:
        return AroundShards(Verified(findings, 1), [], None)
    try:
        rules, names = shard_rules(manifest, root, access, deep=deep), _names(manifest)
    except ValueError as error:
        what = f"says what no run of this program does ({error})"
        findings.add("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
        return AroundShards(Verified(findings, 1), [], None)
    tasks = _tasks(manifest, storage)
    for what in contradictions(manifest):
        findings.add("E-VER-MANIFEST", MANIFEST_NAME, what, COPY)
    shared = check_side_files(manifest, storage, findings)
    notes = check_sums(manifest, storage, findings)
    if deep:
        rules = replace(rules, shared=shared)
    _check_foreign(names, tasks, storage, findings)
    notes += _notes(tasks, rules)
    return AroundShards(Verified(findings, len(tasks), notes=notes), tasks, rules)


def find_manifest(storage: Storage, findings: Findings) -> Manifest | None:
    """Return the manifest of a data set; None with a finding where it is damaged.

    Raises:
        RuntimeError: `E-OUT-FOREIGN` where it is another program's, or of a newer format.
    """
    data, where = storage.read(MANIFEST_NAME), join_uri(storage.root, MANIFEST_NAME)
    try:
        return from_json(data, Manifest) if _is_ours(data) else read_manifest(data, where, "path")
    except ValueError as error:
        findings.add("E-VER-MANIFEST", where, f"no manifest ({error})", COPY)
    return None


def shard_rules(manifest: Manifest, root: str, access: Access, *, deep: bool) -> ShardRules:
    """Return what all shards of a data set are to be like."""
    return ShardRules(
        root=root,
        examples=rules_of(manifest),
        orders={
            split: order_of(manifest.plan, split)
            for split in {*manifest.splits, *(entry.split for entry in manifest.shards)}
        },
        seed=int(manifest.plan.options.get("seed", 0)),
        reads=deep or is_local(root),
        hashes=deep,
        converted=frozenset(
            split
            for split, summary in manifest.splits.items()
            if manifest.layout in _PLAIN_BYTES
            or any(name in summary.repairs for name in _CONVERTED)
        ),
        access=access,
        has_sums=has_sums(manifest),
    )


def order_of(plan: JobPlan, split: str) -> Order:
    """Return a split's order by the options of a plan, such as `all=shuffled train=input`."""
    orders = dict(part.partition("=")[::2] for part in plan.options.get("order", "").split())
    return Order(orders.get(split, orders.get("all", Order.SHUFFLED.value)))


def _names(manifest: Manifest) -> ShardNames:
    return ShardNames(manifest.plan.options.get("shard_names", NAMED_TEMPLATES["counted"]))


def _is_ours(data: bytes) -> bool:
    """Return whether to look further; what is clearly another program's is no finding of ours."""
    try:
        head = from_json(data, _Head)
    except ValueError:
        return True
    return head.format == "beam-tfrec" and head.format_version <= FORMAT_VERSION


class _Head(msgspec.Struct):
    format: str
    format_version: int


def _tasks(manifest: Manifest, storage: Storage) -> list[ShardTask]:
    """Return the shards by split, then index, as the manifest lists them."""
    listed = {entry.name: entry for entry in storage.list(recursive=False)}
    stems = shard_stems([entry.split for entry in manifest.shards])
    names, digest = index_names_of(manifest), plan_digest(manifest.plan)
    return [
        ShardTask(entry, stem, names[place], digest, listed.get(entry.file), place)
        for place, (entry, stem) in enumerate(zip(manifest.shards, stems, strict=True))
    ]


def _check_foreign(
    names: ShardNames, tasks: Sequence[ShardTask], storage: Storage, findings: Findings
) -> None:
    """Name files that could be taken for the data set's, and are not."""
    ours = {task.entry.file for task in tasks}
    found = [e.name for e in storage.list(recursive=False) if split_of(e.name, names) is not None]
    ours |= {name for task in tasks for name in task.index}
    folder = storage.list(f"{INDEX_DIR}/", recursive=False)
    found += [entry.name for entry in folder if is_index_name(entry.name, names)]
    ours |= {receipt_name(task.stem) for task in tasks}
    for name in sorted({*found, *receipts(storage)} - ours):
        what = "is of an index" if name.startswith(INDEX_DIR) else "is called like a shard"
        if name.startswith(RECEIPTS_DIR):
            what = "is a receipt"
        findings.add("E-VER-FOREIGN", name, f"{what}, and the manifest names no such shard", _MOVE)


def _notes(tasks: Sequence[ShardTask], rules: ShardRules) -> tuple[str, ...]:
    """Say what was not looked at."""
    if rules.reads:
        return ()
    without = sum(task.file is not None and task.file.crc32c is None for task in tasks)
    if without:
        return (f"the store gives no checksums of {without} shards: --deep reads their bytes",)
    return ("sizes and checksums as the store lists them were compared: --deep reads all bytes",)
