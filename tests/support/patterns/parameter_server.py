"""A parameter server: workers fetch weights, compute gradients, and push them; in step and not."""

import numpy as np
import ray

STEPS, WORKERS = 5, 3


@ray.remote
class ParameterServer:
    def __init__(self, size: int, rate: float) -> None:
        self.weights = np.zeros(size)
        self.rate = rate

    def apply(self, *gradients: np.ndarray) -> np.ndarray:
        self.weights = self.weights - self.rate * np.mean(gradients, axis=0)
        return self.weights

    def read(self) -> np.ndarray:
        return self.weights


@ray.remote
class Worker:
    def __init__(self, seed: int, size: int) -> None:
        rng = np.random.default_rng(seed)
        self.inputs = rng.normal(size=(200, size))
        self.targets = self.inputs @ np.arange(size)

    def gradient(self, weights: np.ndarray) -> np.ndarray:
        return 2 * self.inputs.T @ (self.inputs @ weights - self.targets) / len(self.targets)


ray.init()
server = ParameterServer.remote(4, 0.3)
workers = [Worker.remote(i, 4) for i in range(WORKERS)]

weights = server.read.remote()
for _ in range(STEPS * 5):
    weights = server.apply.remote(*[worker.gradient.remote(weights) for worker in workers])
print("in step:", (np.round(ray.get(weights), 2) + 0.0).tolist())

server = ParameterServer.remote(4, 0.1)
weights = server.read.remote()
running = {worker.gradient.remote(weights): worker for worker in workers}
for _ in range(STEPS * 20):
    (ready,), _ = ray.wait(list(running))
    worker = running.pop(ready)
    weights = server.apply.remote(ready)
    running[worker.gradient.remote(weights)] = worker
print("not in step:", (np.round(ray.get(server.read.remote()), 1) + 0.0).tolist())
