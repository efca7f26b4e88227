"""The measures of checkpoints: the cost of a save, and the time to read a long run."""

import functools
import importlib.util
import shutil
import statistics
from collections.abc import Callable, Mapping

from benchmarks.cases import DRAY, RAY, Case, Comparison, Options, Sample
from benchmarks.harness import Program, run

BLOCKED = "report(), blocked"
KEPT = "report(), to the commit"
SAFE = "report(), until it is on the disk"
WRITTEN = "written, times the checkpoint"
READ = "Result.from_path"
UP = "to S3"
DOWN = "from S3"
UP_MEMORY = "to S3, memory"
DOWN_MEMORY = "from S3, memory"

# Clients that upload files to S3, and the modules that they need.
_CLIENTS = {DRAY: "s3fs", "boto3": "boto3", "boto3-tuned": "boto3", "obstore": "obstore"}

LENT = "checkpoint_dir()"
LENT_ASYNC = "checkpoint_dir(), ASYNC"
LENT_UNSAFE = "checkpoint_dir(), no flush, no checksums"
COPY = "a directory"
COPY_ASYNC = "a directory, ASYNC"
COPY_UNFLUSHED = "a directory, no flush"
CP = "cp -r"

_WAYS = {
    LENT: "dir",
    LENT_ASYNC: "dir+async",
    LENT_UNSAFE: "dir+unsafe",
    COPY: "copy",
    COPY_ASYNC: "copy+async",
    COPY_UNFLUSHED: "copy+unflushed",
    CP: "cp",
    RAY: "copy",
}


def save(options: Options) -> list[Case]:
    """report() of a checkpoint of 1 GiB by two workers, each with half of it in one file."""
    size = (64 << 20) if options.quick else (512 << 20)
    comparisons = (
        Comparison(BLOCKED, LENT_ASYNC, target=50e-3),
        Comparison(BLOCKED, LENT_UNSAFE, target=50e-3),
        Comparison(BLOCKED, LENT, target=50e-3),
        Comparison(BLOCKED, COPY, RAY, 0.5),
        Comparison(BLOCKED, COPY, CP, 1.15),
        Comparison(BLOCKED, COPY_UNFLUSHED, CP, 1.15),
        Comparison(BLOCKED, COPY_ASYNC, COPY, 0.1),
        Comparison(KEPT, LENT_ASYNC),
        Comparison(KEPT, COPY_ASYNC),
        Comparison(SAFE, LENT),
        Comparison(SAFE, COPY),
    )
    return [_saves("2 workers, a file each", options, (2, 1, size, 3), [*_WAYS], comparisons)]


def save_small(options: Options) -> list[Case]:
    """report() of many small files: 10,000 of one worker, and 16 of each of 64 workers."""
    numbers = {"1 worker, 10,000 files of 4 kB": (1, 10_000, 4096, 3)}
    if not options.quick:
        numbers["64 workers, 16 files of 4 kB each"] = (64, 16, 4096, 3)
    names = [LENT, LENT_UNSAFE, COPY, COPY_UNFLUSHED, CP]
    comparisons = (
        *(Comparison(BLOCKED, name) for name in names[:-1]),
        Comparison(SAFE, LENT),
        Comparison(BLOCKED, COPY_UNFLUSHED, CP),
    )
    return [_saves(title, options, of, names, comparisons) for title, of in numbers.items()]


def _saves(
    title: str,
    options: Options,
    numbers: tuple[int, int, int, int],
    names: list[str],
    comparisons: tuple[Comparison, ...],
) -> Case:
    """Return a case with numbers of workers, of files a worker, of bytes a file, and of reports."""
    workers, *rest = numbers

    def sample(name: str) -> Sample:
        told = run(options.command(name, "checkpoint", workers, _WAYS[name], *rest)).every("saved")
        return Sample(_slowest(told, workers), told)

    return Case(title, "s", options.in_turn(sample, *names), comparisons)


def _slowest(told: list[dict[str, float]], workers: int) -> dict[str, float]:
    """Return the median over reports of the slowest rank's time."""
    steps = [told[at : at + workers] for at in range(0, len(told), workers)]
    return {
        quantity: statistics.median(max(each[key] for each in step) for step in steps)
        for quantity, key in ((BLOCKED, "seconds"), (KEPT, "until_kept"), (SAFE, "until_safe"))
    }


def save_bytes(options: Options) -> list[Case]:
    """Count of bytes that workers write for a checkpoint, from its first one to its commit."""

    def sample(name: str) -> Sample:
        told = run(options.command(name, "checkpoint", 2, _WAYS[name], 1, 64 << 20, 2))
        return Sample({WRITTEN: max(each["times"] for each in told.every("saved"))})

    comparisons = (Comparison(WRITTEN, LENT, target=1.001), Comparison(WRITTEN, COPY))
    return [Case("2 workers", "x", options.in_turn(sample, LENT, COPY), comparisons)]


def save_s3(options: Options) -> list[Case]:
    """report() of eight files of 64 MiB to a server of S3's API, and their download."""
    files = 4 if options.quick else 8

    def sample(name: str) -> Sample:
        with Program(options.command(DRAY, "s3_server", 0)) as server:
            port = next(server.records())["port"]
            who = shutil.which(name) or name
            script = str(options.programs / "program_s3.py")
            command = [options.python, script, who, f"http://127.0.0.1:{port}", files, 64 << 20, 4]
            told = run([str(each) for each in command])
        first, then = told.every("up")[1:], told.every("down")[1:]  # the first ones import modules
        return Sample(
            {
                UP: statistics.median(each["speed"] for each in first),
                DOWN: statistics.median(each["speed"] for each in then),
                UP_MEMORY: max(each["memory"] for each in told.every("up")),
                DOWN_MEMORY: max(each["memory"] for each in told.every("down")),
            },
            [*told.every("up"), *told.every("down")],
        )

    there = {n: importlib.util.find_spec(module) is not None for n, module in _CLIENTS.items()}
    there["s5cmd"] = shutil.which("s5cmd") is not None
    contestants = {
        n: functools.partial(sample, n) if is_there else None for n, is_there in there.items()
    }
    comparisons = (
        *(Comparison(each, DRAY, "boto3", 0.9, at_least=True) for each in (UP, DOWN)),
        *(Comparison(each, DRAY, "boto3-tuned", 0.9, at_least=True) for each in (UP, DOWN)),
        *(Comparison(each, DRAY, "s5cmd", 0.9, at_least=True) for each in (UP, DOWN)),
        *(Comparison(each, DRAY, "obstore") for each in (UP, DOWN)),
        *(Comparison(each, DRAY, target=64.0) for each in (UP_MEMORY, DOWN_MEMORY)),
    )
    return [Case(f"{files} files of 64 MiB", "MB", contestants, comparisons)]


def read_run(options: Options) -> list[Case]:
    """Result.from_path of a run with 10,000 checkpoints and 1,000,000 reports."""

    def sample(name: str) -> Sample:
        told = run(options.command(name, "listing", 10_000, 1_000_000)).last("read")
        return Sample({READ: told["seconds"]})

    comparison = Comparison(READ, "dray", target=1.0)
    return [Case("one process", "s", options.in_turn(sample, "dray"), (comparison,))]


MEASURES: Mapping[str, Callable[[Options], list[Case]]] = {
    "save": save,
    "save_small": save_small,
    "save_bytes": save_bytes,
    "save_s3": save_s3,
    "read_run": read_run,
}
