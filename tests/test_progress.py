import threading

from transforms.progress import PROGRESS, Counts, Progress


def counts_of(progress: Progress) -> dict[str, int]:
    names = ("planned", "done", "rejected", "bytes", "shards_planned", "shards_done")
    return {name: getattr(progress, name) for name in names}


def test_counts_what_it_is_told() -> None:
    progress = Progress()
    progress.plan(samples=10, shards=2)
    progress.add_samples(done=3, rejected=1, written_bytes=500)
    progress.add_samples(done=4, rejected=0, written_bytes=700)
    progress.add_shard()

    assert counts_of(progress) == {
        "planned": 10,
        "done": 7,
        "rejected": 1,
        "bytes": 1200,
        "shards_planned": 2,
        "shards_done": 1,
    }


def test_shards_of_earlier_runs_are_finished_before_they_are_looked_at() -> None:
    progress = Progress()
    progress.plan(samples=400, shards=40, shards_there=15)
    assert progress.shards_finished() == 15
    progress.add_shard()
    progress.keep_shard()
    progress.add_shard()
    assert progress.shards_finished() == 16


def test_a_new_run_begins_at_zero() -> None:
    progress = Progress()
    progress.plan(samples=10, shards=2)
    progress.add_samples(done=3, rejected=1, written_bytes=500)
    progress.add_shard()
    progress.reset()

    assert counts_of(progress) == counts_of(Progress()) == dict.fromkeys(counts_of(progress), 0)


def test_threads_lose_no_counts() -> None:
    progress = Progress()
    together = threading.Barrier(8)

    def work() -> None:
        together.wait()
        for _ in range(2000):
            progress.add_samples(1, 1, 10)
            progress.add_shard()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (progress.done, progress.rejected, progress.bytes) == (16_000, 16_000, 160_000)
    assert progress.shards_done == 16_000


def test_what_one_process_takes_another_adds() -> None:
    here, beside = Progress(), Progress()
    here.plan(samples=10, shards=2)
    here.add_samples(done=3, rejected=1, written_bytes=500)
    beside.add_samples(done=4, rejected=2, written_bytes=700)
    beside.add_shard()

    taken = beside.take()
    here.add(taken)

    assert taken == Counts(done=4, rejected=2, bytes=700, shards_done=1)
    assert beside.take() == Counts(0, 0, 0, 0)
    assert counts_of(here) == {
        "planned": 10,
        "done": 7,
        "rejected": 3,
        "bytes": 1200,
        "shards_planned": 2,
        "shards_done": 1,
    }


def test_a_process_has_one_set_of_counts() -> None:
    assert isinstance(PROGRESS, Progress)
