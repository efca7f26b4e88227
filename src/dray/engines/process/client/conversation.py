"""The conversation of one process of a session with the hub.

The driver calls the hub directly, and a worker sends it messages. The operations are the `on_...`
methods in `hub/`.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from dray.engines.process.leader_follower import LeaderFollowers, Waiter
from dray.engines.process.lock import HubLock, check_depth, has_depth
from dray.engines.process.objects import references
from dray.engines.rpc import serialization
from dray.engines.rpc.framing import Message
from dray.errors import EngineError
from dray.errors.base import is_left_over, of_end
from dray.interrupts import leave, mark_shielded, pending, shielded, shut, watch

T = TypeVar("T")
Load = Callable[[Any], Any]  # makes what an answer stands for
Undo = Callable[[Any], object]  # takes an answer that nobody wants any more


class Conversation(ABC):
    """A process's half of the conversation with the hub.

    Args:
        number: The process's own number; what it makes is numbered after it.
        turns: Leader and followers among the threads that wait for answers.
    """

    def __init__(self, number: int, job_id: str, turns: LeaderFollowers) -> None:
        self.session = int(job_id, 16)
        self._ids = itertools.count((number << 40) + 1)
        self._readers = turns
        self._asked: dict[int, Waiter] = {}
        self._questions = itertools.count(1)
        self._closed = False
        self._pid = os.getpid()
        self.lock = HubLock()
        self.table = references.ReferenceCounter(self._tell, self.settle)
        _conversations.add(self)

    @abstractmethod
    def post(self, message: Message) -> None:
        """Tell the hub something. With the lock held."""

    def teller(self, what: str, *head: object) -> Callable[..., Any]:
        """Return what tells the hub something that begins so, and returns what it answers at once.

        With the lock held, as `post`.
        """

        def tell(*rest: object) -> None:
            self.post((what, *head, *rest))

        return tell

    @abstractmethod
    def here(self) -> Mapping[str, Any]:
        """Return what runs in the calling thread: its task, its actor and what they hold."""

    def _tell(self, what: str, number: int) -> None:
        if not self._closed:
            self.post((what, number))

    @shielded
    def on_received(self, number: int) -> None:
        """Take note of a reference that has come in."""
        self.lock.do(self.table.add_received, number)

    @shielded
    def keep(self, number: int) -> None:
        """Take note of a reference, or of one more, that the hub has counted already."""
        self.lock.do(self.table.add_created, number)

    def say(self, *message: object) -> None:
        """Tell the hub something, if it is still there."""
        watch()
        try:
            self._say(message)
        finally:
            if pending:
                leave()

    @mark_shielded
    def _say(self, message: Message) -> None:
        if self.lock.is_mine():  # a finaliser's
            self.lock.later(lambda: self.post(message))
            return
        self.lock.acquire()
        try:
            if self._closed:
                self.refuse_forks()
            else:
                self.post(message)
        finally:
            self.lock.release()
        if self.table.dropped or self.table.unpinned:
            self.settle()

    def settle(self) -> None:
        """Deal with references that have died, unless whoever has the lock will."""
        table, lock = self.table, self.lock
        while not self._closed and (table.dropped or table.unpinned):
            if lock.is_mine() or not has_depth() or not lock.acquire(blocking=False):
                return
            try:
                table.settle()
            finally:
                lock.release()

    def ask(self, *message: object) -> tuple[int, Waiter]:
        """Ask the hub something; the question's number is put behind the first word."""
        number, waiter = next(self._questions), Waiter()
        self._put_question(number, waiter, message)
        return number, waiter

    def _put_question(self, number: int, waiter: Waiter, message: Message) -> None:
        check_depth()
        self._asked[number] = waiter
        try:
            with self.lock:
                self.check_open()
                self.post((message[0], number, *message[1:]))
        except BaseException:
            self._asked.pop(number, None)
            raise

    def check_open(self) -> None:
        """Raise an EngineError if this session has ended. With the lock held."""
        if self._closed:
            self.refuse_forks()
            raise of_end(EngineError("this session has ended; call dray.init() again"))

    def refuse_forks(self) -> None:
        """Refuse to speak for a process in a fork of it."""
        if os.getpid() != self._pid:
            raise EngineError(
                f"this process ({os.getpid()}) is a fork of process {self._pid} and cannot use "
                "its dray session: call dray in the parent and pass the values to the fork, or "
                "start a session here with dray.init()"
            )

    def leave_to_parent(self) -> None:
        """Say and hear nothing any more: this process was just forked off the one that does."""
        self._closed = True
        self.lock = HubLock()  # another thread of the parent may have had it
        self.lock.closed = True
        self.table.dropped.clear()
        self.table.unpinned.clear()

    def answered(self, number: int, answer: object) -> None:
        waiter = self._asked.pop(number, None)
        if waiter is None:
            return
        waiter.value = answer
        if isinstance(waiter, _FutureWaiter):
            self._readers.aside(waiter.resolve)
        else:
            self._readers.finish(waiter)

    @shielded
    def demand(self, *message: object) -> Any:
        """Ask the hub something that it knows; return what it answers, or raise that."""
        _, waiter = self.ask(*message)
        self._readers.wait(waiter, interruptible=False)
        return accepted(waiter.value)

    def order(self, *message: object) -> None:
        """The same for what has no answer but an error; a finaliser need not wait for that."""
        if self.lock.is_mine() or self._readers.reads_here():
            self.say(message[0], 0, *message[1:])
        else:
            self.demand(*message)

    @shielded
    def await_answer(self, *message: object, undo: Undo | None = None) -> Any:
        """The same for what may take long, and may be interrupted.

        Args:
            undo: Takes an answer that comes when nobody wants it any more.
        """
        question, waiter = self.ask(*message)
        self._wait_for(question, waiter, None, undo)
        return accepted(waiter.value)

    def _wait_for(
        self, question: int, waiter: Waiter, timeout_s: float | None, undo: Undo | None = None
    ) -> None:
        """Wait for an answer; the hub says what there is when the time is up."""
        try:
            if not self._readers.wait(waiter, timeout_s):
                self._enough(question, waiter)
        except BaseException:  # a handler's, or the session ends
            if not self._closed:
                self._enough(question, waiter)
                if undo is not None:
                    undo(waiter.value)
            raise

    def _enough(self, question: int, waiter: Waiter) -> None:
        self.say("wait_over", question)
        self._readers.wait(waiter, interruptible=False)

    def end_waits(self, error: Callable[[], EngineError]) -> None:
        """End all that waits for an answer, in whatever thread, with an error."""
        self._readers.end(error)
        for number, waiter in list(self._asked.items()):
            if not isinstance(waiter, _FutureWaiter) or is_left_over(waiter.thread):
                continue  # the event loop of such a thread would show the error
            if self._asked.pop(number, None) is not None:
                waiter.fail(error())

    @shielded
    def promise(
        self, load: Load, *message: object, keep: object = None, undo: Undo | None = None
    ) -> AnswerFuture:
        """Ask the hub something; return a future of what `load` makes of the answer.

        Args:
            keep: Something that must live until the answer has come.
            undo: Takes an answer that comes although the future was cancelled.
        """
        number = next(self._questions)
        future = AnswerFuture(number, functools.partial(self.say, "wait_over", number))
        if self._closed:
            if is_left_over(threading.current_thread()):
                return future  # never done: an event loop would show an error
            self.check_open()
        self._readers.start_background("dray-answers")
        waiter = _FutureWaiter(future, load, keep, undo)
        self._put_question(number, waiter, message)
        if self.table.dropped or self.table.unpinned:
            self.settle()
        return future

    def give_back(self, question: int) -> None:
        """Say that what was reserved is needed no more, or that nobody waits for it any more."""
        self._asked.pop(question, None)
        self.say("return", question)

    def post_new(
        self, numbers: Sequence[int], post: Callable[..., T], *message: object
    ) -> T | None:
        """Tell the hub of what has references here from now on; return what `post` does."""
        check_depth()
        table, lock = self.table, self.lock
        if lock.is_mine():  # a finaliser's
            self.check_open()
            for made in numbers:
                table.counts[made] = 1
            lock.later(lambda: post(*message))
            return None
        lock.acquire()
        try:
            if self._closed:
                if is_left_over(threading.current_thread()):
                    return None  # nothing comes of it, as in `promise`
                self.check_open()
            for made in numbers:
                table.counts[made] = 1
            try:
                answer = post(*message)
            except BaseException:
                for made in numbers:
                    del table.counts[made]
                raise
        finally:
            lock.release()
        if table.dropped or table.unpinned:
            self.settle()
        return answer


_conversations: weakref.WeakSet[Conversation] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for conversation in list(_conversations):
        conversation.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


def accepted(answer: Any) -> Any:
    """Return an answer; raise the error that it may be."""
    if type(answer) is tuple and answer and answer[0] == "refused":
        raise serialization.error_of(answer[1])
    return answer


class AnswerFuture(Future[Any]):
    """A future that may be given up until the answer to a question is there."""

    def __init__(self, question: int, give_up: Callable[[], None]) -> None:
        super().__init__()
        self.question = question
        self._give_up = give_up

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            self._give_up()
        return cancelled


class _FutureWaiter(Waiter):
    """A waiter that no thread waits for: its answer goes into a future.

    Attributes:
        thread: The thread that has asked.
    """

    __slots__ = ("_future", "_kept", "_load", "_undo", "thread")

    def __init__(self, future: Future[Any], load: Load, keep: object, undo: Undo | None) -> None:
        super().__init__()
        self.thread = threading.current_thread()
        self._future = future
        self._load = load
        self._kept = keep  # the reference: without it the value would go as it comes
        self._undo = undo

    @shut
    def resolve(self) -> None:
        if self._future.set_running_or_notify_cancel():
            self._deliver()
        elif self._undo is not None:
            self._undo(self.value)
        self._kept = None

    def _deliver(self) -> None:
        try:
            value = self._load(self.value)
        except BaseException as error:  # noqa: BLE001 (it belongs to whoever waits)
            _settle(self._future.set_exception, error)
        else:
            _settle(self._future.set_result, value)

    @shut
    def fail(self, error: EngineError) -> None:
        if self._future.set_running_or_notify_cancel():
            _settle(self._future.set_exception, error)
        self._kept = None


def _settle(settle: Callable[[T], None], outcome: T) -> None:
    """Settle a future; a callback of it that exits does not end this thread or its other work.

    The exception is shown as that of a thread, so that `sys.exit()` is ignored silently.
    """
    try:
        settle(outcome)
    except BaseException:  # noqa: BLE001 (`Future` itself sees to each Exception)
        raised = (*sys.exc_info(), threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(raised))
