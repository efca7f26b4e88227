"""How ranks share rows: one order for any number of them, and each row once whatever is left."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dray.data
from dray.data.accepted import dataset_of
from dray.data.iterator import DataIterator
from dray.data.numbering.position import Position, Seen, batch_sizes, share

ROWS = 240


@pytest.fixture(scope="module", params=["table", "files", "slice", "union"])
def numbers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The numbers below ROWS, from sources that read single rows, and from such that do not."""
    if request.param == "table":
        return dray.data.range(ROWS)
    folder = tmp_path_factory.mktemp("files")
    for number, (begin, end) in enumerate(((0, 150), (150, 151), (151, ROWS))):
        table = pa.table({"id": list(range(begin, end))})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=20)
    files = dray.data.read_parquet(str(folder))
    if request.param == "files":
        return files
    parts = files.split(2)
    if request.param == "union":
        return parts[0].union(parts[1])
    return (
        files.union(files)
        .split_at_indices([50, 50 + ROWS])[1]
        .map(lambda row: {"id": (row["id"] - 50) % ROWS})
    )


def order(dataset: Any, ranks: int, **options: Any) -> list[list[int]]:
    """Return the rows of each global batch of 12, as so many ranks read it."""
    shares = [
        share.iter_batches(batch_size=12 // ranks, **options)
        for share in dataset.streaming_split(ranks)
    ]
    return [
        sorted(itertools.chain.from_iterable(batch["id"].tolist() for batch in batches))
        for batches in zip(*shares, strict=True)
    ]


@pytest.mark.parametrize(
    "options",
    [{}, {"local_shuffle_buffer_size": 50, "local_shuffle_seed": 4}, {"prefetch_batches": 0}],
)
def test_global_batches_do_not_depend_on_the_number_of_ranks(numbers: Any, options: Any) -> None:
    one = order(numbers, 1, **options)
    assert sorted(itertools.chain.from_iterable(one)) == list(range(ROWS))
    assert all(order(numbers, ranks, **options) == one for ranks in (2, 3, 4, 6))


def test_shuffles_differ_by_epoch_and_not_by_chance(numbers: Any) -> None:
    def epochs(dataset: Any, **options: Any) -> list[list[int]]:
        iterator = dataset.iterator()
        return [
            np.concatenate([b["id"] for b in iterator.iter_batches(**options)]).tolist()
            for _ in range(2)
        ]

    shuffled = numbers.random_shuffle(seed=5)
    for dataset, options in (
        (shuffled, {}),
        (numbers, {"local_shuffle_buffer_size": 60, "local_shuffle_seed": 1}),
    ):
        first, second = epochs(dataset, **options)
        assert first != second
        assert sorted(first) == sorted(second) == list(range(ROWS))
        assert epochs(dataset, **options) == [first, second]
    assert shuffled.take_all() == shuffled.take_all()


@given(st.integers(0, 60), st.integers(1, 7), st.integers(1, 8), st.booleans(), st.booleans())
def test_ranks_make_batches_of_nearly_all_rows(
    left: int, ranks: int, size: int, equal: bool, drop_last: bool
) -> None:
    shares = [share(left, rank, ranks, equal=equal) for rank in range(ranks)]
    sizes = [batch_sizes(own, size, drop_last=drop_last) for own in shares]
    if equal:
        assert all(of_rank == sizes[0] for of_rank in sizes)
    assert all(0 < rows <= size for of_rank in sizes for rows in of_rank)
    assert all(rows == size for of_rank in sizes for rows in of_rank[: -1 + drop_last or None])
    assert all(sum(of_rank) <= len(range(rank, left, ranks)) for rank, of_rank in enumerate(sizes))
    if not drop_last:
        assert left - sum(map(sum, sizes)) < (ranks if equal else 1)


@given(st.integers(1, 80), st.data())
def test_whatever_ranks_have_taken_the_rest_is_seen_once(rows: int, data: st.DataObject) -> None:
    seen, given_out = Seen(), []
    while seen.count() < rows:
        ranks, left = data.draw(st.integers(1, 5)), rows - seen.count()
        most = [len(range(rank, left, ranks)) for rank in range(ranks)]
        taken = [data.draw(st.integers(0, number)) for number in most]
        if not any(taken):
            taken = most
        for rank, number in enumerate(taken):
            given_out += seen.number(np.arange(number) * ranks + rank).tolist()
        seen = Seen.from_json(seen.after(taken).to_json())
        assert seen.count() == len(given_out)
    assert sorted(given_out) == list(range(rows))


@settings(max_examples=25)
@given(st.lists(st.integers(0, 6), max_size=6), st.integers(1, 5))
def test_equal_shares_of_a_stream_have_as_many_rows(blocks: list[int], ranks: int) -> None:
    class Stream:
        def __iter__(self) -> Iterator[dict[str, bool]]:
            return ({"kept": row < size} for size in blocks for row in range(256))  # a block each

    rows = dataset_of(Stream(), "train").filter(lambda row: row["kept"])
    shares = [list(share.iter_rows()) for share in rows.streaming_split(ranks, equal=True)]
    assert {len(share) for share in shares} == {sum(blocks) // ranks}


def test_an_epoch_without_a_batch_says_why() -> None:
    few = dray.data.range(3).streaming_split(4, equal=True)[0]
    with pytest.warns(UserWarning, match="3 rows are fewer than the 4 ranks"):
        assert not list(few.iter_rows())
    half = dray.data.range(6).streaming_split(2, equal=True)[0]
    with pytest.warns(UserWarning, match="drop_last leaves out 3 rows, fewer than batch_size=4"):
        assert not list(half.iter_batches(batch_size=4, drop_last=True))


def test_an_epoch_goes_on_where_all_ranks_were(numbers: Any) -> None:
    shares = numbers.streaming_split(2)
    first: list[int] = []
    for own, batches in zip(shares, (3, 5), strict=True):
        for batch in itertools.islice(own.iter_batches(batch_size=7), batches):
            first += batch["id"].tolist()
    positions = [Position.from_json(own.position.to_json()) for own in shares]
    rest, again = [], []
    for rank in range(3):
        share = DataIterator(numbers.countable(), rank, 3, positions=positions)
        rest += [row["id"] for row in share.iter_rows()]
        again += [row["id"] for row in share.iter_rows()]
    assert sorted(first + rest) == sorted(again) == list(range(ROWS))


@given(st.integers(1, 120), st.integers(2, 40), st.integers(1, 60), st.integers(1, 3))
def test_each_row_comes_once_whatever_the_windows_are(
    rows: int, window: int, size: int, ranks: int
) -> None:
    seen = [
        number
        for share in dray.data.range(rows).streaming_split(ranks)
        for batch in share.iter_batches(batch_size=size, local_shuffle_buffer_size=window)
        for number in batch["id"].tolist()
    ]
    assert sorted(seen) == list(range(rows))


def test_what_is_returned_is_read_once_an_epoch_as_a_loader_is() -> None:
    iterator = dray.data.range(10).random_shuffle(seed=1).iterator()
    loader = iterator.iter_batches(batch_size=10)
    first, second = ([batch["id"].tolist() for batch in loader] for _ in range(2))
    assert sorted(first[0]) == sorted(second[0]) == list(range(10))
    assert iterator.position.epoch == 2
    rows = dray.data.range(2).iter_rows()
    assert list(rows) == list(rows) == [{"id": 0}, {"id": 1}]


def test_stats_tell_how_long_batches_were_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))
    iterator = dray.data.range(1).iterator()
    assert len(list(iterator.iter_batches(prefetch_batches=0))) == 1
    # A second each for the batch, for its use, and until it is known that there are no more.
    assert iterator.stats().endswith("1 batches in all, waited for 2.000 s of 3.000 s")


def test_an_iteration_that_is_left_is_over(tmp_path: Path) -> None:
    iterator = dray.data.range(10).iterator()
    assert next(iter(iterator.iter_rows())) == {"id": 0}
    assert iterator.position.taken == 1
    assert len(list(iterator.iter_rows())) == 10
    assert (iterator.position.epoch, iterator.position.taken) == (2, 0)


def test_more_text_than_a_chunk_of_arrow_holds_is_shuffled_and_shared() -> None:
    part = pa.array([f"{number:03}" + "x" * (1 << 20) for number in range(64)])
    texts = pa.chunked_array([part] * 40)  # 2.5 GiB, in the memory of one part
    rows = dray.data.from_arrow(pa.table({"id": pa.array(range(len(texts))), "s": texts}))
    shuffled = rows.random_shuffle(seed=0)
    for one in (shuffled.iterator(), *rows.streaming_split(2), *shuffled.streaming_split(2)):
        [batch] = itertools.islice(one.iter_batches(batch_size=32), 1)
        assert [int(text[:3]) for text in batch["s"]] == [number % 64 for number in batch["id"]]


def test_rows_of_any_chunks_are_shuffled_alike() -> None:
    table = pa.table({"id": range(100), "s": [str(number) for number in range(100)]})
    alone, cut = (
        dray.data.from_arrow(pa.Table.from_batches(table.to_batches(size))).random_shuffle(seed=0)
        for size in (100, 7)
    )
    assert alone.take_all() == cut.take_all()
    in_order = cut.sort("id", descending=True)
    assert in_order.take_all() == table.to_pylist()[::-1]
    none = dray.data.from_arrow(table).filter(lambda row: row["id"] < 0)
    assert none.sort("id").columns() == ["id", "s"]


def test_a_reader_that_is_ahead_counts_a_batch_as_the_next_is_read() -> None:
    iterator = dray.data.range(20).iterator()
    ahead = iterator.iter_batches(batch_size=5)
    ahead.hold_back()  # type: ignore[attr-defined]
    batches = iter(ahead)
    next(batches), next(batches)
    assert iterator.position.taken == 5
    next(iter(iterator.iter_batches(batch_size=5)))  # read by the program itself
    assert iterator.position.taken == 5
