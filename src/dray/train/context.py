"""The train function's side of a run: its context, `report`, `get_checkpoint`."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dray.checks import is_number, plain
from dray.compat.attributes import AbsentMember, attach_getattr
from dray.errors import ConfigError
from dray.train.checkpoint import Checkpoint
from dray.train.reported import CheckpointConsistencyMode, CheckpointUploadMode, ReportedCheckpoint
from dray.train.storage.checksums import Fingerprint
from dray.train.storage.names import check_checkpoint_name
from dray.train.storage.paths import check_directory
from dray.train.storage.place import RemotePath, path_within
from dray.train.validation import ValidationTaskConfig
from dray.train.worker.current_session import current_session
from dray.train.worker.run_messages import Assignment, Share
from dray.train.worker.session import TrainSession, files_of
from dray.train.worker.storage_context import StorageContext
from dray.train.worker.uploads import Upload

_MADE = "what checkpoint_upload_fn returns"
_SYNC = CheckpointUploadMode.SYNC


class TrainContext:
    """The ranks of this worker, and the names and paths of its run.

    Example:
        >>> from dray.train import DataParallelTrainer, ScalingConfig, get_context
        >>> def train_loop():
        ...     context = get_context()
        ...     return context.get_world_rank(), context.get_world_size()
        >>> scaling = ScalingConfig(num_workers=2)
        >>> DataParallelTrainer(train_loop, scaling_config=scaling).fit().return_value
        (0, 2)
    """

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    def get_world_size(self) -> int:
        """Return the number of workers."""
        return self._assignment.world_size

    def get_world_rank(self) -> int:
        """Return this worker's rank, from 0."""
        return self._assignment.rank

    def get_local_rank(self) -> int:
        """Return this worker's rank among those of its node, from 0."""
        return self._assignment.local_rank

    def get_local_world_size(self) -> int:
        """Return the number of workers on this node."""
        return self._assignment.local_world_size

    def get_node_rank(self) -> int:
        """Return the rank of this worker's node, from 0."""
        return self._assignment.node_rank

    def get_experiment_name(self) -> str:
        """Return the run's name."""
        return os.path.basename(self._assignment.run.path)

    def get_storage(self) -> StorageContext:
        """Return where the run keeps its checkpoints."""
        run = self._assignment.run
        return StorageContext(*os.path.split(run.path), run.filesystem)

    get_metadata = AbsentMember()
    get_trial_name = AbsentMember()
    get_trial_id = AbsentMember()
    get_trial_resources = AbsentMember()
    get_trial_dir = AbsentMember()


def get_context() -> TrainContext:
    """Return who this worker is.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> from dray.train import DataParallelTrainer, get_context
        >>> def train_loop():
        ...     if get_context().get_world_rank() == 0:
        ...         return "rank 0 alone writes the summary"
        >>> DataParallelTrainer(train_loop).fit().return_value
        'rank 0 alone writes the summary'
    """
    return TrainContext(current_session("get_context").assignment)


def get_checkpoint() -> Checkpoint | None:
    """Return the newest committed checkpoint of this run, or None if there is none yet.

    After a restart, and in a run whose name was used before, this is where to resume from.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> from dray.train import DataParallelTrainer, get_checkpoint
        >>> def train_loop():
        ...     checkpoint = get_checkpoint()
        ...     if checkpoint is None:
        ...         return "from the start"
        ...     with checkpoint.as_directory() as path:
        ...         return f"from the files in {path}"
        >>> DataParallelTrainer(train_loop).fit().return_value
        'from the start'
    """
    return current_session("get_checkpoint").checkpoint


def get_all_reported_checkpoints(
    consistency_mode: CheckpointConsistencyMode = CheckpointConsistencyMode.VALIDATED,
    timeout_s: float | None = None,
) -> list[ReportedCheckpoint]:
    """Return the checkpoints of the run so far, those of earlier starts included, oldest first.

    Wait until every report that this rank has made is done: made by all ranks, and committed if
    any of them brought a checkpoint. Checkpoints that `CheckpointConfig` has not kept are left out.

    Args:
        consistency_mode: Condition to wait for; VALIDATED also waits for every validation that has
            been asked for, which needs resources beside the workers.
        timeout_s: Seconds to wait before it returns the checkpoints that are there; None is without
            limit.

    Raises:
        ConfigError: An argument is malformed.
        NotInTrainingError: Called outside a train function.

    Example:
        >>> import tempfile
        >>> from dray.train import Checkpoint, DataParallelTrainer, report
        >>> from dray.train import get_all_reported_checkpoints
        >>> def train_loop():
        ...     for step in range(2):
        ...         with tempfile.TemporaryDirectory() as directory:
        ...             report({"step": step}, Checkpoint(directory))
        ...     return [reported.metrics for reported in get_all_reported_checkpoints()]
        >>> DataParallelTrainer(train_loop).fit().return_value
        [{'step': 0}, {'step': 1}]
    """
    session = current_session("get_all_reported_checkpoints")
    if not isinstance(consistency_mode, CheckpointConsistencyMode):
        raise ConfigError(
            f"consistency_mode must be a CheckpointConsistencyMode, not {consistency_mode!r}"
        )
    wait = plain(timeout_s)
    if wait is not None and (not is_number(wait) or not 0 <= wait <= threading.TIMEOUT_MAX):
        raise ConfigError(f"timeout_s must be None or seconds, 0 or more, not {timeout_s!r}")
    validated = consistency_mode is CheckpointConsistencyMode.VALIDATED
    return session.checkpoints(wait, validated=validated)


def checkpoint_dir() -> contextlib.AbstractContextManager[str]:
    """Return a context that gives an empty directory to write a checkpoint into.

    It lies on the file system of the run, so that a report of `Checkpoint.from_directory(path)`,
    within the context or after it, moves its files in place of copying them: nothing is written
    twice. With the report the directory is the run's: close its files before, and write to none of
    them afterwards. One that is not reported is deleted when the next is asked for, or when the
    train function ends. Each rank has its own. With storage that is no directory, it is a temporary
    directory of the node, which the report uploads and deletes.

    Raises:
        NotInTrainingError: Called outside a train function.
        StorageError: The directory cannot be made.

    Example:
        >>> import os
        >>> from dray.train import Checkpoint, DataParallelTrainer, checkpoint_dir, report
        >>> def train_loop():
        ...     with checkpoint_dir() as path:
        ...         with open(os.path.join(path, "model.txt"), "w") as file:
        ...             file.write("weights")
        ...         report({"loss": 0.5}, Checkpoint.from_directory(path))
        >>> sorted(os.listdir(DataParallelTrainer(train_loop).fit().checkpoint.path))
        ['.dray.json', 'model.txt']
    """
    return current_session("checkpoint_dir").directories.lend()


def report(
    metrics: Mapping[str, object],
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
    checkpoint_upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None,
    validation: bool | ValidationTaskConfig = False,
) -> None:
    """Report metrics, and with them perhaps a checkpoint.

    Without a checkpoint this writes a line to the rank's own metrics file and returns: ranks need
    not report equally often, and nothing is waited for. With a checkpoint it returns when the
    checkpoint is committed, which is when every rank has made its report of the same number and
    the files of all of them are in place. A file that several ranks have under the same name is
    taken from the lowest of them. With `RunConfig(report_barrier=True)` every report returns when
    every rank has made it, and its checkpoint, if one rank brought any, is committed.

    A report that fails on one rank counts on all of them. If that rank was to bring files, there is
    no checkpoint, and every rank that waits for one gets the error. A rank that catches the
    error goes on with the next report. A report that every rank has made is kept, even if something
    fails afterwards. Its
    checkpoint is safe from kills when this returns, and from a power cut soon after: its files are
    flushed beside the train function, and the rank's next report of a checkpoint waits for that.

    Args:
        metrics: Name to value: Python or numpy scalars, None, strings, and dicts or lists of them.
        checkpoint: A directory whose files are to be kept. They are copied, and the directory stays
            yours, unless it is one of `checkpoint_dir()`: that is taken as it is.
        checkpoint_dir_name: The checkpoint's name in the run directory, where it may not be that of
            the run's own files. If ranks differ, the lowest one counts. Default: `checkpoint_` and
            a number.
        checkpoint_upload_mode: SYNC copies the files. NO_UPLOAD leaves them where they are, which
            must be a directory in the run's own, such as
            `get_context().get_storage().build_checkpoint_path_from_name(name)`: then they are
            read once, for their checksums. ASYNC copies the files in a thread, one report after
            another, and returns at once: leave the directory as it is until then, so do not put it
            into a `with tempfile.TemporaryDirectory()`. The rank's next report raises an error of
            the thread, or the end of its function does, which waits for all reports. If a rank
            fails before all have made the report, its files are lost with it.
        delete_local_checkpoint_after_upload: Whether the directory is deleted once its files are
            copied and committed. Default: with ASYNC. A directory that lies in the run's directory
            already, or on a remote storage, stays.
        checkpoint_upload_fn: Brings this rank's files into the run's directory in place of dray:
            called with the checkpoint and the name of its directory there, it returns the
            checkpoint that it has made in `get_context().get_storage().experiment_fs_path`.
        validation: Whether the checkpoint is validated, by a task beside the training, as the
            trainer's `ValidationConfig` says; a `ValidationTaskConfig` adds arguments. The
            metrics that the task returns join the checkpoint's, and count for `CheckpointConfig`;
            until then the checkpoint is not deleted. `fit()` waits for it, and runs it again after
            a crash. If it fails, the checkpoint stays as it is. If ranks differ, the lowest one
            counts.

    Raises:
        ConfigError: The metrics hold something else, such as a tensor, the name is taken, or the
            checkpoint of NO_UPLOAD or of `checkpoint_upload_fn` is not in the run's directory, or
            any other has that directory in it; or `validation` comes without a checkpoint, or the
            trainer has no `validation_config`.
        StorageError: The metrics cannot be written, or a file of the checkpoint cannot be copied;
            or this report is made as it is to be, and the checkpoint of one before could not be
            copied, or is deleted, as the disk has not taken it.
        NotInTrainingError: Called outside a train function.

    Example:
        >>> from dray.train import DataParallelTrainer, report
        >>> def train_loop():
        ...     for epoch in range(3):
        ...         report({"epoch": epoch, "loss": 0.1})
        >>> DataParallelTrainer(train_loop).fit().metrics
        {'epoch': 2, 'loss': 0.1}
    """
    session = current_session("report")
    mode, delete = checkpoint_upload_mode, delete_local_checkpoint_after_upload
    if checkpoint is None and validation is False and mode is _SYNC:  # most are such, and cheap
        session.report(metrics)
        return
    with contextlib.ExitStack() as until_done:
        try:
            if not isinstance(mode, CheckpointUploadMode):
                raise ConfigError(
                    f"checkpoint_upload_mode must be a CheckpointUploadMode, not {mode!r}"
                )
            asked = _asked(validation, checkpoint, session)
            if checkpoint_dir_name is not None:
                check_checkpoint_name(checkpoint_dir_name)
            if checkpoint is None:
                upload = None
            else:
                how = _How(mode, checkpoint_dir_name, delete, checkpoint_upload_fn)
                upload = _upload(session, _checked(checkpoint, "checkpoint"), how, until_done)
        except Exception as error:
            session.report_without(metrics, error)
            raise
        session.report(metrics, upload, asked)


@dataclass(frozen=True)
class _How:
    """The way of a checkpoint into the run: arguments of `report`."""

    mode: CheckpointUploadMode
    name: str | None
    delete: bool | None
    bring: Callable[[Checkpoint, str], Checkpoint] | None


def _upload(
    session: TrainSession, local: Checkpoint, how: _How, until_done: contextlib.ExitStack
) -> Upload:
    """Return what the report of a checkpoint brings, after a look at all that can be seen before.

    Args:
        how: Its way into the run.
        until_done: Keeps what is needed until the report is made.

    Raises:
        ConfigError: It cannot be reported so.
        StorageError: It cannot be read.
    """
    mode = how.mode
    if mode is CheckpointUploadMode.NO_UPLOAD:
        return _lying_in_run(local, session)
    delete = how.delete
    if delete is None:
        delete = mode.default_delete_local_checkpoint_after_upload()
    if delete or how.bring is None:
        _check_apart(local, session)
    delete = delete and _may_be_deleted(local, session)
    if isinstance(local.place, RemotePath) and how.bring is None:
        # From one storage to another, by way of this node.
        copy = Checkpoint(until_done.enter_context(local.as_directory()))
        return Upload(copy, tuple(files_of(copy)), how.name)
    delete_at = local.path if delete else None
    if mode is CheckpointUploadMode.ASYNC:
        upload = _upload_beside(session, local, how.bring, how.name)
        return replace(upload, local=upload.local or delete_at)
    if how.bring is None:
        return Upload(local, tuple(files_of(local)), how.name, local=delete_at)
    made = how.bring(local, how.name or session.name_to_upload())
    return replace(_lying_in_run(_checked(made, _MADE), session), local=delete_at)


def _asked(
    validation: bool | ValidationTaskConfig, checkpoint: Checkpoint | None, session: TrainSession
) -> dict[str, object] | None:
    """Return what a report asks for of its checkpoint's validation, as `Reported` says it."""
    if validation is False:
        return None
    if validation is not True and not isinstance(validation, ValidationTaskConfig):
        raise ConfigError(f"validation must be a bool or ValidationTaskConfig, not {validation!r}")
    if checkpoint is None:
        raise ConfigError("validation=... needs a checkpoint; give one, or leave it out")
    if not session.assignment.run.validates:
        raise ConfigError(
            "validation=... needs a function that validates: give the trainer "
            "validation_config=ValidationConfig(fn)"
        )
    return {} if validation is True else validation.to_json()


def _lying_in_run(checkpoint: Checkpoint, session: TrainSession) -> Upload:
    """Return the report of a checkpoint that dray need not copy."""
    name = _name_in_run(checkpoint, session)
    return Upload(checkpoint, tuple(files_of(checkpoint)), name, in_place=True)


def _upload_beside(
    session: TrainSession,
    local: Checkpoint,
    bring: Callable[[Checkpoint, str], Checkpoint] | None,
    name: str | None,
) -> Upload:
    """Return how a checkpoint comes into the run beside the train function.

    Args:
        bring: As `checkpoint_upload_fn` of `report`.
        name: Name of the checkpoint, if it was given one.
    """
    if bring is None:
        files, own = tuple(files_of(local)), session.directories.owns(local.path)
        if own:
            session.directories.take(local.path)
        return Upload(local, files, name, beside=True, local=local.path if own else None)
    directory = name or session.name_to_upload()

    def place(share: Share) -> Mapping[str, Fingerprint]:
        made = _lying_in_run(_checked(bring(local, directory), _MADE), session)
        if made.directory != directory:
            raise ConfigError(
                f"{_MADE} is called {made.directory}, but the report says {directory}; write it to "
                "the name that checkpoint_upload_fn gets"
            )
        there = replace(share, staging=path_within(made.source.place), files=made.files)
        return session.bring(made.source, there)

    # What it will bring is not known before; a name of its own keeps ranks apart.
    files = (f"of rank {session.assignment.rank}",)
    return Upload(local, files, directory, in_place=True, beside=True, place=place)


def _checked(checkpoint: object, what: str) -> Checkpoint:
    if not isinstance(checkpoint, Checkpoint):
        raise ConfigError(
            f"{what} must be a dray.train.Checkpoint, not {checkpoint!r}; make one with "
            "Checkpoint.from_directory(path)"
        )
    return checkpoint


def _check_apart(checkpoint: Checkpoint, session: TrainSession) -> None:
    """Refuse a checkpoint that the run's directory lies in."""
    place, run = checkpoint.place, session.assignment.run.place
    if isinstance(place, RemotePath) or isinstance(run, RemotePath):
        inside = f"{run}/".startswith(f"{place}".rstrip("/") + "/")
    elif session.directories.owns(checkpoint.path):  # it lies in the run's directory itself
        return
    else:
        inside = run.resolve().is_relative_to(place.resolve())
    if inside:
        raise ConfigError(
            f"{place} cannot be a checkpoint of this run, because it contains the run's "
            f"directory {run}: report a directory that holds only the checkpoint"
        )


def _may_be_deleted(checkpoint: Checkpoint, session: TrainSession) -> bool:
    """Return whether a checkpoint is a rank's own, and not in the run's directory."""
    place, run = checkpoint.place, session.assignment.run.place
    if isinstance(place, RemotePath):
        return False
    if isinstance(run, RemotePath) or session.directories.owns(checkpoint.path):
        return True
    return not place.resolve().is_relative_to(run.resolve())


def _name_in_run(checkpoint: Checkpoint, session: TrainSession) -> str:
    """Return the name of a checkpoint that lies in the run's directory."""
    path, run = checkpoint.place, session.assignment.run.place
    name = path.name
    if isinstance(path, RemotePath) or isinstance(run, RemotePath):
        there = path.parent == run
    else:
        check_directory(checkpoint.path)
        there = os.path.samefile(path.parent, run)
    if not there:
        raise ConfigError(
            f"a checkpoint that dray does not copy must lie in the run's directory {run}, and "
            f"{path} does not; write it to get_context().get_storage()."
            "build_checkpoint_path_from_name(name), or leave the mode out to have it copied"
        )
    check_checkpoint_name(name)
    return name


attach_getattr(__name__)
