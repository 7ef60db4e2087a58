"""The simulated store keeps the contract of a storage, and disturbs as it is told."""

import pytest

from tests.memory_store import (
    Killed,
    MemoryStore,
    Moment,
    Process,
    fail_at,
    kill_at,
    lose_reply_of,
    meanwhile_at,
)
from transforms.storage import open_storage

pytestmark = pytest.mark.usefixtures("memory_served")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def create_a(process: Process) -> bool:
    return open_storage(process.uri).create("a", b"1")


def test_every_operation_is_a_step(store: MemoryStore) -> None:
    store.put("a", b"1")
    process = store.start()
    storage = open_storage(process.uri)

    storage.probe()
    storage.require_folder()
    list(storage.list())
    storage.read("a", storage.stat("a"))
    storage.crc32c("a")
    storage.create("b", b"2")
    spool = storage.spool()
    spool.write([b"3"])
    spool.publish("c")
    spool.close()
    storage.delete("a")

    operations = "probe require_folder list stat read crc32c create spool spool.write"
    operations += " spool.publish spool.close delete"
    assert [step.operation for step in process.steps] == operations.split()
    assert [step.number for step in process.steps] == list(range(1, 13))


@pytest.mark.parametrize(("moment", "files"), [(Moment.BEFORE, {}), (Moment.AFTER, {"a": b"1"})])
def test_a_killed_process_does_nothing_more(
    store: MemoryStore, moment: Moment, files: dict[str, bytes]
) -> None:
    process = store.start(kill_at(1, moment))

    for act in (create_a, create_a, lambda process: open_storage(process.uri).delete("a")):
        with pytest.raises(Killed):
            act(process)
    assert store.files() == files


@pytest.mark.parametrize(("moment", "files"), [(Moment.BEFORE, {}), (Moment.AFTER, {"a": b"1"})])
def test_a_step_that_fails_fails_once(
    store: MemoryStore, moment: Moment, files: dict[str, bytes]
) -> None:
    process = store.start(fail_at(1, moment, "E-IO-RETRIES"))

    with pytest.raises(RuntimeError, match=r"^E-IO-RETRIES a: injected"):
        create_a(process)
    assert store.files() == files
    assert create_a(process) is not bool(files)


def test_a_lost_reply_has_the_step_sent_again(store: MemoryStore) -> None:
    assert create_a(store.start(lose_reply_of(1))) is False  # taken: by itself
    assert store.files() == {"a": b"1"}


def test_something_else_happens_while_a_process_waits(store: MemoryStore) -> None:
    other = store.start()

    assert create_a(store.start(meanwhile_at(1, Moment.BEFORE, lambda: create_a(other)))) is False
    assert [step.operation for step in other.steps] == ["create"]


def test_what_was_spooled_is_nobody_s_object(store: MemoryStore) -> None:
    process = store.start(kill_at(3, Moment.BEFORE))
    spool = open_storage(process.uri).spool()
    spool.write([b"1"])

    with pytest.raises(Killed):
        spool.publish("a")
    assert store.files() == {}


def test_bytes_are_counted_while_they_are_held(store: MemoryStore) -> None:
    store.put("a", bytes(1000))
    process = store.start()
    storage = open_storage(process.uri)
    entry = storage.stat("a")

    held = [storage.read("a", entry) for _ in range(3)]
    assert process.image_bytes == 3000
    del held
    storage.read("a", entry)

    assert (process.image_bytes, process.most_image_bytes) == (0, 3000)


def test_a_step_knows_the_call_that_asked_for_it(store: MemoryStore) -> None:
    from transforms.output_files import create_or_compare

    process = store.start()
    create_or_compare(open_storage(process.uri), "a", b"1")
    create_or_compare(open_storage(process.uri), "a", b"1")

    assert [str(step.site) for step in process.steps] == [
        "transforms.output_files.create_or_compare: output.create",
        "transforms.output_files.create_or_compare: output.create",
        "transforms.output_files.create_or_compare: output.read",
    ]
