"""Program: uploads files to S3 and downloads them, and records the speed and growth of memory.

Arguments: the client, the server's URL, the number of files, the bytes of each, the number of
rounds. Clients are "dray" (a report of one worker, and `Checkpoint.as_directory`), "boto3",
"boto3-tuned" (four parts of each file at once instead of ten), "obstore", "s3fs", or the path of
s5cmd.
"""

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.records import record

BUCKET = "runs"
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret"}
_AT_ONCE = 8

Transfer = Callable[[str, str], object]


def make_files(folder: str, count: int, size: int) -> None:
    """Write files into a directory."""
    for number in range(count):
        with open(os.path.join(folder, f"part-{number}"), "wb") as file:
            for start in range(0, size, 1 << 20):
                file.write(os.urandom(min(1 << 20, size - start)))
    os.sync()


def of_memory(name: str) -> float:
    """Return a figure of this process's memory, in MiB: VmRSS (now) or VmHWM (the peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def cpu_seconds() -> float:
    """Return the processor time of this process, and of programs that it has run."""
    return sum(os.times()[:4])


def measured(event: str, work: Callable[[], object], size: int) -> None:
    """Run an action with so many bytes; record its speed, and the memory that it took."""
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present memory
    before = of_memory("VmRSS")
    busy, began = cpu_seconds(), time.perf_counter()
    work()
    seconds, busy = time.perf_counter() - began, cpu_seconds() - busy
    grown = of_memory("VmHWM") - before
    record(event, speed=size / 1e6 / seconds, cpu=1e9 * busy / size, memory=grown)


def train_function(config: dict[str, Any]) -> None:
    """Report checkpoints, and read each of them."""
    import dray.train
    from dray.train import Checkpoint

    with tempfile.TemporaryDirectory() as small:
        Path(small, "file").write_text("loads what is needed")
        dray.train.report({}, Checkpoint(small))
    size = config["files"] * config["bytes"]
    for _ in range(config["rounds"]):
        with tempfile.TemporaryDirectory() as source:
            make_files(source, config["files"], config["bytes"])
            measured("up", lambda: dray.train.report({}, Checkpoint(source)), size)
        measured("down", _read_checkpoint, size)


def _read_checkpoint() -> None:
    import dray.train

    checkpoint = dray.train.get_checkpoint()
    assert checkpoint is not None
    with checkpoint.as_directory():
        pass


def run_dray(url: str, config: dict[str, Any]) -> None:
    """Run a training on the server."""
    import s3fs

    from benchmarks.launch import told_here
    from dray.train import (
        CheckpointConfig,
        DataParallelTrainer,
        RunConfig,
        ScalingConfig,
    )

    DataParallelTrainer(
        told_here(train_function),
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            name="run",
            storage_path=f"s3://{BUCKET}/dray",
            storage_filesystem=s3fs.S3FileSystem(endpoint_url=url),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    ).fit()


def by_boto3(url: str, *, tuned: bool) -> tuple[Transfer, Transfer]:
    """Return boto3's functions that upload and download a file."""
    import boto3
    from boto3.s3.transfer import TransferConfig

    options = {"multipart_chunksize": 8 << 20, "max_concurrency": 4} if tuned else {}
    config = TransferConfig(**options)
    client = boto3.client("s3", endpoint_url=url)
    return (
        lambda path, key: client.upload_file(path, BUCKET, key, Config=config),
        lambda path, key: client.download_file(BUCKET, key, path, Config=config),
    )


def by_obstore(url: str) -> tuple[Transfer, Transfer]:
    """Return obstore's functions that upload and download a file."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        endpoint=url,
        region="us-east-1",
        client_options={"allow_http": True},
        aws_access_key_id="me",
        aws_secret_access_key="secret",
    )

    def down(path: str, key: str) -> None:
        with open(path, "wb") as file:
            for chunk in obstore.get(store, key).stream():
                file.write(chunk)

    return lambda path, key: obstore.put(store, key, Path(path)), down


def by_s3fs(url: str) -> tuple[Transfer, Transfer]:
    """Return s3fs's functions that upload and download a file."""
    import s3fs

    files = s3fs.S3FileSystem(endpoint_url=url)
    return (
        lambda path, key: files.put_file(path, f"{BUCKET}/{key}"),
        lambda path, key: files.get_file(f"{BUCKET}/{key}", path),
    )


def with_threads(up: Transfer, down: Transfer, config: dict[str, Any]) -> None:
    """Upload and download files, several at once."""
    names = [f"part-{number}" for number in range(config["files"])]
    size = config["files"] * config["bytes"]

    def bring(transfer: Transfer, folder: str) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda name: transfer(os.path.join(folder, name), name), names))

    for _ in range(config["rounds"]):
        with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as target:
            make_files(source, config["files"], config["bytes"])
            measured("up", functools.partial(bring, up, source), size)
            measured("down", functools.partial(bring, down, target), size)


def by_s5cmd(program: str, url: str, config: dict[str, Any]) -> None:
    """Upload and download files with s5cmd, a program."""
    size = config["files"] * config["bytes"]

    def copy(source: str, target: str) -> None:
        command = [program, "--endpoint-url", url, "cp", source, target]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    for _ in range(config["rounds"]):
        with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as target:
            make_files(source, config["files"], config["bytes"])
            there = f"s3://{BUCKET}/s5cmd/"
            measured("up", functools.partial(copy, f"{source}/", there), size)
            measured("down", functools.partial(copy, f"{there}*", f"{target}/"), size)


def main(who: str, url: str, config: dict[str, Any]) -> None:
    """Run a contestant."""
    os.environ.update(_CREDENTIALS, AWS_REGION="us-east-1", AWS_DEFAULT_REGION="us-east-1")
    if who == "dray":
        run_dray(url, config)
    elif who.startswith("boto3"):
        with_threads(*by_boto3(url, tuned=who.endswith("tuned")), config)
    elif who == "obstore":
        with_threads(*by_obstore(url), config)
    elif who == "s3fs":
        with_threads(*by_s3fs(url), config)
    else:
        by_s5cmd(who, url, config)


if __name__ == "__main__":
    _, who, url, *numbers = sys.argv
    main(who, url, dict(zip(("files", "bytes", "rounds"), map(int, numbers), strict=True)))
