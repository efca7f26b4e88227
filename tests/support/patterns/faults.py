"""What survives what: tasks that run again, actors that are made again, errors that are caught."""

import os
import tempfile

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError, TaskCancelledError


@ray.remote(max_retries=2)
def fragile(marks: str) -> str:
    mark = os.path.join(marks, "task")
    if not os.path.exists(mark):
        open(mark, "w").close()
        os._exit(1)
    return "done at the second try"


@ray.remote(max_restarts=1, max_task_retries=3)
class Fragile:
    def work(self, marks: str) -> str:
        mark = os.path.join(marks, "actor")
        if not os.path.exists(mark):
            open(mark, "w").close()
            os._exit(1)
        return "made again"

    async def wait(self) -> None:
        import asyncio

        await asyncio.Event().wait()


@ray.remote
def fail() -> None:
    raise KeyError("lost")


ray.init()
with tempfile.TemporaryDirectory() as marks:
    print(ray.get(fragile.remote(marks)))
    actor = Fragile.remote()
    print(ray.get(actor.work.remote(marks)))
try:
    ray.get(fail.remote())
except RayTaskError as error:
    print(isinstance(error, KeyError), "lost" in str(error))
waiting = actor.wait.remote()
try:
    ray.get(waiting, timeout=0.1)
except GetTimeoutError:
    print("it did not come in time")
ray.cancel(waiting)
try:
    ray.get(waiting)
except TaskCancelledError:
    print("it was cancelled")
ray.kill(actor)
try:
    ray.get(actor.wait.remote())
except RayActorError:
    print("the actor is gone")
