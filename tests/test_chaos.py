"""No fault loses data: runs on the store in memory, killed, failed, doubled and delayed anywhere.

What each may leave is what the oracle says (`tests/invariants.py`). The sweeps that `make test` has
no time for are marked `chaos`; what is covered, and what is not, is told in `tests/CHAOS.md`.
"""

import itertools
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from schemas.faults import FAULTS, find_fault
from schemas.shards import ShardNames
from tests.conftest import coco_dict, jpeg_bytes
from tests.interleaving import interleave
from tests.invariants import (
    check_committed,
    check_output,
    check_visible,
    data_files,
)
from tests.memory_runs import (
    FOREIGN,
    NUM_IMAGES,
    NUM_SHARDS,
    Sources,
    make_sources,
    plan_on,
    run_on,
)
from tests.memory_store import (
    Disturb,
    Killed,
    MemoryStore,
    Moment,
    Process,
    fail_at,
    kill_at,
    lose_reply_of,
    meanwhile_at,
)
from tests.small_runs import batch_samples, build_shards, place_samples
from transforms.output_files import remove_output
from transforms.shard_table import Sharding
from transforms.storage import open_storage

STEPS_OF_A_RUN = 81
"""Steps of a run of 10 images into 4 shards, from the listing of its images to its manifest.

To plan 5, to claim the output 6, a shard 11 and one an image, to commit 14.
"""
STEPS = range(1, STEPS_OF_A_RUN + 1)
MOMENTS = list(Moment)
OTHERS = {"other seed": {"seed": 1}, "fewer shards": {"num_shards": 3}}


@pytest.fixture(scope="module")
def sources(memory_served: None) -> Sources:
    return make_sources()


@pytest.fixture(scope="module", params=OTHERS.values(), ids=OTHERS)
def other(request: pytest.FixtureRequest, memory_served: None) -> tuple[dict[str, int], Sources]:
    """Another plan for the same output, and what it makes."""
    return request.param, make_sources(**request.param)


def seeds(few: int, blocks: int) -> list[Any]:
    """Return blocks of seeds: a few for `make test`, hundreds for `make chaos`."""
    many = (range(1000 + 100 * block, 1100 + 100 * block) for block in range(blocks))
    marked = (pytest.param(block, marks=pytest.mark.chaos, id=f"{block[0]}") for block in many)
    return [pytest.param(range(few), id="few"), *marked]


def kill_run(store: MemoryStore, number: int, moment: Moment) -> bool:
    """Run until a step kills; return whether it did, and not the run's end came first."""
    try:
        run_on(store.start(kill_at(number, moment)))
    except Killed:
        return True
    return False


def photos_read(process: Process) -> list[str]:
    return sorted(s.name for s in process.steps if s.operation == "read" and "jpg" in s.name)


def photos_of_shards_missing(sources: Sources, store: MemoryStore) -> list[str]:
    """Return the images of the shards whose file is not there."""
    there = data_files(store.files("out/"))
    shards = plan_on(store.start()).shards
    missing = [shard for shard in shards if not any(name.startswith(shard.name) for name in there)]
    return sorted(sample.blobs[0].name for shard in missing for sample in shard.samples)


def check_resumes(sources: Sources, store: MemoryStore) -> None:
    """Check what is there, run again, and compare; finished shards are not built again."""
    sources.check(store)
    to_read = photos_of_shards_missing(sources, store)
    process = store.start()
    run_on(process)
    assert sources.check(store)
    assert photos_read(process) == to_read


# --- killed ---


def test_a_run_takes_as_many_steps_as_there_are_kills(sources: Sources) -> None:
    assert sources.steps == STEPS_OF_A_RUN
    assert len(sources.undisturbed) == NUM_SHARDS * 4 + 10


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_every_step(moment: Moment, sources: Sources) -> None:
    for number in STEPS:
        store = sources.store.copy()
        assert kill_run(store, number, moment)
        check_resumes(sources, store)


def check_killed_twice(sources: Sources, first: MemoryStore, second: int, moment: Moment) -> bool:
    """Kill the run that resumes too; return whether its end did not come first."""
    store = first.copy()
    killed = kill_run(store, second, moment)
    check_resumes(sources, store)
    return killed


@pytest.mark.parametrize("seed", range(2))
def test_killed_twice(seed: int, sources: Sources) -> None:
    choose = random.Random(seed)
    for _ in range(50):
        store = sources.store.copy()
        assert kill_run(store, choose.choice(STEPS), choose.choice(MOMENTS))
        check_killed_twice(sources, store, choose.choice(STEPS), choose.choice(MOMENTS))


@pytest.mark.chaos
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("first", STEPS)
def test_killed_at_every_pair_of_steps(first: int, moment: Moment, sources: Sources) -> None:
    store = sources.store.copy()
    assert kill_run(store, first, moment)
    for second in itertools.count(1):
        if not check_killed_twice(sources, store, second, moment):
            assert second > 10
            break


# --- failed ---


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("code", ["E-IO-RETRIES", "E-IO-AUTH"])
def test_a_step_that_fails_ends_the_run_with_its_code(
    code: str, moment: Moment, sources: Sources
) -> None:
    """Nothing is rejected for it, and the next run completes."""
    for number in STEPS:
        store = sources.store.copy()
        with pytest.raises(RuntimeError) as raised:
            run_on(store.start(fail_at(number, moment, code)))
        assert str(raised.value).startswith(f"{code} ")
        assert FAULTS[code].exit_code == 6
        check_resumes(sources, store)


def test_a_reply_that_is_lost_changes_nothing(sources: Sources) -> None:
    for number in STEPS:
        store = sources.store.copy()
        run_on(store.start(lose_reply_of(number)))
        assert sources.check(store)


# --- twins ---


def whole_run(store: MemoryStore, **planned: int) -> Callable[[Disturb], Any]:
    return lambda disturb: run_on(store.start(disturb), **planned)


@pytest.mark.parametrize("block", seeds(few=30, blocks=20))
def test_twins_of_shards(block: range, sources: Sources) -> None:
    """Processes that hold one plan write all its shards at once."""
    for seed in block:
        store = sources.store.copy()

        def write(disturb: Disturb, store: MemoryStore = store) -> Any:
            return build_shards(plan_on(store.start(disturb)))

        first, *others = interleave(seed, [write] * (2 + seed % 3))
        assert all(infos == first for infos in others), others
        assert check_visible(store.files("out/")) == NUM_SHARDS
        assert not check_output(store.files("out/"), sources.undisturbed, FOREIGN)


@pytest.mark.parametrize("block", seeds(few=15, blocks=10))
def test_twin_runs_of_one_plan(block: range, sources: Sources) -> None:
    for seed in block:
        store = sources.store.copy()
        first, second = interleave(seed, [whole_run(store)] * 2)
        assert first == second
        assert sources.check(store)


@pytest.mark.parametrize("block", seeds(few=10, blocks=5))
def test_a_killed_twin_does_not_stop_the_others(block: range, sources: Sources) -> None:
    """One of three runs is killed anywhere."""
    for seed in block:
        store = sources.store.copy()
        choose = random.Random(seed)
        killer = kill_at(choose.choice(STEPS), choose.choice(MOMENTS))
        undisturbed = [lambda step, now: None] * 2
        dead, *alive = interleave(seed, [whole_run(store)] * 3, [killer, *undisturbed])
        assert isinstance(dead, Killed) or dead == alive[0]
        assert alive[0] == alive[1]
        assert sources.check(store)


def check_rivals(seed: int, sources: Sources, other: tuple[dict[str, int], Sources]) -> int:
    """Have two plans claim one output at once; return which of them has won."""
    store = sources.store.copy()
    processes = [store.start(), store.start()]
    planned, others = other

    def run(place: int, **planned: int) -> Callable[[Disturb], Any]:
        def job(disturb: Disturb) -> Any:
            processes[place] = store.start(disturb)
            return run_on(processes[place], **planned)

        return job

    outcomes = interleave(seed, [run(0), run(1, **planned)])
    (loser,) = (place for place in (0, 1) if isinstance(outcomes[place], Exception))
    code, _ = find_fault(str(outcomes[loser]))
    assert (code, FAULTS[code].exit_code) == ("E-OUT-PLAN", 5)
    assert photos_read(processes[loser]) == [], "it has begun a shard"
    assert (sources, others)[1 - loser].check(store)
    return 1 - loser


@pytest.mark.parametrize("block", seeds(few=15, blocks=5))
def test_of_two_plans_one_wins(
    block: range, sources: Sources, other: tuple[dict[str, int], Sources]
) -> None:
    assert {check_rivals(seed, sources, other) for seed in block} == {0, 1}


# --- zombies: a writer that stands still while the world goes on ---


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_zombie_changes_nothing(moment: Moment, sources: Sources) -> None:
    """It wakes when another run of its plan has committed."""
    for number in STEPS:
        store = sources.store.copy()
        committed: dict[str, Any] = {}

        def another_run(store: MemoryStore = store, committed: dict[str, Any] = committed) -> None:
            run_on(store.start())
            assert sources.check(store)
            committed |= store.objects()

        run_on(store.start(meanwhile_at(number, moment, another_run)))
        assert store.objects() == committed, "an object is another one, if only by generation"
        assert committed


def overwrite(process: Process, **planned: int) -> None:
    """Do what `--overwrite` does, by another plan."""
    replaces = remove_output(open_storage(f"{process.uri}/out"), ShardNames(), ["train"])
    run_on(process, replaces=replaces, **planned)


def check_stray(files: Mapping[str, bytes], mine: Mapping[str, bytes]) -> None:
    """Check that every extra file in the output is a whole file of another run."""
    for name, data in files.items():
        assert mine.get(name) == data, f"{name} is neither of the one run nor of the other"


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_zombie_wakes_in_another_data_set(
    moment: Moment, sources: Sources, other: tuple[dict[str, int], Sources]
) -> None:
    """It wakes when `--overwrite` has put another plan in its place.

    What that run committed stays as it is, and the zombie does not say that it succeeded. It may
    leave whole files of its own under names that the other plan does not use.
    """
    planned, others = other
    for number in STEPS:
        store = sources.store.copy()
        happens = meanwhile_at(number, moment, lambda s=store: overwrite(s.start(), **planned))
        outcome = outcome_of(lambda s=store, d=happens: run_on(s.start(d)))
        if (number, moment) == (STEPS_OF_A_RUN, Moment.AFTER):
            assert not isinstance(outcome, Exception), "it was done before"
        else:
            code, _ = find_fault(str(outcome))
            assert FAULTS[code].exit_code == 5, code
        files = store.files("out/")
        committed = {name: files.pop(name) for name in others.undisturbed}
        assert committed == others.undisturbed
        check_committed(committed)
        check_stray({n: d for n, d in files.items() if n not in FOREIGN}, sources.undisturbed)


def outcome_of(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except RuntimeError as error:
        return error


def check_overwritten_meanwhile(
    seed: int, sources: Sources, other: tuple[dict[str, int], Sources]
) -> bool:
    """Have one run overwrite what another one is about to finish; return whether both failed.

    A bucket has no locks, so the run that does not notice may find its data set gone. But the run
    that overwrites fails unless the output is its own data set, whole. No file is ever there that
    is not a whole file of one of the two runs.
    """
    planned, others = other
    store = sources.store.copy()
    if seed % 2:  # the run's shards are there, it has but to look at them
        run_on(store.start())
    old, new = interleave(
        seed, [whole_run(store), lambda disturb: overwrite(store.start(disturb), **planned)]
    )
    again = store.copy()
    overwrite(again.start(), **planned)
    assert others.check(again), "what is left cannot be overwritten"
    files = store.files("out/")
    for outcome in (old, new):
        if isinstance(outcome, Exception):
            code, _ = find_fault(str(outcome))
            assert code.startswith("E-OUT-") or code == "E-SRC-CHANGED", outcome
    for name in files.keys() - FOREIGN.keys():
        assert files[name] in (sources.undisturbed.get(name), others.undisturbed.get(name)), name
    if not isinstance(new, Exception):
        assert others.undisturbed.items() <= files.items()
        check_committed({name: files[name] for name in others.undisturbed})
    elif not isinstance(old, Exception) and "E-OUT-PLAN" in str(new):
        assert sources.check(store)
    return isinstance(new, Exception) and isinstance(old, Exception)


@pytest.mark.parametrize("block", seeds(few=15, blocks=5))
def test_overwritten_under_way(
    block: range, sources: Sources, other: tuple[dict[str, int], Sources]
) -> None:
    noticed = {check_overwritten_meanwhile(seed, sources, other) for seed in block}
    assert noticed == {False, True}


# --- sources that change between two executions of a step ---


def gone(store: MemoryStore) -> None:
    store.remove("photos/a004.jpg")


def new(store: MemoryStore) -> None:
    spec = coco_dict(NUM_IMAGES + 1)
    store.put("instances.json", json.dumps(spec).encode())
    store.put(f"photos/{spec['images'][-1]['file_name']}", jpeg_bytes(color=99))


def another(store: MemoryStore) -> None:
    store.put("photos/a004.jpg", jpeg_bytes(color=99))


def emptied(store: MemoryStore) -> None:
    store.put("photos/a004.jpg", b"")


def annotated_otherwise(store: MemoryStore) -> None:
    spec = json.loads(store.files()["instances.json"])
    spec["annotations"][0]["bbox"][2] += 1
    store.put("instances.json", json.dumps(spec).encode())


@pytest.mark.parametrize("is_late", [False, True], ids=["counted, then changed", "changed back"])
@pytest.mark.parametrize("change", [gone, new, another, emptied, annotated_otherwise])
def test_samples_that_are_not_those_counted_stop_the_run(
    change: Callable[[MemoryStore], None], is_late: bool, sources: Sources
) -> None:
    """A runner executed a step twice, and the second time it saw other sources."""
    store, later = sources.store.copy(), sources.store.copy()
    change(later)
    counted, ranked = plan_on(store.start()), plan_on(later.start())
    if is_late:
        store, counted, ranked = later, ranked, counted
    sharding = Sharding(num_shards={"": NUM_SHARDS})
    samples = [sample for shard in ranked.shards for sample in shard.samples]
    batches = batch_samples(samples, sharding, ranked.job.layout)

    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED "):
        place_samples(batches, counted.table, sharding)
