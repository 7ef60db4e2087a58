"""Every storage call of our code meets every outcome: the table of `tests/fault_table.py`, run."""

import functools
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest

from schemas.faults import FAULTS, fault_line, find_fault
from tests.call_sites import Site, call_sites
from tests.coco_command import Run, run_coco
from tests.command_scenarios import (
    EARLIER,
    SCENARIOS,
    Scenario,
    Situation,
    at_first,
    own_files,
    run_command,
    situation,
)
from tests.conftest import jpeg_bytes
from tests.fault_table import Outcome, as_markdown, cell_name, cells
from tests.invariants import check_output
from tests.memory_runs import FOREIGN, make_sources
from tests.memory_store import (
    Disturb,
    Killed,
    MemoryStore,
    Moment,
    Process,
    ReplyLost,
    Step,
    kill_at,
)

CHAOS_MD = Path(__file__).with_name("CHAOS.md")
CELLS = list(cells())


@pytest.fixture(scope="module")
def situation_of(memory_served: None) -> Callable[[Site], Situation]:
    """Finds the first situation in which the command comes by a call site."""
    make = functools.cache(situation)

    def find(site: Site) -> Situation:
        for scenario in SCENARIOS:
            if any(step.site == site for step in make(scenario).steps):
                return make(scenario)
        raise AssertionError(f"no scenario comes by {site}: add one to tests/command_scenarios.py")

    return find


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    logging.disable(logging.INFO)
    yield
    logging.disable(logging.NOTSET)


def raises(error: BaseException) -> Callable[[Step], None]:
    def act(_: Step) -> None:
        raise error

    return act


def fails(code: str) -> Callable[[Step], None]:
    return raises(RuntimeError(fault_line(code, "somewhere", "injected", "run again to resume")))


OTHER_IMAGE = jpeg_bytes(color=99)


def act_of(
    outcome: Outcome, place: Situation, store: MemoryStore
) -> tuple[Moment, Callable[[Step], object]]:
    """Return when something happens to a call, and what."""

    def take(step: Step, spoil: bytes = b"") -> None:
        store.create(f"out/{step.name}", place.after[step.name] + spoil)

    def change(step: Step) -> None:
        folders = {".jpg": "photos/", ".parquet": EARLIER}
        store.put(folders.get(PurePath(step.name).suffix, "") + step.name, OTHER_IMAGE)

    before, after = Moment.BEFORE, Moment.AFTER
    return {
        Outcome.DONE: (before, lambda step: None),
        Outcome.KILLED_BEFORE: (before, raises(Killed())),
        Outcome.KILLED_AFTER: (after, raises(Killed())),
        Outcome.GIVEN_UP: (before, fails("E-IO-RETRIES")),
        Outcome.REFUSED: (before, fails("E-IO-AUTH")),
        Outcome.REPLY_LOST: (after, raises(ReplyLost())),
        Outcome.STANDS_STILL: (before, lambda step: place.scenario.twin(store.start())),
        Outcome.TAKEN_BY_TWIN: (before, take),
        Outcome.TAKEN_BY_OTHER: (before, lambda step: take(step, b"of another")),
        Outcome.CHANGED: (before, change),
    }[outcome]


ENDS_WITH = {
    Outcome.GIVEN_UP: {"E-IO-RETRIES"},
    Outcome.REFUSED: {"E-IO-AUTH"},
    Outcome.TAKEN_BY_OTHER: {"E-OUT-CONFLICT", "E-OUT-PLAN", "E-OUT-FOREIGN"},
    Outcome.CHANGED: {"E-SRC-CHANGED"},
}
KILLS = (Outcome.KILLED_BEFORE, Outcome.KILLED_AFTER)


@pytest.mark.cell
@pytest.mark.parametrize(("site", "outcome"), CELLS, ids=[cell_name(*cell) for cell in CELLS])
def test_a_cell(
    site: Site,
    outcome: Outcome,
    situation_of: Callable[[Site], Situation],
    record_property: Callable[[str, Any], None],
) -> None:
    place = situation_of(site)
    store = place.store.copy()
    met: list[Step] = []
    moment, act = act_of(outcome, place, store)

    def happens(step: Step) -> None:
        met.append(step)
        act(step)

    disturb = at_first(lambda step: step.site == site, moment, happens)
    ended = how_it_ends(place.scenario, store, disturb)

    assert len(met) == 1
    if outcome in KILLS:
        assert isinstance(ended, Killed)
    elif outcome in ENDS_WITH:
        code, _ = find_fault(str(ended))
        assert code in ENDS_WITH[outcome]
        assert FAULTS[code].exit_code in (5, 6)
    else:
        assert ended is None
    check_what_is_left(outcome, met[0], place, store)
    record_property("cell", cell_name(site, outcome))


def how_it_ends(scenario: Scenario, store: MemoryStore, disturb: Disturb) -> BaseException | None:
    try:
        scenario.start(store, disturb)
    except (RuntimeError, Killed) as error:
        return error
    return None


def check_what_is_left(outcome: Outcome, met: Step, place: Situation, store: MemoryStore) -> None:
    """Check the output, and that the next run completes it where nothing foreign is in its way."""
    if outcome is Outcome.TAKEN_BY_OTHER:
        other = f"out/{met.name}"
        assert store.files()[other].endswith(b"of another"), "another's file was touched"
        store.remove(other)
    is_committed = place.check(store)
    if outcome not in (*KILLS, *ENDS_WITH):
        assert is_committed
    if outcome is Outcome.CHANGED:
        assert not is_committed
        return
    place.scenario.run(store.start())
    assert place.check(store)
    assert store.files("out/")["manifest.json"] == place.after["manifest.json"]


@pytest.mark.chaos
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_command_killed_at_every_step(scenario: Scenario, memory_served: None) -> None:
    """Not only at the first of the calls from one place, as the table has it."""
    place = situation(scenario)
    for step in place.steps:
        store = place.store.copy()
        with pytest.raises(Killed):
            scenario.start(store, kill_at(step.number, Moment.AFTER))
        place.check(store)
        scenario.run(store.start())
        assert place.check(store)


def convert(process: Process) -> Run:
    """Run the whole command, Beam and all, in a simulated process."""
    uri = process.uri
    return run_coco(
        *("--images", f"{uri}/photos", "--annotations", f"{uri}/instances.json"),
        *("--output", f"{uri}/out", "--num_shards", 4, "--max_rejected", 1),
    )


@pytest.mark.parametrize(
    ("code", "every"),
    [
        ("E-IO-RETRIES", 9),
        pytest.param("E-IO-RETRIES", 1, marks=pytest.mark.chaos),
        pytest.param("E-IO-AUTH", 1, marks=pytest.mark.chaos),
    ],
)
def test_the_whole_command_ends_with_the_code_of_a_call_that_fails(
    code: str, every: int, memory_served: None
) -> None:
    """Through threads, bundles and a runner that wraps exceptions up."""
    sources, trial = make_sources().store, make_sources().store
    process = trial.start()
    assert convert(process).code == 0
    undisturbed = own_files(trial)
    sites = dict.fromkeys(step.site for step in process.steps if step.site is not None)
    assert len(sites) > 20

    for site in list(sites)[::every]:
        store = sources.copy()
        disturb = at_first(lambda step, s=site: step.site == s, Moment.BEFORE, fails(code))
        run = convert(store.start(disturb))

        assert run.code == 6
        assert run.err.count(code) == 1
        check_output(store.files("out/"), undisturbed, FOREIGN)
        assert convert(store.start()).code == 0
        assert check_output(store.files("out/"), undisturbed, FOREIGN)


def test_the_note_of_a_run_that_was_overwritten_says_nothing_of_the_data_set_there(
    memory_served: None,
) -> None:
    """It was to note that it is complete when another one had made the output of other sources."""
    store = make_sources().store.copy()
    old = store.files()["instances.json"]

    def overwrite_with_others(_: Step) -> None:
        spec = json.loads(old)
        spec["annotations"][0]["bbox"][2] += 1
        store.put("instances.json", json.dumps(spec).encode())
        run_command(store.start(), overwrite=True)

    noting = at_first(
        lambda step: step.name.startswith("_sources/"), Moment.BEFORE, overwrite_with_others
    )
    with pytest.raises(RuntimeError, match=r"^E-OUT-PLAN \S*: _plan\.json is of another run"):
        run_command(store.start(noting))
    store.put("instances.json", old)

    with pytest.raises(RuntimeError, match=r"^E-OUT-PLAN "):  # and not 'already complete'
        run_command(store.start())


def test_the_table_is_told_as_it_is() -> None:
    """`tests/CHAOS.md` holds the table: `python -m tests.fault_table` prints it anew."""
    assert as_markdown() in CHAOS_MD.read_text()


def test_no_call_site_is_left_out() -> None:
    assert {site for site, _ in CELLS} == set(call_sites().values())
    assert len(call_sites()) > 40
