"""The start and the end of an attempt's workers: ranks, the framework's hooks, and the calls."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from dray.engines.base import Actor, ActorSpec, Engine, Mailbox
from dray.errors import NodeDiedError, describe
from dray.scheduling.requests import Reservation
from dray.settings import Settings
from dray.train.backend import Backend, BackendConfig
from dray.train.callback import UserCallback
from dray.train.config import RunConfig
from dray.train.planning.ranks import family_at
from dray.train.run.events import FunctionFailed, FunctionReturned
from dray.train.run.failure import is_death
from dray.train.run.output.progress import Progress
from dray.train.run.worker_group import Interrupted, RankFailed, WorkerGroup, WorkerState
from dray.train.scaling import ScalingConfig
from dray.train.storage.manifest import Committed
from dray.train.storage.place import RemotePath, path_within
from dray.train.storage.run_directory import RunDirectory
from dray.train.worker import log_records
from dray.train.worker.run_messages import Assignment, RunInfo
from dray.train.worker.train_worker import Ended, Job, TrainWorker


@dataclass(frozen=True)
class Launch:
    """Starts workers, again after each failure."""

    engine: Engine
    directory: RunDirectory
    scaling: ScalingConfig
    config: RunConfig
    backend: Backend
    backend_config: BackendConfig
    validates: bool

    @property
    def _may_be_late(self) -> bool:
        """True if nobody waits for a report without files: neither the ranks, nor a callback."""
        return not (self.config.report_barrier or self._calls_back)

    @property
    def _calls_back(self) -> bool:
        """True if a callback hears of each report."""
        hooks = (callback.after_report for callback in self.config.callbacks)
        own = UserCallback.after_report  # a callback's may also be an attribute of it alone
        return any(getattr(hook, "__func__", hook) is not own for hook in hooks)

    @property
    def follows_files(self) -> bool:
        """True if reports without files are read where ranks write them."""
        here = self.engine.one_host and not isinstance(self.directory.path, RemotePath)
        return here and self._may_be_late

    def start(
        self, reservation: Reservation, size: int, mailbox: Mailbox, progress: Progress
    ) -> WorkerGroup:
        """Begin to start a worker in each bundle of a reservation; the mailbox hears of each."""
        workers: list[WorkerState] = []
        try:
            for bundle in range(size):
                spec = ActorSpec(
                    factory=functools.partial(TrainWorker, own_process=self.engine.distributed),
                    name=f"worker {bundle}",
                    reservation=reservation,
                    bundle=bundle,
                    mailbox=mailbox,
                    runtime_env=self.config.runtime_env,
                    modules=self.backend_config.modules,
                )
                workers.append(WorkerState(self.engine.start_actor(spec), bundle))
        except BaseException:
            for worker in workers:
                worker.actor.kill()
            raise
        return WorkerGroup(workers, progress.warn, paced=self._calls_back)

    def give_ranks(self, group: WorkerGroup, attempt: int, checkpoint: Committed | None) -> None:
        """Tell workers that have started which rank each has, and from where to go on.

        Raises:
            RankFailed: A worker could not start its session.
        """
        place, kept = self.directory.path, self.config.checkpoint_config
        moved = Settings().own_directories and not isinstance(place, RemotePath)
        run = RunInfo(
            path=path_within(place),
            filesystem=place.filesystem if isinstance(place, RemotePath) else None,
            token=None if self.config.shared_storage else self.directory.storage.token(),
            attempt=attempt,
            first_report=checkpoint.report + 1 if checkpoint else 0,
            checkpoint=path_within(checkpoint.path) if checkpoint else None,
            positions=checkpoint.positions_of_all() if checkpoint else {},
            report_barrier=self.config.report_barrier,
            may_be_late=self._may_be_late,
            paced=group.paced,
            files_followed=self.follows_files,
            working_directory=str(self.directory.working_directory) if moved else None,
            validates=self.validates,
            care=self.directory.care(flush=kept.flush, checksums=kept.checksums),
            log_level=log_records.chosen_level(),
        )
        nodes = {node.node_id: node for node in self.engine.nodes()}
        size = len(group)
        group.assign_ranks(nodes, lambda worker: self._assignment(worker, size, run))

    def _assignment(self, worker: WorkerState, world_size: int, run: RunInfo) -> Assignment:
        position = worker.position
        assert position is not None
        family = family_at(position.place)
        own_variables = {*self.engine.env_vars, *self.config.runtime_env.env_vars}
        return Assignment(
            rank=position.rank,
            world_size=world_size,
            local_rank=position.local_rank,
            local_world_size=position.local_world_size,
            node_rank=position.node_rank,
            address=worker.address,
            run=run,
            family=None if family is None else family.name,
            devices={name: tuple(ids) for name, ids in worker.devices.items()},
            node_devices=position.node_devices,
            shares_devices=self.backend.share_cuda_visible_devices
            and not (family is not None and own_variables.intersection(family.variables)),
            cpus=(self.scaling.resources_per_worker or {}).get("CPU"),
            pinned=self.scaling.pin_workers,
        )

    def set_up(self, group: WorkerGroup) -> None:
        """Set the framework up on workers that have ranks."""
        self.backend.on_start(group, self.backend_config)
        self.backend.on_training_start(group, self.backend_config)

    def part(self, group: WorkerGroup, progress: Progress) -> bool:
        """Take the framework down, after all functions have returned: a failure undoes nothing.

        Returns:
            Whether it shut down cleanly; if not, the user has been told.
        """
        try:
            self.backend.on_shutdown(group, self.backend_config)
        except Interrupted:  # the controller's mailbox has it as well
            return True
        except RankFailed as error:
            who, failure = f"rank {error.rank}", error.error
        except Exception as error:  # noqa: BLE001 (a hook may raise anything)
            who, failure = "the framework", error
        else:
            return True
        if not self._is_death(failure):  # the controller tells of a death
            progress.warn(f"{who} failed to shut down cleanly: {describe(failure)}")
        return False

    def run(self, group: WorkerGroup, job: bytes | Job, mailbox: Mailbox) -> None:
        """Call the train function on every rank; the mailbox hears how each call has ended.

        Args:
            job: The function and its arguments; pickled, if workers have processes of their own.
        """
        calls = [(worker.actor, worker.actor.call("run", job)) for worker in group.workers]
        for actor, future in calls:
            future.add_done_callback(functools.partial(self._function_ended, actor, mailbox))

    def _function_ended(self, actor: Actor, mailbox: Mailbox, future: Future[Ended]) -> None:
        error = future.exception()
        if error is None:
            mailbox.put(FunctionReturned(actor, future.result()))
        elif not self._is_death(error):  # `Died` says whether the death was ours
            mailbox.put(FunctionFailed(actor, error))

    def _is_death(self, error: BaseException) -> bool:
        """Return whether a worker has ended; in this process whatever fails was raised."""
        return self.engine.distributed and is_death(error)

    def has_lost_node(self, failures: Iterable[BaseException]) -> bool:
        """Return whether one of the failures is the end of a node, and no error of a function's."""
        return any(isinstance(error, NodeDiedError) and self._is_death(error) for error in failures)
