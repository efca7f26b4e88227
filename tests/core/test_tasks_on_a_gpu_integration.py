"""Tasks on an NVIDIA GPU: tensors that travel, errors of CUDA, and what libraries compile."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.engines.rpc import serialization
from dray.errors import TaskError
from tests.support.gates import Gate, count_up, until
from tests.support.gpus import MEBIBYTE, on_a_gpu, used_memory

torch = pytest.importorskip("torch")
pytestmark = [*on_a_gpu(), pytest.mark.usefixtures("own_session")]

DEVICE = "cuda"


def ran(directory: Path, code: str, **variables: str) -> str:
    """Return what a program of its own prints: this process is to hold no memory of the GPU."""
    path = directory / "program.py"
    path.write_text(textwrap.dedent(code))
    environment = {**os.environ, **variables}
    command = [sys.executable, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def about(tensor: Any) -> Any:
    return tensor.device.type, str(tensor.dtype), tensor.requires_grad, tensor.float().tolist()


@dray.remote(num_gpus=0.5)
def made(dtype: str) -> Any:
    return torch.arange(4, device=DEVICE).to(getattr(torch, dtype))


@dray.remote(num_gpus=0.5)
def looked_at(tensor: Any) -> Any:
    return about(tensor), os.getpid()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int64"])
def test_a_tensor_goes_from_task_to_task(dtype: str) -> None:
    found, pid = dray.get(looked_at.remote(made.remote(dtype)))
    assert found == (DEVICE, f"torch.{dtype}", False, [0, 1, 2, 3])
    assert pid != os.getpid()


def test_a_large_tensor_and_its_views_travel_whole() -> None:
    @dray.remote(num_gpus=0.5)
    def views() -> Any:
        block = torch.ones(64 * MEBIBYTE, dtype=torch.uint8, device=DEVICE)
        parameter = torch.nn.Parameter(torch.full((2, 3), 7.0, device=DEVICE))
        return block, block[:3], parameter.t(), parameter

    @dray.remote(num_gpus=0.5)
    def summed(parts: Any) -> Any:
        block, few, turned, parameter = parts
        total = int(block.sum(dtype=torch.int64))
        return total, [about(few), about(turned.detach()), about(parameter)]

    total, parts = dray.get(summed.remote(views.remote()))
    assert total == 64 * MEBIBYTE
    assert parts == [
        (DEVICE, "torch.uint8", False, [1, 1, 1]),
        (DEVICE, "torch.float32", False, [[7, 7]] * 3),
        (DEVICE, "torch.float32", True, [[7, 7, 7]] * 2),
    ]


PROGRAM = """
    import os, torch, dray
    dray.init(num_cpus=4, log_to_driver=False)

    @dray.remote(num_gpus=0.5)
    def made():
        return torch.arange(3, device="cuda")

    @dray.remote(num_gpus=0.5)
    def looked_at(tensor):
        return tensor.device.type, tensor.tolist()

    got = dray.get(made.remote())
    print("got", got.device, got.tolist())
    ref = dray.put(got * 2)
    print("put", dray.get(ref).device, dray.get(looked_at.remote(ref)))
    other = looked_at.options(num_gpus=0, runtime_env={"env_vars": {"CUDA_VISIBLE_DEVICES": ""}})
    try:
        print("hidden", dray.get(other.remote(ref)))
    except Exception as error:
        print("hidden", isinstance(error, RuntimeError), " ".join(str(error).split()))
    print("after", dray.get(looked_at.remote(ref)))
    dray.shutdown()
"""


def test_the_driver_gets_and_puts_tensors_of_the_gpu(tmp_path: Path) -> None:
    got, put, hidden, after = ran(tmp_path, PROGRAM.replace('"cuda"', repr(DEVICE))).splitlines()
    on = f"{DEVICE}:0" if DEVICE == "cuda" else DEVICE
    assert got == f"got {on} [0, 1, 2]"
    assert put == f"put {on} ('{DEVICE}', [0, 2, 4])"
    assert hidden.startswith("hidden True"), hidden
    assert f"a process received a tensor on {on}, and cannot use" in hidden
    assert after == f"after ('{DEVICE}', [0, 2, 4])"


def test_a_part_of_a_tensor_travels_without_the_rest() -> None:
    @dray.remote(num_gpus=1)
    def sizes() -> list[int]:
        block = torch.ones(64 * MEBIBYTE, dtype=torch.uint8, device=DEVICE)
        return [serialization.pack(part, "it").size for part in (block[:3], block[5], block)]

    few, one, whole = dray.get(sizes.remote())
    assert few < 1000
    assert one < 1000
    assert 64 * MEBIBYTE <= whole < 65 * MEBIBYTE


def test_a_module_comes_back_with_its_weights_on_the_gpu() -> None:
    @dray.remote(num_gpus=1)
    def trained() -> Any:
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 2).to(DEVICE)
        return net, {k: v.cpu() for k, v in net.state_dict().items()}

    @dray.remote(num_gpus=1)
    def compared(pair: Any) -> Any:
        net, state = pair
        same = all(torch.equal(net.state_dict()[k].cpu(), v) for k, v in state.items())
        return same, {p.device.type for p in net.parameters()}, net.weight.requires_grad

    assert dray.get(compared.remote(trained.remote())) == (True, {DEVICE}, True)


def test_an_assertion_on_the_device_ends_no_more_than_its_task() -> None:
    @dray.remote(num_gpus=1, max_retries=0)
    def out_of_range() -> Any:
        index = torch.tensor([99], device=DEVICE)
        return torch.zeros(3, device=DEVICE)[index].tolist()

    @dray.remote(num_gpus=1)
    def fine() -> Any:
        return torch.ones(3, device=DEVICE).sum().item(), os.getpid()

    before, first = dray.get(fine.remote())
    with pytest.raises(TaskError) as caught:
        dray.get(out_of_range.remote())
    text = f"{type(caught.value.cause).__mro__}: {caught.value}"
    assert isinstance(caught.value, RuntimeError | IndexError), text
    assert "assert" in str(caught.value) or "index" in str(caught.value), text
    after, second = dray.get(fine.remote())
    assert (before, after) == (3, 3)
    assert first != second


def test_what_fails_after_a_task_has_returned_is_its_error() -> None:
    """A kernel runs when it likes: here its result is a tensor, and nothing has waited for it."""

    @dray.remote(num_gpus=1, max_retries=0)
    def out_of_range() -> Any:
        return torch.zeros(3, device=DEVICE)[torch.tensor([99], device=DEVICE)]

    with pytest.raises(RuntimeError if DEVICE == "cuda" else IndexError) as caught:
        dray.get(out_of_range.remote())
    assert isinstance(caught.value, TaskError), type(caught.value).__mro__
    assert "cannot be sent" not in str(caught.value), str(caught.value)


def test_want_of_memory_is_pytorchs_error_and_takes_no_memory() -> None:
    before = used_memory()

    @dray.remote(num_gpus=1, max_retries=0)
    def too_much() -> Any:
        kept = torch.ones(1024 * MEBIBYTE, dtype=torch.uint8, device=DEVICE)
        return kept, torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE)

    with pytest.raises(torch.OutOfMemoryError) as caught:
        dray.get(too_much.remote())
    assert isinstance(caught.value, TaskError), type(caught.value).__mro__
    assert type(caught.value.cause) is torch.OutOfMemoryError
    assert "too_much" in str(caught.value)
    assert "out of memory" in str(caught.value)
    assert "torch.empty" in caught.value.remote_traceback, caught.value.remote_traceback
    until(lambda: used_memory() < before + 256 * MEBIBYTE)


def test_a_task_that_is_killed_frees_its_memory_and_is_tried_again(tmp_path: Path) -> None:
    before = used_memory()
    tries = tmp_path / "tries"

    @dray.remote(num_gpus=1, max_retries=1)
    def killed_once() -> Any:
        number = count_up(tries)
        block = torch.ones(1024 * MEBIBYTE, dtype=torch.uint8, device=DEVICE)
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return number, int(block.sum(dtype=torch.int64))

    assert dray.get(killed_once.remote()) == (2, 1024 * MEBIBYTE)
    until(lambda: used_memory() < before + 256 * MEBIBYTE)


def test_a_cancelled_task_leaves_the_gpu(gate: Gate) -> None:
    before = used_memory()

    @dray.remote(num_gpus=1)
    def endless() -> None:
        block = torch.ones(1024 * MEBIBYTE, dtype=torch.uint8, device=DEVICE)
        gate.ring()
        while True:
            block.add_(1)
            if DEVICE == "cuda":
                torch.cuda.synchronize()

    ref = endless.remote()
    gate.heard()
    dray.cancel(ref)
    with pytest.raises(dray.exceptions.TaskCancelledError):
        dray.get(ref)
    until(lambda: used_memory() < before + 256 * MEBIBYTE)


def test_a_compiled_function_runs_in_a_task_and_an_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        pytest.skip("torch.compile needs a C compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    dray.shutdown()
    dray.init(num_cpus=8)

    def compiled(values: list[float]) -> list[float]:
        warnings.simplefilter("ignore")  # of PyTorch about itself, which are errors in tests
        function = torch.compile(lambda x: torch.nn.functional.gelu(x) * 2 + 1)
        found = function(torch.tensor(values, device=DEVICE))
        plain = torch.nn.functional.gelu(torch.tensor(values, device=DEVICE)) * 2 + 1
        torch.testing.assert_close(found, plain)
        return [round(value, 3) for value in found.tolist()]

    @dray.remote(num_gpus=0.5)
    class Compiler:
        def run(self) -> list[float]:
            return compiled([0.0, 1.0])

    compiler = Compiler.remote()
    in_a_task = dray.remote(num_gpus=0.5)(compiled).remote([0.0])
    found = dray.get([in_a_task, compiler.run.remote()])
    assert found == [[1.0], [1.0, 2.683]]


TRITON = """
import torch, triton
import triton.language as tl

@triton.jit
def add(x, y, out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)

def added(size):
    x = torch.arange(size, device="cuda", dtype=torch.float32)
    out = torch.empty_like(x)
    add[(triton.cdiv(size, 256),)](x, x, out, size, BLOCK=256)
    return bool((out == 2 * x).all())
"""


def test_a_kernel_of_triton_runs_in_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        pytest.skip("Triton needs a C compiler")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    (tmp_path / "kernels.py").write_text(TRITON)
    dray.shutdown()
    dray.init(num_cpus=8)

    @dray.remote(num_gpus=1)
    def run(directory: str) -> Any:
        sys.path.insert(0, directory)
        warnings.simplefilter("ignore")
        kernels = importlib.import_module("kernels")

        return kernels.added(1000)

    assert dray.get(run.remote(str(tmp_path)))


def test_arrays_of_cupy_travel_as_arrays_of_cupy() -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")

    @dray.remote(num_gpus=0.5)
    def arrays() -> Any:
        warnings.simplefilter("ignore")
        cupy = importlib.import_module("cupy")

        return cupy.arange(6, dtype=cupy.float32).reshape(2, 3), cupy.ones(1 << 20)

    @dray.remote(num_gpus=0.5)
    def summed(pair: Any) -> Any:
        warnings.simplefilter("ignore")
        cupy = importlib.import_module("cupy")

        small, large = pair
        as_torch = torch.from_dlpack(small)
        return type(small) is cupy.ndarray, small.tolist(), float(large.sum()), about(as_torch)

    numbers = [[0, 1, 2], [3, 4, 5]]
    found = dray.get(summed.remote(arrays.remote()))
    assert found == (True, numbers, float(1 << 20), ("cuda", "torch.float32", False, numbers))
