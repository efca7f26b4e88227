"""A pool of actors for a list of work, and a queue between producers and consumers."""

import ray
from ray.util.actor_pool import ActorPool
from ray.util.queue import Empty, Queue


@ray.remote
class Squarer:
    def square(self, x: int) -> int:
        return x * x


@ray.remote
def produce(queue: Queue, start: int) -> None:
    for i in range(start, start + 5):
        queue.put(i)


@ray.remote
def consume(queue: Queue) -> int:
    total = 0
    while (item := queue.get()) is not None:
        total += item
    return total


ray.init()
pool = ActorPool([Squarer.remote() for _ in range(2)])
print(list(pool.map(lambda actor, x: actor.square.remote(x), range(6))))
print(sorted(pool.map_unordered(lambda actor, x: actor.square.remote(x), range(6))))
pool.submit(lambda actor, x: actor.square.remote(x), 7)
print(pool.get_next(), pool.has_next())

queue = Queue(maxsize=3)
consumers = [consume.remote(queue) for _ in range(2)]
ray.get([produce.remote(queue, start) for start in (0, 100)])
for _ in consumers:
    queue.put(None)
print("consumed", sum(ray.get(consumers)))
try:
    queue.get_nowait()
except Empty:
    print("empty")
queue.shutdown()
