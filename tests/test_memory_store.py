"""The simulated store keeps the contract of a storage, and fails on request."""

import pytest

from tests.memory_store import (
    Killed,
    MemoryStore,
    Moment,
    Process,
    fail_at,
    kill_at,
)
from tests.storage_contract import Outside, StorageContract
from transforms.storage import Storage, open_storage

pytestmark = pytest.mark.usefixtures("memory_served")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class StoreFolder:
    """What a root's objects look like from outside."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def put(self, files: dict[str, bytes], mtime_s: int | None = None) -> None:
        for name, data in files.items():
            self._store.put(f"root/{name}", data)

    def get(self, name: str) -> bytes:
        return self._store.files("root/")[name]

    def names(self) -> list[str]:
        return list(self._store.files("root/"))

    def sizes(self) -> list[int]:
        return [len(data) for data in self._store.files("root/").values()]

    def touch(self, name: str) -> None:
        self.put({name: self.get(name)})

    def remove(self, name: str) -> None:
        self._store.remove(f"root/{name}")


class TestContract(StorageContract):
    """The store in memory keeps the contract; another generation is another object."""

    grew = shrank = touched = gone = "generation [0-9]+ is gone; run again"

    @pytest.fixture
    def process(self, store: MemoryStore) -> Process:
        return store.start()

    @pytest.fixture
    def storage(self, process: Process) -> Storage:
        return open_storage(f"{process.uri}/root")

    @pytest.fixture
    def outside(self, store: MemoryStore) -> Outside:
        return StoreFolder(store)


def create_a(process: Process) -> bool:
    return open_storage(process.uri).create("a", b"1")


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
