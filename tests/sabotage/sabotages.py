"""The sabotages: a text of a file, its replacement, and the tests that must fail.

An old text is as short as possible, and occurs once. When its line changes, `run.py` says that the
sabotage does not apply; then it needs a new text here.
"""

from typing import NamedTuple


class Sabotage(NamedTuple):
    """One guard taken out."""

    name: str  # what the sabotaged project does
    file: str
    old: str  # text that the file holds exactly once
    new: str
    test: str  # pytest's id of fast tests; one must fail


COMMIT = "transforms/commit.py"
DATA_SET = "pipelines/data_set.py"
FILES = "transforms/output_files.py"
GATE = "transforms/gate.py"
GCS = "transforms/storage/gcs.py"
LOCAL = "transforms/storage/local.py"
STORAGE = "transforms/storage/__init__.py"
PLAN = "transforms/plan_shards.py"
PUBLISH = "transforms/publish_plan.py"
SHARD_TABLE = "transforms/shard_table.py"
BUILD_RECORDS = "transforms/build_records.py"
BUILD_SHARD = "transforms/build_shard.py"

# Grouped by the guarantee in README that they break; 7 is about retries.
SABOTAGES = (
    # 1. Nothing is lost silently.
    Sabotage(
        "sums are not checked",
        COMMIT,
        "for what in contradictions(manifest):",
        "for what in ():",
        "tests/test_commit.py::test_a_wrong_sum_prevents_the_manifest",
    ),
    Sabotage(
        "all annotations may be dropped",
        PUBLISH,
        "if len(of_split) > allowed:",
        "if len(of_split) < 0:",
        "tests/test_commit.py::test_dropped_annotations_have_a_budget",
    ),
    Sabotage(
        "a shard that is not as planned is written",
        PLAN,
        "if gaps or len(packed) != planned:",
        "if gaps < 0:",
        "tests/test_plan_shards.py::test_a_shard_that_is_not_as_planned_stops_the_run",
    ),
    Sabotage(
        "two samples of one key are written",
        PLAN,
        "    refuse_equal_keys(split, [key[PREFIX_BYTES:].decode() for key, _ in members])\n",
        "",
        "tests/test_plan_shards.py::test_two_samples_of_one_key_stop_the_run",
    ),
    Sabotage(
        "a data set that lacks shards is taken for complete",
        COMMIT,
        "if missing := output_files.missing_files(output, manifest):",
        "if missing := output_files.missing_files(output, manifest)[:0]:",
        "tests/test_commit.py::test_a_data_set_with_a_missing_file_is_incomplete",
    ),
    # 2. Same input, same options, same seed: the same bytes.
    Sabotage(
        "the order is Python's hash()",
        "schemas/samples.py",
        "prefixes.append(digest.digest())",
        "prefixes.append((hash(digest.digest()) % 2**64).to_bytes(PREFIX_BYTES))",
        "tests/test_plan_shards.py::test_the_shuffled_order_never_changes",
    ),
    Sabotage(
        "a clock reaches the manifest",
        COMMIT,
        "        features=[*layout.spec.sorted_features],\n",
        "        features=[msgspec.structs.replace(f, doc=f\"{__import__('time').time_ns()}\")"
        " for f in layout.spec.sorted_features],\n",
        "tests/test_commit.py::test_data_sets_do_not_depend_on_paths_or_clocks",
    ),
    Sabotage(
        "the output's path reaches the plan",
        PUBLISH,
        "options=config.options(),",
        'options={**config.options(), "output": config.output},',
        "tests/test_commit.py::test_data_sets_do_not_depend_on_paths_or_clocks",
    ),
    Sabotage(
        "another attempt's file of other content is accepted",
        BUILD_SHARD,
        "    found = output.stat(info.file)\n",
        "    return\n    found = output.stat(info.file)\n",
        "tests/test_write_shards.py::test_a_file_of_equal_size_but_other_bytes_is_a_conflict",
    ),
    Sabotage(
        "a shard is kept although its sources have changed",
        BUILD_SHARD,
        "if hashlib.sha256(read_blob(storage, blob)).hexdigest() == source.sha256:",
        "if read_blob(storage, blob):",
        "tests/test_write_shards.py::test_a_source_with_other_bytes_stops_the_resumed_run",
    ),
    Sabotage(
        "gs://: the CRC-32C of a read is ignored",
        GCS,
        "if crc32c != wanted.crc32c:",
        "if crc32c < 0:",
        "tests/test_storage_gcs.py::test_a_read_of_damaged_bytes_is_repeated",
    ),
    Sabotage(
        "local: a file that was modified since it was listed is read",
        STORAGE,
        "(found.size_bytes, found.pin) != (listed.size_bytes, listed.pin)",
        "found.size_bytes != listed.size_bytes",
        "tests/test_storage_local.py::test_a_change_of_one_nanosecond_is_noticed",
    ),
    Sabotage(
        "a shard is kept whatever its bytes are",
        BUILD_SHARD,
        "        return None\n    _compare_with_existing(info, output)\n",
        "        return None\n",
        "tests/test_write_shards.py::test_a_file_that_is_there_and_differs_is_a_conflict",
    ),
    # 3. Shards are exact.
    Sabotage(
        "the last shards, not the first, hold one more",
        SHARD_TABLE,
        "return base + (index < extra)",
        "return base + (index >= self.planned.shards - extra)",
        "tests/test_plan_shards.py::test_hosts_get_equal_shares_of_records",
    ),
    # 4. A manifest is the commit point.
    Sabotage(
        "gs://: an existing object is replaced",
        GCS,
        "                if_generation_match=0,\n",
        "",
        "tests/test_storage.py::test_of_many_creators_one_succeeds",
    ),
    Sabotage(
        "local: an existing file is replaced",
        LOCAL,
        "            os.link(source, target,",
        "            os.path.exists(target) and os.unlink(target)\n"
        "            os.link(source, target,",
        "tests/test_storage.py::test_leaves_a_taken_name_as_it_is",
    ),
    Sabotage(
        "local: a file gets its name before its bytes are durable",
        LOCAL,
        "            os.fsync(self._file.fileno())\n",
        "",
        "tests/test_storage_local.py::test_bytes_are_synced_before_their_name_and_the_name_after",
    ),
    Sabotage(
        "the manifest is written before the budget is checked",
        COMMIT,
        "    output_files.create_or_compare(output, REJECTED_NAME,",
        "    output_files.create_or_compare(output, MANIFEST_NAME, to_json(manifest))\n"
        "    output_files.create_or_compare(output, REJECTED_NAME,",
        "tests/test_reject_budget.py::test_printed_command_commits_without_reading_an_image",
    ),
    Sabotage(
        "shards are committed without a check of the output",
        COMMIT,
        "    _check_output(shards, output, config.names)\n",
        "",
        "tests/test_commit.py::test_missing_or_foreign_files_prevent_the_manifest",
    ),
    Sabotage(
        "a data file is published before its receipt",
        BUILD_SHARD,
        "    receipt = to_json(info)\n",
        "    exists = exists or pending.publish(info.file)\n    receipt = to_json(info)\n",
        "tests/test_write_shards.py::test_a_file_that_is_there_and_differs_is_a_conflict",
    ),
    Sabotage(
        "an output of another plan is accepted",
        PUBLISH,
        "if data != to_json(plan):",
        "if not data:",
        "tests/test_commit.py::test_another_plan_stops_the_run_and_names_the_difference",
    ),
    Sabotage(
        "--overwrite deletes other people's files",
        FILES,
        "if is_document or name in named or split_in_name(name, names) in wanted:",
        "if name:",
        "tests/test_output_files.py::test_other_files_are_ignored_and_kept",
    ),
    Sabotage(
        "a run that was overwritten goes on to claim shards",
        BUILD_SHARD,
        "    check_claim(output, info.plan)\n",
        "",
        "tests/test_write_shards.py::test_a_run_that_was_overwritten_claims_no_shard",
    ),
    Sabotage(
        "shards are built although the budget is spent",
        PUBLISH,
        "    log_and_check_budget(rejected, tallies, config)\n",
        "",
        "tests/test_commit.py::test_rejects_over_budget_stop_before_the_first_shard_and_are_shown",
    ),
    Sabotage(
        "an output among the sources is written",
        DATA_SET,
        "        self._check_output()\n",
        "",
        "tests/test_paths_given.py::test_an_output_lies_apart_from_all_sources",
    ),
    # 5. Bounded memory.
    Sabotage(
        "the budget of bytes in flight has no limit",
        GATE,
        "self._used + size > self._limit",
        "size < 0",
        "tests/test_gate.py::test_bytes_in_flight_stay_within_the_limit",
    ),
    # 6. Workers never import TensorFlow.
    Sabotage(
        "a worker imports TensorFlow",
        BUILD_SHARD,
        "import google_crc32c\n",
        "import google_crc32c\nimport tensorflow\n",
        "tests/test_imports.py::test_importing_a_package_avoids_heavy_libraries",
    ),
    # 7. Transient trouble is retried, never rejected.
    Sabotage(
        "an image that the storage cannot read is rejected",
        BUILD_RECORDS,
        "    except FrameError as error:  # of a record that holds an image\n",
        "    except (FrameError, RuntimeError) as error:\n",
        "tests/test_write_shards.py::test_a_source_that_changes_before_it_is_read_fails_the_shard",
    ),
    Sabotage(
        "too little memory is a reject",
        BUILD_RECORDS,
        "    except (MemoryError, RecursionError):\n        raise\n",
        "",
        "tests/test_write_shards.py::test_errors_of_the_machine_are_never_rejects",
    ),
    Sabotage(
        "gs://: a busy store ends the run",
        GCS,
        "status in _TRANSIENT_STATUS or status >= 500",
        "status in _TRANSIENT_STATUS",
        "tests/test_storage_gcs.py::test_a_transient_error_is_retried",
    ),
)
