"""The object store: each object's value, its references, and its place in memory or on the disk.

An object is a number, a count and a payload (`rpc/serialization.py`). A small value is in the
payload itself. A large one is in a region of the shared memory that every process maps, and only
its place is sent between processes. Processes write and read the region directly; the store decides
where it is, and until when.

    room -> (written by a process) -> seal -> pin, unpin ... -> drop
      |                                |
      forget_room                      to the disk, if memory is short

Invariants:

- An object is freed when its count comes to 0, together with the objects that only its value
  referred to. This is done in a loop, since chains may be long. A number without references reads
  as an error, never as nothing: a process that asks for it gets an `ObjectLostError`.
- A payload is set once. Each waiting callback is called once, after it is set. If an object without
  references is sealed, its region is freed instead.
- A region is free when it has no owner (an object) and no pins (processes that map it). So a view
  stays valid after its object is gone, and the memory is reused when the last view ends. A region
  that was given and not sealed yet has no owner and no pins. It is in the `rooms` of the process
  that writes it, and is freed if that process ends.
- Only a region with an owner and without pins goes to the disk, least recently used first. These
  are listed in `_movable`, so that a store with many pinned regions finds one at once. Its payload
  changes to the place there. So a later reader reads it from the file, and a process that
  got the old payload had pinned the region. A place on the disk is kept while a process reads it.
- Both the memory and the disk's file have no name: the kernel frees them with the last process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dray.engines.process.objects.shared_memory import Allocator, Arena, SpillFile, round_up
from dray.engines.rpc.serialization import SPILLED, STORED, Payload, Stored, failed
from dray.errors import ObjectLostError, ObjectStoreFullError


@dataclass(eq=False, slots=True)
class ObjectEntry:
    """An object.

    Attributes:
        payload: Stands for its value; None while that is not there.
        holds: Number of processes, tasks and other objects that refer to it.
        nested: The objects that its value refers to.
        waiting: Called when the value is there.
    """

    payload: Payload | None = None
    holds: int = 0
    nested: Sequence[int] = ()
    waiting: list[Callable[[int], None]] | None = None
    on_unused: Callable[[], None] | None = None


@dataclass(eq=False, slots=True)
class Region:
    """A part of shared memory.

    Attributes:
        length: Length in bytes, in whole pages.
        pins: Number of processes that have it mapped.
        owner: The object that lies in it; None before it is written, and once that is unused.
    """

    offset: int
    length: int
    pins: int = 0
    owner: int | None = None


class Store:
    """Every object of a session. Not safe to use from several threads: the hub has a lock.

    Args:
        limit: Bytes that large objects may take in memory.
    """

    def __init__(self, limit: int) -> None:
        self.arena = Arena.create(limit)
        self.disk = SpillFile()
        self._allocator = Allocator(self.arena.size)
        self._entries: dict[int, ObjectEntry] = {}
        self._regions: dict[int, Region] = {}
        self._movable: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._next_region = 0
        self._disk_readers: dict[int, int] = {}
        self._disk_unused: dict[int, int] = {}

    # Objects.

    def add(self, number: int) -> ObjectEntry:
        """Begin an object, held once."""
        entry = self._entries.get(number)
        if entry is None:
            entry = self._entries[number] = ObjectEntry()
        entry.holds += 1
        return entry

    def find(self, number: int) -> ObjectEntry:
        """Return an object, even if it is one that is gone."""
        entry = self._entries.get(number)
        if entry is None:
            error = ObjectLostError(
                "the object is gone: its last reference was dropped before this one was used, "
                "or it is of another session; keep a reference to it, or pass it on inside an "
                "argument or a value"
            )
            return ObjectEntry(failed(error))
        return entry

    def exists(self, number: int) -> bool:
        return number in self._entries

    def seal(self, number: int, payload: Payload, nested: Sequence[int] = ()) -> None:
        """Give an object its value, if anybody refers to it."""
        entry = self._entries.get(number)
        if entry is None or entry.payload is not None:
            self._give_up(payload)
            return
        for inner in nested:
            self.hold(inner)
        entry.nested = nested
        entry.payload = payload
        if type(payload) is tuple and payload[0] == STORED:
            self._regions[payload[1]].owner = number
            self._settle(payload[1])
        waiting, entry.waiting = entry.waiting, None
        for callback in waiting or ():
            callback(number)

    def replace(self, number: int, payload: Payload) -> None:
        """Give an object whose value is of plain bytes another value."""
        entry = self._entries[number]
        assert type(entry.payload) is bytes
        entry.payload = payload

    def _give_up(self, payload: Payload) -> None:
        if type(payload) is tuple and payload[0] == STORED:
            self._settle(payload[1])
        elif type(payload) is tuple and payload[0] == SPILLED:
            self.free_disk(payload)

    def hold(self, number: int) -> None:
        """Take note of somebody who refers to an object."""
        entry = self._entries.get(number)
        if entry is not None:
            entry.holds += 1

    def drop(self, number: int) -> None:
        """Take note that somebody refers to an object no more; the last one frees it."""
        todo = [number]
        while todo:
            number = todo.pop()
            entry = self._entries.get(number)
            if entry is None:
                continue
            entry.holds -= 1
            if entry.holds > 0:
                continue
            del self._entries[number]
            todo += entry.nested
            payload = entry.payload
            if type(payload) is tuple:
                if payload[0] == STORED:
                    self._regions[payload[1]].owner = None
                self._give_up(payload)
            if entry.on_unused is not None:
                entry.on_unused()

    def when_ready(self, number: int, callback: Callable[[int], None]) -> bool:
        """Call back with the number when a value is there; return True, and do not, if it is."""
        entry = self.find(number)
        if entry.payload is not None:
            return True
        if entry.waiting is None:
            entry.waiting = []
        entry.waiting.append(callback)
        return False

    def when_unused(self, number: int, callback: Callable[[], None]) -> None:
        self._entries[number].on_unused = callback

    def forget_call(self, number: int, callback: Callable[[int], None]) -> None:
        entry = self._entries.get(number)
        if entry is not None and entry.waiting is not None and callback in entry.waiting:
            entry.waiting.remove(callback)

    # Memory.

    def room(self, lengths: Iterable[int]) -> Stored:
        """Return where the parts of an object may be written, as the beginning of its payload.

        If there is no room, the least recently used objects move to the disk; if all memory is in
        use, the new object goes there.

        Raises:
            ObjectStoreFullError: The disk is full as well.
        """
        total = _length(lengths)
        offset = self._allocator.take(total)
        fits = total <= self.arena.size
        while offset is None and fits and self._spill_one():
            offset = self._allocator.take(total)
        if offset is None:
            try:
                return (SPILLED, self.disk.take(total))
            except OSError as error:
                raise self._full(error) from error
        self.arena.taken(total)
        self._next_region += 1
        self._regions[self._next_region] = Region(offset, total)
        return (STORED, self._next_region, offset)

    def _spill_one(self) -> bool:
        """Move the least recently used object that nobody looks at to the disk."""
        number = next(iter(self._movable), None)
        if number is None:
            return False
        region = self._regions[number]
        assert region.owner is not None
        entry = self._entries[region.owner]
        assert entry.payload is not None  # or nothing would lie there
        _, _, offset, lengths, writable = entry.payload
        try:
            target = self.disk.take(region.length)
        except OSError as error:
            raise self._full(error) from error
        try:
            self.disk.copy_from(self.arena.fd, offset, target, region.length)
        except OSError as error:
            self.disk.free(target, region.length)
            raise self._full(error) from error
        entry.payload = (SPILLED, target, lengths, writable)
        region.owner = None
        self._settle(number)
        return True

    def _full(self, error: OSError) -> ObjectStoreFullError:
        return ObjectStoreFullError(
            f"the object store's memory ({self.arena.size >> 20} MiB) is full, and objects "
            f"cannot be moved to the disk: {error}. Drop references that you no longer need, "
            f"free space in the temporary directory{_temporary_directory()}, set TMPDIR to "
            "another one, or raise dray.init(object_store_memory=...)"
        )

    def forget_room(self, place: Stored, lengths: Iterable[int]) -> None:
        """Free what `room` gave and nobody has used."""
        if place[0] == STORED:
            self._settle(place[1])
        else:
            self.disk.free(place[1], _length(lengths))

    def _settle(self, number: int) -> None:
        """Free a region that is not used any more, or take note of whether it can be moved."""
        region = self._regions.get(number)
        if region is None:
            return
        self._movable.pop(number, None)
        if region.pins:
            return
        if region.owner is not None:
            self._movable[number] = None
            return
        del self._regions[number]
        self._allocator.free(region.offset, region.length)
        self.arena.freed(region.offset, region.length)

    def pin(self, number: int) -> None:
        """Take note of a process that looks into a region."""
        self._regions[number].pins += 1
        self._settle(number)

    def unpin(self, number: int) -> None:
        """Take note that it does no more."""
        region = self._regions.get(number)
        if region is not None:
            region.pins -= 1
            self._settle(number)

    def pin_disk(self, payload: Stored) -> None:
        """Take note of a process that is about to read an object from the disk."""
        self._disk_readers[payload[1]] = self._disk_readers.get(payload[1], 0) + 1

    def unpin_disk(self, payload: Stored) -> None:
        """Take note that it has."""
        offset = payload[1]
        self._disk_readers[offset] -= 1
        if not self._disk_readers[offset]:
            del self._disk_readers[offset]
            if offset in self._disk_unused:
                self.disk.free(offset, self._disk_unused.pop(offset))

    def free_disk(self, payload: Stored) -> None:
        """Free an object on the disk, once nobody reads it."""
        if payload[1] in self._disk_readers:
            self._disk_unused[payload[1]] = _length(payload[2])
        else:
            self.disk.free(payload[1], _length(payload[2]))

    def status(self) -> dict[str, int]:
        return {
            "objects": len(self._entries),
            "memory_bytes": self._allocator.used,
            "memory_limit_bytes": self.arena.size,
            "disk_bytes": self.disk.used,
        }

    def close(self) -> None:
        """Free everything; views that are still used stay good."""
        self.arena.close()
        self.disk.close()


def _temporary_directory() -> str:
    import tempfile

    try:
        return f" ({tempfile.gettempdir()})"
    except OSError:  # there is none, as the error says that this is about
        return ""


def _length(lengths: Iterable[int]) -> int:
    return sum(round_up(length) for length in lengths) or round_up(1)
