import threading

from transforms.progress import Counts, Progress


def test_shards_of_earlier_runs_count_before_they_are_checked() -> None:
    progress = Progress()
    progress.plan(samples=400, shards=40, shards_there=15)
    assert progress.shards_finished() == 15
    progress.add(Counts(shards_done=2, shards_kept=1))
    assert progress.shards_finished() == 16
    progress.reset()
    assert (progress.planned, progress.shards_finished(), *progress.take()) == (0,) * 7


def test_threads_lose_no_counts() -> None:
    progress = Progress()
    one = Counts(done=1, rejected=1, bytes=10, shards_done=1)

    def work() -> None:
        for _ in range(2000):
            progress.add(one)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert progress.take() == Counts(16_000, 16_000, 160_000, 16_000)
