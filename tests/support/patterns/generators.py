"""Generators: a task gives its results piece by piece, so neither side ever holds all of them."""

import numpy as np
import ray


@ray.remote
def pieces(count: int):
    for i in range(count):
        yield np.full(50_000, i)


@ray.remote
def total(piece: np.ndarray) -> int:
    return int(piece.sum())


@ray.remote
class Reader:
    def rows(self, count: int):
        for i in range(count):
            yield {"row": i}

    async def slow_rows(self, count: int):
        for i in range(count):
            yield i * 10


ray.init()
print([ray.get(total.remote(ref)) for ref in pieces.remote(4)])
reader = Reader.options().remote()
print([ray.get(ref)["row"] for ref in reader.rows.remote(3)])
print([ray.get(ref) for ref in reader.slow_rows.remote(3)])
outer = pieces.options(num_returns="dynamic").remote(3)
print([int(ray.get(ref)[0]) for ref in ray.get(outer)])
