"""Kill, fail, double and delay runs on the store in memory at any step: see `CHAOS.md`."""

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from beam_tfrec.schemas.faults import FAULTS, find_fault
from beam_tfrec.schemas.shards import ShardNames
from beam_tfrec.transforms.output_files import remove_output
from beam_tfrec.transforms.storage import open_storage
from tests.invariants import check_committed, check_output, check_visible, data_files
from tests.memory_runs import FOREIGN, NUM_SHARDS, Sources, make_sources, plan_on, run_on
from tests.memory_store import (
    Disturb,
    Killed,
    MemoryStore,
    Moment,
    Process,
    Step,
    fail_at,
    kill_at,
    lose_reply_of,
    meanwhile_at,
    undisturbed,
)
from tests.small_runs import build_shards

pytestmark = pytest.mark.thorough

STEPS_OF_A_RUN = 81  # plan 5, claim the output 6, each shard 11 and 1 an image, commit 16
STEPS = range(1, STEPS_OF_A_RUN + 1)
MOMENTS = list(Moment)
ENDS = [*((number, Moment.BEFORE) for number in STEPS), (STEPS_OF_A_RUN, Moment.AFTER)]
"""Where a run may end or wait. After a step is where the next one begins."""
OTHERS = {"other seed": {"seed": 1}, "fewer shards": {"num_shards": 3}}


@pytest.fixture(scope="module")
def sources(memory_served: None) -> Sources:
    return make_sources()


@pytest.fixture(scope="module", params=OTHERS.values(), ids=OTHERS)
def other(request: pytest.FixtureRequest, memory_served: None) -> tuple[dict[str, int], Sources]:
    """Another plan for the same output, and its undisturbed output."""
    return request.param, make_sources(**request.param)


def seeds(few: int, blocks: int) -> list[Any]:
    """Return blocks of seeds: a few for `make test-all`, hundreds for `make chaos`."""
    many = (range(1000 + 100 * block, 1100 + 100 * block) for block in range(blocks))
    marked = (pytest.param(block, marks=pytest.mark.chaos, id=f"{block[0]}") for block in many)
    return [pytest.param(range(few), id="few"), *marked]


def kill_run(store: MemoryStore, number: int, moment: Moment) -> bool:
    """Run, and die at a step; return False if the run ended before it."""
    try:
        run_on(store.start(kill_at(number, moment)))
    except Killed:
        return True
    return False


def photos_read(process: Process) -> list[str]:
    return sorted(s.name for s in process.steps if s.operation == "read" and "jpg" in s.name)


def check_resumes(sources: Sources, store: MemoryStore) -> None:
    """Check the output, run again and compare; finished shards must not be built again."""
    sources.check(store)
    there = data_files(store.files("out/"))
    shards = plan_on(store.start()).shards
    missing = [shard for shard in shards if not any(name.startswith(shard.name) for name in there)]
    process = store.start()
    run_on(process)
    assert sources.check(store)
    to_read = sorted(sample.blobs[0].name for shard in missing for sample in shard.samples)
    assert photos_read(process) == to_read


def test_a_run_has_the_expected_number_of_steps(sources: Sources) -> None:
    assert sources.steps == STEPS_OF_A_RUN
    assert len(sources.undisturbed) == NUM_SHARDS * 4 + 10


def test_resumes_after_a_kill_at_any_step(sources: Sources) -> None:
    for number, moment in ENDS:
        store = sources.store.copy()
        assert kill_run(store, number, moment)
        check_resumes(sources, store)


FIRST_KILLS = [
    pytest.param(number, marks=() if number in (30, 60) else pytest.mark.chaos) for number in STEPS
]


@pytest.mark.parametrize("first", FIRST_KILLS)
def test_resumes_after_two_kills_at_any_steps(first: int, sources: Sources) -> None:
    left = sources.store.copy()
    assert kill_run(left, first, Moment.BEFORE)
    for second in itertools.count(1):
        store = left.copy()
        killed = kill_run(store, second, Moment.BEFORE)
        check_resumes(sources, store)
        if not killed:
            assert second > 10
            break


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_step_that_fails_ends_the_run_with_its_code(moment: Moment, sources: Sources) -> None:
    """It rejects nothing, and the next run completes."""
    for number in STEPS:
        store, code = sources.store.copy(), ("E-IO-RETRIES", "E-IO-AUTH")[number % 2]
        with pytest.raises(RuntimeError) as raised:
            run_on(store.start(fail_at(number, moment, code)))
        assert str(raised.value).startswith(f"{code} ")
        assert FAULTS[code].exit_code == 6
        check_resumes(sources, store)


def test_a_lost_reply_changes_nothing(sources: Sources) -> None:
    for number in STEPS:
        store = sources.store.copy()
        run_on(store.start(lose_reply_of(number)))
        assert sources.check(store)


class Turns:
    """Lets one runner move at a time; runners are numbers from 0."""

    def __init__(self, choose: random.Random, runners: int) -> None:
        self._choose = choose
        self._moving = set(range(runners))
        self._waiting: set[int] = set()
        self._changed = threading.Condition()  # its lock may be taken twice

    def wait(self, me: int) -> None:
        """Stop at a step until it is this runner's turn."""
        with self._changed:
            self._waiting.add(me)
            self.leave(me)
            if not self._changed.wait_for(lambda: me in self._moving, timeout=60):
                raise TimeoutError(f"runner {me} waits for a turn that never comes")

    def leave(self, me: int) -> None:
        """Stop moving; if no other runner moves, let one of the waiting ones move."""
        with self._changed:
            self._moving.discard(me)
            if not self._moving and self._waiting:
                picked = self._choose.choice(sorted(self._waiting))
                self._waiting.discard(picked)
                self._moving.add(picked)
                self._changed.notify_all()


def interleave(
    seed: int, jobs: Sequence[Callable[[Disturb], Any]], disturb: Sequence[Disturb] = ()
) -> list[Any]:
    """Run all jobs; return what each returned, or the exception that ended it.

    Args:
        seed: decides the order of their steps.
        jobs: what to run.
        disturb: a further disturbance for each job.
    """
    turns = Turns(random.Random(seed), len(jobs))

    def run(me: int) -> Any:
        further = disturb[me] if disturb else undisturbed

        def at(step: Step, now: Moment) -> None:
            if now is Moment.BEFORE:
                turns.wait(me)
            further(step, now)

        try:
            return jobs[me](at)
        except BaseException as error:
            return error
        finally:
            turns.leave(me)

    with ThreadPoolExecutor(len(jobs)) as threads:
        return [*threads.map(run, range(len(jobs)))]


def whole_run(store: MemoryStore) -> Callable[[Disturb], Any]:
    return lambda disturb: run_on(store.start(disturb))


@pytest.mark.parametrize("block", seeds(few=30, blocks=20))
def test_processes_can_write_the_same_shards_at_once(block: range, sources: Sources) -> None:
    """Processes with the same plan write all its shards at the same time."""
    for seed in block:
        store = sources.store.copy()

        def write(disturb: Disturb, store: MemoryStore = store) -> Any:
            return build_shards(plan_on(store.start(disturb)))

        first, *others = interleave(seed, [write] * (2 + seed % 3))
        assert all(infos == first for infos in others), others
        assert check_visible(store.files("out/")) == NUM_SHARDS
        assert not check_output(store.files("out/"), sources.undisturbed, FOREIGN)


@pytest.mark.parametrize("block", seeds(few=15, blocks=10))
def test_a_killed_run_does_not_stop_the_others(block: range, sources: Sources) -> None:
    """One of three runs of the same plan is killed at any step."""
    for seed in block:
        store = sources.store.copy()
        choose = random.Random(seed)
        killer = kill_at(choose.choice(STEPS), choose.choice(MOMENTS))
        dead, *alive = interleave(seed, [whole_run(store)] * 3, [killer, undisturbed, undisturbed])
        assert isinstance(dead, Killed) or dead == alive[0]
        assert alive[0] == alive[1]
        assert sources.check(store)


def check_rivals(seed: int, sources: Sources, other: tuple[dict[str, int], Sources]) -> int:
    """Let two plans claim one output at the same time; return which one wins."""
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
    assert photos_read(processes[loser]) == [], "the loser has begun a shard"
    assert (sources, others)[1 - loser].check(store)
    return 1 - loser


@pytest.mark.parametrize("block", seeds(few=15, blocks=5))
def test_one_of_two_plans_wins(
    block: range, sources: Sources, other: tuple[dict[str, int], Sources]
) -> None:
    assert {check_rivals(seed, sources, other) for seed in block} == {0, 1}


def test_a_zombie_changes_nothing(sources: Sources) -> None:
    """It pauses at a step until another run of its plan has committed."""
    for number, moment in ENDS:
        store = sources.store.copy()
        committed: dict[str, Any] = {}

        def another_run(store: MemoryStore = store, committed: dict[str, Any] = committed) -> None:
            run_on(store.start())
            assert sources.check(store)
            committed |= store.objects()

        run_on(store.start(meanwhile_at(number, moment, another_run)))
        assert store.objects() == committed, "an object was replaced, or has another generation"
        assert committed


def overwrite(process: Process, **planned: int) -> None:
    """Overwrite the output with another plan, as `--overwrite` does."""
    replaces = remove_output(open_storage(f"{process.uri}/out"), ShardNames(), ["train"])
    run_on(process, replaces=replaces, **planned)


def test_a_zombie_does_not_change_another_data_set(
    sources: Sources, other: tuple[dict[str, int], Sources]
) -> None:
    """It pauses at a step until `--overwrite` has replaced its output with another plan's.

    The committed files do not change, and the zombie does not report success. It may leave
    complete files of its own under names that the other plan does not use.
    """
    planned, others = other
    for number, moment in ENDS:
        store = sources.store.copy()
        happens = meanwhile_at(number, moment, lambda s=store: overwrite(s.start(), **planned))
        (outcome,) = interleave(0, [lambda _, s=store, d=happens: run_on(s.start(d))])
        if (number, moment) == (STEPS_OF_A_RUN, Moment.AFTER):
            assert not isinstance(outcome, Exception), "it had already finished"
        else:
            code, _ = find_fault(str(outcome))
            assert FAULTS[code].exit_code == 5, code
        files = store.files("out/")
        committed = {name: files.pop(name) for name in others.undisturbed}
        assert committed == others.undisturbed
        check_committed(committed)
        for name in files.keys() - FOREIGN.keys():
            assert files[name] == sources.undisturbed.get(name), f"{name} is from neither run"


SHARD, STEM = "train-00001-of-00004-3.tfrec", "train-00001-of-00004"
RECEIPT = f"_receipts/{STEM}.json"


def spoil(name: str, edit: Callable[[bytes], bytes]) -> Callable[[dict[str, bytes]], object]:
    return lambda files: files.update({name: edit(files[name])})


def drop(*names: str) -> Callable[[dict[str, bytes]], object]:
    return lambda files: [files.pop(name) for name in names]


BROKEN = [
    (spoil(SHARD, lambda data: data[:-1]), "cut off|4: train"),
    (spoil(SHARD, lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]), "of a record"),
    (drop(RECEIPT), "has no receipt"),
    (spoil(RECEIPT, lambda data: data.replace(b'"planned": 3', b'"planned": 4')), "1: train-00"),
    (spoil(RECEIPT, lambda data: data + b" "), "2: _rec"),
    (lambda files: files.update(stray=b""), "4: stray is left over"),
    (drop("notes.txt"), "4: notes.txt of the user"),
    (drop(SHARD, RECEIPT), "4: shards, receipts"),
    (drop("features.json"), "not all its files"),
    (spoil(f"index/{STEM}-3.idx", lambda data: b"9" + data), f"2: index/{STEM}-3.idx"),
]


@pytest.mark.parametrize(("breaks", "message"), BROKEN)
def test_the_checks_find_broken_outputs(
    breaks: Callable[[dict[str, bytes]], object], message: str, sources: Sources
) -> None:
    files = {**sources.undisturbed, **FOREIGN}
    assert check_output(files, sources.undisturbed, FOREIGN)
    breaks(files)
    with pytest.raises(AssertionError, match=message):
        check_output(files, sources.undisturbed, FOREIGN)
