from hypothesis import given
from hypothesis import strategies as st

from beam_tfrec.readers.shares import Part, deal

shard_records = st.lists(st.integers(0, 40), min_size=1, max_size=40)


def read_by(parts: list[Part]) -> list[tuple[int, int]]:
    return [(part.shard, record) for part in parts for record in range(part.first, part.stop)]


@given(shard_records, st.integers(1, 16))
def test_hosts_read_everything_once_in_equal_shares(records: list[int], hosts: int) -> None:
    shares = [read_by(deal(records, host, hosts)) for host in range(hosts)]
    everything = [(shard, record) for shard, count in enumerate(records) for record in range(count)]
    assert sorted(record for share in shares for record in share) == everything
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(share == sorted(share) for share in shares)


@given(shard_records, st.integers(1, 16))
def test_dropping_the_remainder_gives_all_hosts_equal_counts(
    records: list[int], hosts: int
) -> None:
    shares = [read_by(deal(records, host, hosts, drop_remainder=True)) for host in range(hosts)]
    assert {len(share) for share in shares} == {sum(records) // hosts}
    assert len({record for share in shares for record in share}) == sum(map(len, shares))
