"""Exceptions of the program's own: tried again, handed on by what depends on them, and caught."""

import os
import sys
import tempfile

import ray


class NotYet(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def count(path: str) -> int:
    with open(path, "a") as file:
        file.write("x")
    return os.path.getsize(path)


@ray.remote(max_retries=3, retry_exceptions=[NotYet])
def third_time(path: str) -> int:
    if count(path) < 3:
        raise NotYet(7)
    return os.path.getsize(path)


@ray.remote
def fail() -> None:
    raise NotYet(8)


@ray.remote
def forward(value: object) -> object:
    return value


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Immortal:
    def __init__(self) -> None:
        self.counter = 0

    def counter(self) -> int:  # the name of an attribute
        return self.__dict__["counter"]

    def increment(self, path: str) -> int:
        self.__dict__["counter"] += 1
        if count(path) < 3:
            sys.exit(1)
        return self.__dict__["counter"]


ray.init()
with tempfile.TemporaryDirectory() as marks:
    print("attempts", ray.get(third_time.remote(os.path.join(marks, "task"))))
    actor = Immortal.remote()
    ray.get(actor.__ray_ready__.remote())
    print("since it was made", ray.get(actor.increment.remote(os.path.join(marks, "actor"))))
    print("counter", ray.get(actor.counter.remote()))
for failing in (fail.remote(), forward.remote(fail.remote())):
    try:
        ray.get(failing)
    except NotYet as error:
        print("code", error.code, isinstance(error, ray.exceptions.RayTaskError))
