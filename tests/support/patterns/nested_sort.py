"""Nested tasks: a sort that hands its halves to tasks while they are large."""

import random

import ray


def sort_here(values: list[int]) -> list[int]:
    if len(values) <= 1:
        return values
    pivot, *rest = values
    lower = [v for v in rest if v < pivot]
    upper = [v for v in rest if v >= pivot]
    return [*sort_here(lower), pivot, *sort_here(upper)]


@ray.remote
def sort(values: list[int], least: int) -> list[int]:
    if len(values) <= least:
        return sort_here(values)
    pivot, *rest = values
    lower = sort.remote([v for v in rest if v < pivot], least)
    upper = sort.remote([v for v in rest if v >= pivot], least)
    return [*ray.get(lower), pivot, *ray.get(upper)]


ray.init()
dice = random.Random(1)
values = [dice.randrange(100_000) for _ in range(3000)]
shared = ray.put(values)
print(ray.get(sort.remote(shared, 600)) == sorted(values))
