"""A tree of actors: a supervisor has managers, managers have workers, results come up again."""

import ray


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, name: str) -> None:
        self.name = name

    def work(self, value: int) -> str:
        if value < 0:
            raise ValueError(f"{self.name} cannot work on {value}")
        return f"{self.name}:{value * value}"


@ray.remote(num_cpus=0)
class Manager:
    def __init__(self, name: str, workers: int) -> None:
        self.workers = [Worker.remote(f"{name}.{i}") for i in range(workers)]

    def work(self, values: list[int]) -> list[str]:
        team = [self.workers[i % len(self.workers)] for i in range(len(values))]
        return ray.get([w.work.remote(v) for w, v in zip(team, values, strict=True)])


@ray.remote(num_cpus=0)
class Supervisor:
    def __init__(self, managers: int, workers: int) -> None:
        self.managers = [Manager.remote(f"m{i}", workers) for i in range(managers)]

    def work(self, values: list[int]) -> list[str]:
        half = len(values) // 2
        parts = (values[:half], values[half:])
        both = ray.get([m.work.remote(p) for m, p in zip(self.managers, parts, strict=True)])
        return both[0] + both[1]


ray.init()
supervisor = Supervisor.remote(2, 2)
print(ray.get(supervisor.work.remote([1, 2, 3, 4, 5])))
try:
    ray.get(supervisor.work.remote([1, -2]))
except ValueError as error:
    print("ValueError", "m1.0 cannot work on -2" in str(error))
