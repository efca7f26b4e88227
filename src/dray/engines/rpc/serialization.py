"""Values in messages between processes: pickled, with large buffers apart and references noted.

A payload stands for a value in messages:

- `bytes`: its pickle;
- `(INLINE, pickle, buffers, writable)`: the same, with buffers that the pickle refers to;
- `(STORED, region, offset, lengths, writable)`: in shared memory, the pickle first;
- `(SPILLED, offset, lengths, writable)`: on the disk;
- `(RAISED, error, where)`: the error that a task has raised;
- `(FAILED, error)`: an error of dray in place of the value;
- `(INIT_FAILED, error, where, actor id)`: an actor is gone because its `__init__` raised.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeGuard

from dray.engines.rpc import wire
from dray.engines.rpc.pickler import pickler_class
from dray.engines.runtime import Args, Kwargs
from dray.errors import ActorDiedError, DrayError, SerializationError, raised_in_task
from dray.interrupts import interruptible, is_handlers

INLINE, STORED, SPILLED, RAISED, FAILED, INIT_FAILED = 1, 2, 3, 4, 5, 6
# Larger values go to shared memory.
INLINE_BYTES = 100 << 10

# Stands for a value, as above; the tuples differ in what follows their first element.
Stored = tuple[Any, ...]
Payload = bytes | Stored
# A payload, and the references in its value.
Result = tuple[Payload, Sequence[int]]
Buffer = bytes | bytearray | memoryview
# A pickle, and the buffers that it refers to.
Opened = tuple[Buffer, Sequence[Buffer]]
# The exceptions that may be retried: all, none, or these.
Retried = bool | tuple[type[BaseException], ...] | None

_PLAIN = frozenset((int, float, bool, type(None), str, bytes))
_collecting = threading.local()


class Packed(NamedTuple):
    """A value, pickled.

    Attributes:
        buffers: Buffers outside the pickle, not copied.
        refs: The references within, some of which may have been made for it alone.
        writable: Buffers that must be writable when they come back.
    """

    data: bytes
    buffers: Sequence[memoryview] = ()
    refs: Sequence[Any] = ()
    writable: Sequence[int] = ()

    @property
    def size(self) -> int:
        return len(self.data) + sum(len(buffer) for buffer in self.buffers)

    def inline(self) -> Payload:
        """Return the payload that holds all of it."""
        if not self.buffers:
            return self.data
        return (INLINE, self.data, [bytes(b) for b in self.buffers], tuple(self.writable))


def note_reference(ref: object) -> bool:
    """Take note that a reference is being pickled; return False if nobody takes notes."""
    refs = getattr(_collecting, "refs", None)
    if refs is None:
        return False
    refs.append(ref)
    return True


@contextmanager
def noting_references() -> Iterator[list[Any]]:
    """Collect the references that are pickled meanwhile in this thread."""
    before = getattr(_collecting, "refs", None)
    refs: list[Any] = []
    _collecting.refs = refs
    try:
        yield refs
    finally:
        _collecting.refs = before


def pack(value: object, what: str) -> Packed:
    """Pickle a value, functions and classes of `__main__` by value.

    Raises:
        SerializationError: It cannot be pickled; the message names the object that is to blame.
    """
    if type(value) in _PLAIN:
        return Packed(pickle.dumps(value, 5))
    with noting_references() as refs:
        buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        pickler = _pickler_class()(file, buffers)
        try:
            pickler.dump(value)
            raw = [buffer.raw() for buffer in buffers]
        except Exception as error:
            if is_handlers(error):
                raise
            return Packed(wire.dump(value, what), refs=refs)
    return Packed(file.getvalue(), raw, refs, pickler.writable)


def pack_arguments(args: Args, kwargs: Kwargs, callee: str) -> Packed:
    """Pickle the arguments of a call.

    Raises:
        SerializationError: One of them cannot be pickled; the message says which.
    """
    try:
        return pack((args, kwargs), f"an argument of {callee}")
    except SerializationError:
        for name, value in wire.named_arguments(args, kwargs, callee).items():
            pack(value, name)
        raise


_NOTHING = pickle.dumps(((), {}), 5)


def pack_plain(args: Args, kwargs: Kwargs) -> bytes | None:
    """Return the payload of a call's arguments if they are simple values, and few."""
    if kwargs:
        return None
    for value in args:
        if type(value) not in _PLAIN:
            return None
    data = pickle.dumps((args, kwargs), 5) if args else _NOTHING
    return data if len(data) <= INLINE_BYTES else None


def pack_result(value: object, what: str) -> Packed | bytes:
    """Return the payload of a simple and small value, or else what `pack` makes of it."""
    if type(value) in _PLAIN and len(data := pickle.dumps(value, 5)) <= INLINE_BYTES:
        return data
    return pack(value, what)


def unpack(data: Buffer, buffers: Sequence[Buffer] = ()) -> Any:
    """Return the value."""
    return pickle.loads(data, buffers=buffers) if buffers else pickle.loads(data)


def pack_types(types: Retried) -> Retried | bytes:
    """Return exception types as they travel to processes that may not have their module."""
    return types if types is None or isinstance(types, bool) else pack(types, "exceptions").data


def types_of(packed: Retried | bytes) -> Retried:
    """Return exception types that `pack_types` has packed."""
    return unpack(packed) if isinstance(packed, bytes) else packed


def unpack_inline(payload: Payload) -> Any:
    """Return the value of an inline payload."""
    return unpack(payload) if isinstance(payload, bytes) else unpack(*open_inline(payload))


def open_inline(payload: Stored) -> tuple[bytes, list[bytes | bytearray]]:
    """Return the pickle of an inline payload that has buffers, and those."""
    _, data, buffers, writable = payload
    return data, [bytearray(b) if i in writable else b for i, b in enumerate(buffers)]


def is_error(payload: object) -> TypeGuard[Stored]:
    """Return whether a payload stands for an error."""
    return type(payload) is tuple and payload[0] >= RAISED


def failed(error: DrayError) -> tuple[int, bytes]:
    """Return the payload of an error of dray's."""
    return (FAILED, pickle.dumps(error, 5))


def in_place_of(raised: Stored, error: DrayError) -> Stored:
    """Return the payload of an error that a task is said to have raised where it raised another."""
    kind, dumped, where = raised
    return kind, wire.with_traceback_of(dumped, error), where


@interruptible
def error_of(payload: Stored) -> BaseException:
    """Return the error that a payload stands for."""
    if payload[0] == FAILED:
        error: BaseException = pickle.loads(payload[1])
        return error
    kind, dumped, where, *actor_id = payload
    cause = wire.load_error(dumped)
    text = str(cause.__cause__).strip()
    cause.__cause__ = None
    raised = raised_in_task(cause, where, text)
    if kind == RAISED:
        return raised
    died = _unmade(raised, actor_id[0])
    died.__cause__ = raised
    return died


def unmade(payload: Payload, actor_id: str) -> Stored:
    """Return what stands in place of calls of an actor that an error keeps from being made.

    Args:
        payload: The error: of its `__init__`, or of one of its arguments.
    """
    assert isinstance(payload, tuple)
    kind, error, *where = payload
    if kind == FAILED:
        return failed(_unmade(pickle.loads(error), actor_id))
    return INIT_FAILED, error, where[0], actor_id


def _unmade(error: BaseException, actor_id: str) -> ActorDiedError:
    return ActorDiedError(
        None,
        details=f"the actor could not be made: {error}",
        actor_id=actor_id,
        actor_init_failed=True,
    )


@functools.cache
def _pickler_class() -> Any:
    class Pickler(pickler_class()):  # type: ignore[misc]
        """That of functions, with buffers of tensors kept apart as well."""

        def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer]) -> None:
            super().__init__(file, protocol=5, buffer_callback=buffers.append)
            self._buffers = buffers
            self.writable: list[int] = []

        def reducer_override(self, obj: Any) -> Any:
            kind = type(obj)
            if kind.__name__ == "Tensor" and kind.__module__ == "torch" and _is_simple(obj):
                import torch

                flat = obj.detach().cpu().reshape(-1).view(torch.uint8).numpy()
                buffer = pickle.PickleBuffer(flat)
                # A tensor may be written to at any time: its memory must be writable.
                self.writable.append(len(self._buffers))
                parts = (buffer, str(obj.dtype)[6:], tuple(obj.shape))
                if obj.device.type == "cpu":
                    return _tensor, parts
                return _tensor_on, (str(obj.device), *parts)
            return super().reducer_override(obj)

    return Pickler


def _is_simple(tensor: Any) -> bool:
    return bool(
        tensor.device.type in ("cpu", "cuda")
        and not tensor.requires_grad
        and str(tensor.layout) == "torch.strided"
        and tensor.is_contiguous()
        and tensor.numel()
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _tensor(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    torch = sys.modules.get("torch") or __import__("torch")
    return torch.frombuffer(buffer, dtype=getattr(torch, dtype)).reshape(shape)


def _tensor_on(device: str, *parts: Any) -> Any:
    """Return a tensor on the device that it was on, by the number that the receiver has for it.

    Raises:
        RuntimeError: This process cannot use such a device.
    """
    tensor = _tensor(*parts)
    torch = sys.modules["torch"]
    try:
        return tensor.to(device)
    except torch.cuda.OutOfMemoryError:  # its name in PyTorch 2.4 too
        raise
    except (RuntimeError, AssertionError) as error:
        said = str(error).partition("\n")[0]
        raise RuntimeError(
            f"a process received a tensor on {device}, and cannot use such a device ({said}): "
            "have it ask for a GPU (num_gpus=1), or send tensor.cpu()"
        ) from error
