"""An async actor with groups of methods, and a driver that awaits; threads in another actor."""

import asyncio
import threading

import ray


@ray.remote(concurrency_groups={"io": 2, "compute": 4})
class Service:
    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.now = self.most = 0

    @ray.method(concurrency_group="io")
    async def fetch(self) -> int:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        return self.most

    @ray.method(concurrency_group="compute")
    async def compute(self, x: int) -> int:
        return x * x

    async def wait(self) -> str:
        await self.open.wait()
        return "opened"

    async def unlock(self) -> None:
        self.open.set()


@ray.remote(max_concurrency=2)
class Latch:
    def __init__(self) -> None:
        self.released = threading.Event()

    def wait(self) -> str:
        self.released.wait()
        return "released"

    def release(self) -> None:
        self.released.set()


async def drive(service: object) -> list:
    return await asyncio.gather(*[service.compute.remote(i) for i in range(4)])


ray.init()
service = Service.remote()
print("at a time", max(ray.get([service.fetch.remote() for _ in range(6)])))
waiting = service.wait.remote()
ray.get(service.unlock.remote())
print(ray.get(waiting))
print(asyncio.run(drive(service)))
print(ray.get(service.compute.options(concurrency_group="io").remote(5)))
latch = Latch.remote()
waiting = latch.wait.remote()
ray.get(latch.release.remote())
print(ray.get(waiting), waiting.future().result())
