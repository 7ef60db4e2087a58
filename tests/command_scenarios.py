"""What the command does in the situations of its life, on the store in memory.

It is the command's own `execute`, the graph left out: its steps are done one after the other where
Beam would be told of them. So a kill is a kill, and not an exception that a runner wraps up.
"""

import contextlib
import dataclasses
import datetime
import functools
import gc
import io
import json
from collections.abc import Callable, Iterator, Mapping

import apache_beam as beam

from pipelines.coco import CocoConfig
from pipelines.run import RunConfig, execute
from schemas.faults import RejectBudget
from schemas.manifest import REJECTED_NAME
from tests.invariants import MANIFEST, check_output
from tests.memory_runs import FOREIGN, NUM_IMAGES, NUM_SHARDS, make_sources
from tests.memory_store import (
    Disturb,
    Killed,
    MemoryStore,
    Moment,
    Process,
    Step,
    undisturbed,
)
from tests.small_runs import commit_run, plan_run, write_all
from transforms.earlier import Since
from transforms.output_files import EXCLUDED_NAME
from transforms.publish_plan import _publish
from transforms.shard_table import Sharding

OLDER_COPY = b"of an older run"
DAY = datetime.date(2026, 11, 20)
EARLIER = "day-2026-11-19/"


def run_command(
    process: Process,
    *,
    overwrite: bool = False,
    excludes_rejected: bool = False,
    since: str = "",
    out: str = "out",
) -> None:
    """Run the command in a process.

    Args:
        process: where.
        overwrite: as the flag says.
        since: folder of earlier data sets, which `{date}` may stand in; empty for none.
        out: folder of the output.
        excludes_rejected: leave out what the output's `rejected.jsonl` names; where an earlier
            such run has made its copy, the copy, which its messages tell of.
    """
    uri, exclude = process.uri, REJECTED_NAME if excludes_rejected else ""
    if exclude and process.store.files("out/").get(EXCLUDED_NAME, OLDER_COPY) != OLDER_COPY:
        exclude = EXCLUDED_NAME
    config = CocoConfig(
        images={"train": f"{uri}/photos"},
        annotations={"train": [f"{uri}/instances.json"]},
        output=f"{uri}/{out}",
        sharding=Sharding(num_shards={"": NUM_SHARDS}),
        budget=RejectBudget(1),
        exclude=f"{uri}/out/{exclude}" if exclude else "",
    )
    with _collecting_as_before(), contextlib.redirect_stdout(io.StringIO()):
        names = [f"{uri}/{since}"] if since else []
        execute(RunConfig(config, overwrite, since=Since(names, DAY)), [], _build_plainly)


@contextlib.contextmanager
def _collecting_as_before() -> Iterator[None]:
    collecting = gc.get_threshold()
    try:
        yield
    finally:
        gc.set_threshold(*collecting)


def _build_plainly(_: beam.Pipeline, config: CocoConfig) -> None:
    """Do what `pipelines.coco.build` wires."""
    run = plan_run(
        config.images["train"],
        config.annotations["train"],
        config.output,
        NUM_SHARDS,
        exclude=config.exclude,
        budget=config.budget,
        earlier=config.earlier,
    )
    options = config.options()
    job = dataclasses.replace(run.commit_job, plan_options=options, replaces=config.replaces)
    run = dataclasses.replace(run, commit_job=job)
    _publish(run.table, run.files, run.rejected, job)
    commit_run(run, write_all(run))


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A situation, and what the command makes of it.

    Attributes:
        name: for messages.
        run: runs the command in a process.
        prepare: makes the situation.
        besides: what happens on the way anyhow, such as a twin's work.
        twin: runs the same plan beside it.
    """

    name: str
    run: Callable[[Process], None] = run_command
    prepare: Callable[[MemoryStore], None] = lambda store: None
    besides: Callable[[MemoryStore], Disturb] = lambda store: undisturbed
    twin: Callable[[Process], None] = run_command

    def start(self, store: MemoryStore, disturb: Disturb = undisturbed) -> Process:
        """Run the command, disturbed; return its process when it has ended well."""
        anyhow = self.besides(store)

        def both(step: Step, now: Moment) -> None:
            anyhow(step, now)
            disturb(step, now)

        process = store.start(both)
        self.run(process)
        return process


@dataclasses.dataclass(frozen=True)
class Situation:
    """A scenario with the store that it begins with, and the steps that it takes undisturbed.

    Attributes:
        before: of the output, what was there.
        after: of the output, when all is well.
    """

    scenario: Scenario
    store: MemoryStore
    before: Mapping[str, bytes]
    after: Mapping[str, bytes]
    steps: list[Step]

    def check(self, store: MemoryStore) -> bool:
        """Ask the oracle; return whether the data set is committed."""
        files = store.files("out/")
        copied = {EXCLUDED_NAME} if EXCLUDED_NAME in self.after else set()
        older = {name: data for name, data in self.before.items() if files.get(name) == data}
        if MANIFEST not in files:
            return check_output(files, {**self.after, **older}, FOREIGN)
        if files[MANIFEST] == self.after[MANIFEST]:
            return check_output(files, self.after, FOREIGN)
        untouched = {name: data for name, data in files.items() if name not in copied}
        known = {name: data for name, data in self.before.items() if name not in copied}
        return check_output(untouched, known, FOREIGN)


def situation(scenario: Scenario) -> Situation:
    """Make a scenario's situation, and see what comes of it undisturbed."""
    store = make_sources().store.copy()
    scenario.prepare(store)
    trial = store.copy()
    process = scenario.start(trial)
    return Situation(scenario, store, own_files(store), own_files(trial), process.steps)


def own_files(store: MemoryStore) -> dict[str, bytes]:
    """Return what is in the output and not of the user's."""
    return {n: data for n, data in store.files("out/").items() if n not in FOREIGN}


def killed_behind(operation: str, nth: int, store: MemoryStore) -> None:
    """Leave what a run leaves that dies behind its n-th operation of a kind."""
    seen = 0

    def kill(step: Step, now: Moment) -> None:
        nonlocal seen
        seen += step.operation == operation and now is Moment.AFTER
        if seen == nth:
            raise Killed

    with contextlib.suppress(Killed):
        run_command(store.start(kill))


def finished(store: MemoryStore) -> None:
    run_command(store.start())


def finished_with_an_older_copy(store: MemoryStore) -> None:
    finished(store)
    store.put(f"out/{EXCLUDED_NAME}", OLDER_COPY)


def two_days_before(store: MemoryStore) -> None:
    """Leave a data set of half of the images, and a folder that is called like another one."""
    whole = store.files()["instances.json"]
    spec = json.loads(whole)
    spec["images"] = spec["images"][: NUM_IMAGES // 2]
    listed = {image["id"] for image in spec["images"]}
    spec["annotations"] = [a for a in spec["annotations"] if a["image_id"] in listed]
    store.put("instances.json", json.dumps(spec).encode())
    run_command(store.start(), out=EARLIER)
    store.put("instances.json", whole)
    store.put("day-2026-11-18/notes.txt", b"of the user")


def three_shards_of_rewritten_sources(store: MemoryStore) -> None:
    killed_behind("spool.publish", 3, store)
    for name, data in store.files("photos/").items():
        store.put(f"photos/{name}", data)


def at_first(
    is_there: Callable[[Step], bool], moment: Moment, happens: Callable[[Step], object]
) -> Disturb:
    """Return what lets something happen once, at the first such step."""
    left = [True]

    def disturb(step: Step, now: Moment) -> None:
        if left and now is moment and is_there(step):
            left.clear()
            happens(step)

    return disturb


def twin_at(function: str, call: str, nth: int, store: MemoryStore) -> Disturb:
    """Have another run do everything just before a call of ours."""
    wanted = function, call, nth

    def is_there(step: Step) -> bool:
        site = step.site
        return site is not None and (site.function, site.call, site.nth) == wanted

    return at_first(is_there, Moment.BEFORE, lambda step: run_command(store.start()))


OVERWRITE = functools.partial(run_command, overwrite=True)
GROWING = functools.partial(run_command, since="day-{date}")
EXCLUDING = functools.partial(run_command, overwrite=True, excludes_rejected=True)

SCENARIOS = [
    Scenario("a first run"),
    Scenario("a finished run again", prepare=finished),
    Scenario("resumed behind a receipt", prepare=functools.partial(killed_behind, "create", 4)),
    Scenario("resumed, sources rewritten in between", prepare=three_shards_of_rewritten_sources),
    Scenario(
        "a twin is faster",
        besides=functools.partial(twin_at, "_commit_shard", "spool.publish", 1),
    ),
    Scenario(
        "a twin claims the output first",
        besides=functools.partial(twin_at, "top_level", "output.list", 1),
    ),
    Scenario("--overwrite", OVERWRITE, prepare=finished),
    Scenario(
        "--overwrite behind an index",
        OVERWRITE,
        prepare=functools.partial(killed_behind, "create", 4),
    ),
    Scenario("--overwrite without the rejected", EXCLUDING, prepare=finished),
    Scenario("the same, with an older copy there", EXCLUDING, prepare=finished_with_an_older_copy),
    Scenario("--since", GROWING, prepare=two_days_before, twin=GROWING),
]
