"""Pi by sampling in parallel, with an actor that everybody tells how far they are."""

import random

import ray

SAMPLES, TASKS, STEPS = 20_000, 6, 4


@ray.remote
class Progress:
    def __init__(self, total: int) -> None:
        self.total = total
        self.done: dict[int, int] = {}

    def report(self, task: int, samples: int) -> None:
        self.done[task] = samples

    def progress(self) -> float:
        return sum(self.done.values()) / self.total


@ray.remote
def sample(task: int, progress) -> int:
    dice = random.Random(task)
    inside = 0
    for step in range(STEPS):
        for _ in range(SAMPLES // STEPS):
            x, y = dice.random(), dice.random()
            inside += x * x + y * y <= 1
        ray.get(progress.report.remote(task, (step + 1) * SAMPLES // STEPS))
    return inside


ray.init()
progress = Progress.remote(SAMPLES * TASKS)
refs = [sample.remote(task, progress) for task in range(TASKS)]
seen = []
while refs:
    _, refs = ray.wait(refs, timeout=0.05)
    seen.append(ray.get(progress.progress.remote()))
assert seen == sorted(seen)
print("progress", seen[-1])
inside = sum(ray.get([sample.remote(task, progress) for task in range(TASKS)]))
print("pi is about", round(4 * inside / (SAMPLES * TASKS), 1))
