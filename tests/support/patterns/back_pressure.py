"""A pipeline that never has more than a few tasks under way: `wait` holds the producer up."""

import ray

MOST = 4


@ray.remote
class Meter:
    def __init__(self) -> None:
        self.now = self.most = 0

    def enter(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def leave(self) -> None:
        self.now -= 1

    def highest(self) -> int:
        return self.most


@ray.remote
def load(i: int, meter) -> list[int]:
    ray.get(meter.enter.remote())
    return list(range(i))


@ray.remote
def transform(values: list[int], meter) -> int:
    ray.get(meter.leave.remote())
    return sum(values)


ray.init()
meter = Meter.remote()
under_way: list = []
results = []
for i in range(24):
    if len(under_way) == MOST:
        ready, under_way = ray.wait(under_way)
        results += ray.get(ready)
    under_way.append(transform.remote(load.remote(i, meter), meter))
results += ray.get(under_way)
print(sorted(results) == sorted(sum(range(i)) for i in range(24)), sum(results))
print("never more than", MOST, ray.get(meter.highest.remote()) <= MOST)
