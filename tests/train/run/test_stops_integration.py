"""How a run is stopped: by Ctrl-C, SIGTERM or a callback; and who is said to be waited for."""

from __future__ import annotations

import atexit
import functools
import json
import linecache
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import dray.train
from dray.errors import ConfigError
from dray.train import Checkpoint, ControllerError, UserCallback
from tests.support.programs import Program, write
from tests.train.run.test_reports_integration import events, fit, states

SAVES = """
    import signal
    from dray.train.run import interruption

    interruption._SAME_S = 100.0

    def train():
        saved = os.path.join(os.environ["STORAGE"], "saved")
        os.makedirs(saved, exist_ok=True)
        for step in range(10**9):
            dray.train.report({"step": step}, dray.train.Checkpoint(saved))
            if step == 2 and dray.train.get_context().get_world_rank() == 0:
                print("third step", flush=True)

    signal.signal(signal.SIGUSR1, lambda *_: None)
    if os.environ.get("OWN") == "1":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    try:
        fit(train)
    finally:
        print("over", flush=True)
"""


def told(storage: Path) -> list[tuple[str, str]]:
    """The states of a run and their causes."""
    return [(event["state"], event["cause"]) for event in events(storage, "state")]


def _as_a_shell_does(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


def _as_slurm_and_timeout_do(pid: int) -> None:
    """Warn all processes; end the program, and then its group, of which the fork server is."""
    program = psutil.Process(pid)
    for process in (*program.children(recursive=True), program):
        process.send_signal(signal.SIGUSR1)
    os.kill(pid, signal.SIGTERM)
    os.killpg(os.getpgid(pid), signal.SIGTERM)


@pytest.mark.parametrize("terminate", [_as_a_shell_does, _as_slurm_and_timeout_do])
def test_sigterm_stops_at_the_next_report_and_then_ends_the_program(
    tmp_path: Path, terminate: Callable[[int], None]
) -> None:
    with Program(write(tmp_path / "script.py", SAVES), tmp_path / "runs") as program:
        program.wait_for("third step")
        terminate(program.process.pid)
        status, output = program.end()
    assert status == -signal.SIGTERM, output
    assert "over" not in output  # as before: what ends by this signal runs no `finally`
    assert "send SIGTERM again to stop at once" in output
    assert "run: ABORTED" in output
    assert told(tmp_path / "runs")[-3:] == [
        ("STOPPING", "SIGTERM"),
        ("ABORTING", "train function ended on every rank"),
        ("ABORTED", "all workers gone"),
    ]
    reports = (tmp_path / "runs/run/metrics/rank-00000.jsonl").read_text().splitlines()
    saved = sorted(path.name for path in (tmp_path / "runs/run").glob("checkpoint_*"))
    assert len(saved) == len(reports) > 2


def test_sigterm_is_the_programs_if_it_has_said_what_it_does(tmp_path: Path) -> None:
    script = write(tmp_path / "script.py", SAVES)
    with Program(script, tmp_path / "runs", OWN="1") as program:
        program.wait_for("third step")
        os.kill(program.process.pid, signal.SIGTERM)
        status, output = program.end()
    assert status == 7, output
    assert "over" in output


def test_ctrl_c_ends_a_run_that_does_not_report(tmp_path: Path) -> None:
    script = write(
        tmp_path / "script.py",
        """
        def train():
            print("starts", flush=True)
            threading.Event().wait()

        try:
            fit(train)
        except KeyboardInterrupt as interrupt:
            print("interrupted:", interrupt)
        """,
    )
    with Program(script, tmp_path / "runs", DRAY_STOP_GRACE_S="0.3") as program:
        program.wait_for("starts")
        os.kill(program.process.pid, signal.SIGINT)
        status, output = program.end()
    assert status == 0, output
    assert "no report came within 0.3 s; stopping at once" in output
    assert "interrupted: the run was stopped; it has no checkpoint to continue from" in output
    assert [state for state, _ in told(tmp_path / "runs")][-3:] == [
        "STOPPING",
        "ABORTING",
        "ABORTED",
    ]


def test_who_waits_for_a_rank_that_has_stopped_stops_as_well(tmp_path: Path) -> None:
    script = """
        def train():
            for step in range(10**9):
                if dray.train.get_context().get_world_rank() == 0:
                    dray.train.report({"step": step})  # stops here; the other never reports
                dray.train.collective.barrier()
                if step == 2 and dray.train.get_context().get_world_rank() == 0:
                    print("third step", flush=True)

        fit(train)
    """
    path, storage = write(tmp_path / "script.py", script), tmp_path / "runs"
    with Program(path, storage, DRAY_STOP_GRACE_S="600") as program:
        program.wait_for("third step")
        os.kill(program.process.pid, signal.SIGTERM)
        _, output = program.end()
    assert "run: ABORTED" in output
    assert told(storage)[-2] == ("ABORTING", "train function ended on every rank")


# Early, by a callback.


class StopAt(UserCallback):
    """Stops a run at a step.

    Args:
        step: Which one.
    """

    def __init__(self, step: int) -> None:
        self.step = step

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        if metrics[0]["step"] == self.step:
            run_context.stop("it is good enough")


def save_for_ever(storage: Path) -> None:
    rank = dray.train.get_context().get_world_rank()
    saved = storage / f"saved-{rank}"
    saved.mkdir(exist_ok=True)
    for step in range(10**9):
        (saved / f"step-{rank}").write_text(str(step))
        dray.train.report({"step": step}, Checkpoint(saved))


@pytest.mark.usefixtures("process_engine")
def test_a_callback_ends_a_run_well(storage: Path) -> None:
    result = fit(lambda: save_for_ever(storage), storage, callbacks=[StopAt(3)])
    assert result.metrics is not None
    assert result.metrics["step"] in (4, 5)
    assert result.checkpoint is not None
    for rank in range(2):
        assert Path(result.checkpoint.path, f"step-{rank}").read_text() == str(
            result.metrics["step"]
        )
    assert told(storage)[3:] == [
        ("CONCLUDING", "a callback asked to stop: it is good enough"),
        ("FINISHING", "train function ended on every rank"),
        ("FINISHED", "all workers gone"),
    ]


@pytest.mark.usefixtures("process_engine")
def test_a_rank_that_fails_while_a_run_concludes_does_not_undo_it(storage: Path) -> None:
    def train() -> None:
        if dray.train.get_context().get_world_rank() == 0:
            save_for_ever(storage)
        for step in range(2):
            dray.train.report({"step": step})
        while "CONCLUDING" not in (storage / "run/events.jsonl").read_text():
            threading.Event().wait(0.01)
        raise LookupError

    result = fit(train, storage, callbacks=[StopAt(1)])
    assert result.checkpoint is not None
    assert states(storage)[3:] == ["CONCLUDING", "FINISHING", "FINISHED"]
    assert len(events(storage, "worker failed")) == 1


@pytest.mark.usefixtures("process_engine")
@pytest.mark.parametrize(("pause_s", "last"), [(1, {4, 5}), (10**9, {0})])
def test_a_run_concludes_as_long_as_reports_come(
    storage: Path, monkeypatch: pytest.MonkeyPatch, pause_s: int, last: set[int]
) -> None:
    monkeypatch.setenv("DRAY_CONCLUDE_GRACE_S", "3")

    def train() -> None:
        if dray.train.get_context().get_world_rank() == 1:
            dray.train.collective.barrier()  # the controller knows that rank 0 is ahead
            for step in range(10):
                dray.train.report({"step": step})
                threading.Event().wait(pause_s)
        for step in range(4):
            dray.train.report({"step": step})
        dray.train.collective.barrier()
        while "CONCLUDING" not in (storage / "run/events.jsonl").read_text():
            threading.Event().wait(0.01)
        dray.train.report({"step": 4})  # and stops here, or after it, if it was not asked yet

    fit(train, storage, callbacks=[StopAt(0)])
    lines = (storage / "run/metrics/rank-00001.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["metrics"]["step"] in last
    why = "grace over" if last == {0} else "train function ended on every rank"
    assert told(storage)[4:] == [("FINISHING", why), ("FINISHED", "all workers gone")]


@pytest.mark.usefixtures("process_engine")
def test_a_callback_that_stops_in_the_other_hooks(storage: Path) -> None:
    class Before(UserCallback):
        def before_run(self, run_context: Any) -> None:
            run_context.stop()

        def after_run(self, run_context: Any) -> None:
            assert run_context.get_run_config().name == run_context.name
            assert run_context.scaling_config.num_workers == 2
            run_context.stop()

    result = fit(lambda: save_for_ever(storage), storage / "1", callbacks=[Before()])
    assert result.metrics == {"step": 0}

    class AfterException(UserCallback):
        def after_exception(self, run_context: Any, worker_exceptions: Any) -> None:
            run_context.stop()

    def train() -> None:
        raise LookupError

    failures = dray.train.FailureConfig(max_failures=-1)
    with pytest.raises(LookupError):
        fit(train, storage / "2", callbacks=[AfterException()], failure_config=failures)
    assert len(events(storage / "2", "worker failed")) <= 2


# The first real cause is what fit() raises.


class Fails(UserCallback):
    """Raises in one of its hooks.

    Args:
        hook: Which one.
    """

    def __init__(self, hook: str) -> None:
        setattr(self, hook, self._fail)

    def _fail(self, *_: Any) -> None:
        raise KeyError("callback")


@pytest.mark.usefixtures("process_engine")
@pytest.mark.parametrize("hook", ["before_run", "after_report", "after_run"])
def test_an_error_in_any_hook_ends_a_run(storage: Path, hook: str) -> None:
    with pytest.raises(KeyError, match="callback") as caught:
        fit(lambda: dray.train.report({}), storage, workers=1, callbacks=[Fails(hook)])
    assert isinstance(caught.value, ControllerError)
    (told,) = events(storage, "controller failed")
    assert told["cause"] == "KeyError: 'callback'"


@pytest.mark.usefixtures("process_engine")
@pytest.mark.parametrize("hook", ["after_exception", "after_run"])
def test_an_error_in_a_hook_does_not_hide_the_workers(
    storage: Path, hook: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")

    def train() -> None:
        raise LookupError("the first cause")

    with pytest.raises(LookupError, match="the first cause"):
        fit(train, storage, workers=1, callbacks=[Fails(hook)])
    assert "after the failure, on the driver: KeyError: 'callback'" in capfd.readouterr().err


@pytest.mark.usefixtures("process_engine")
@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_events_that_cannot_be_recorded_do_not_fail_a_run(
    storage: Path, ends: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")

    class Breaks(UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            log = run_context.path / "events.jsonl"
            log.unlink()
            log.mkdir()  # a full disk, as far as one who writes can tell

    def train() -> int:
        dray.train.report({})
        if ends == "raises":
            raise LookupError("its own")
        return 7

    if ends == "raises":
        with pytest.raises(LookupError, match="its own"):
            fit(train, storage, workers=1, callbacks=[Breaks()])
    else:
        assert fit(train, storage, workers=1, callbacks=[Breaks()]).return_value == 7
    assert capfd.readouterr().err.count("stops recording the events") == 1


# Who is waited for.


@pytest.mark.usefixtures("process_engine")
@pytest.mark.parametrize("at", ["report", "barrier", "report with a barrier", "end", "return"])
def test_who_is_waited_for_is_told(
    storage: Path, at: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")
    monkeypatch.setenv("DRAY_WAIT_WARNING_S", "0.2")

    def train() -> int:
        rank = dray.train.get_context().get_world_rank()
        if at == "return":
            dray.train.report({})
        if rank == 1:
            (storage / "pid").write_text(str(os.getpid()))
            while (storage / "run/events.jsonl").read_text().count('"waiting"') < 4:  # two lines
                threading.Event().wait(0.02)
        if at == "barrier":
            dray.train.collective.barrier()
        elif at == "report":
            saved = storage / f"saved-{rank}"
            saved.mkdir()
            dray.train.report({}, Checkpoint(saved))
        elif at != "return":
            dray.train.report({})
        return rank

    fit(train, storage, report_barrier=at == "report with a barrier")
    first, second = events(storage, "waiting")[:2]
    what = {"barrier": "come to barrier()", "return": "returned"}.get(at, "made report 0")
    waiting = [] if at in ("end", "return") else [0]
    assert first["missing"] == [1]
    assert (first["what"], first["waiting"]) == (what, waiting)
    assert second["seconds"] >= 2 * first["seconds"] >= 0.4
    said = capfd.readouterr().err
    pid = (storage / "pid").read_text()
    assert re.search(rf"rank 1 has not {re.escape(what)} for \d+ s", said)
    assert f"(rank 1: pid {pid}, node " in said
    assert f"; `py-spy dump --pid {pid}` shows where it is)" in said
    ended = {"end": "has, and has returned", "return": "has"}
    assert f"; rank 0 {ended.get(at, 'waits for it')} (" in said


# A name that was used before.


@pytest.mark.usefixtures("process_engine")
def test_another_config_of_the_function_is_told(
    storage: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")

    class Loop:
        def __call__(self, config: dict[str, Any]) -> None:
            dray.train.report({})

    def adds(by: int, config: dict[str, Any]) -> None:
        dray.train.report({"by": by})

    config = {"lr": 0.1, "token": "secret", "model": {"layers": 2}, "data": object()}
    for function in (Loop(), Loop(), functools.partial(adds, 1), functools.partial(adds, 1)):
        fit(function, storage, config=config)
    assert (
        capfd.readouterr().err.count("was started with other code or settings") == 1
    )  # the function is another, once
    config |= {"lr": 1, "token": "x", "model": {}}
    fit(functools.partial(adds, 1), storage, config=config)
    said = capfd.readouterr().err
    assert "other code or settings: train_loop_config.lr was 0.1, and is 1 now" in said
    assert "train_loop_config.token has another text now" in said
    assert "train_loop_config.model.layers was 2, and is None now" in said
    assert "secret" not in (storage / "run/run.json").read_text()


def test_a_function_that_has_changed_is_told_of(
    storage: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """Not one whose source cannot be read, as that of `python - < script.py`."""
    monkeypatch.setenv("DRAY_PROGRESS", "1")

    def told(file: Path, text: str) -> bool:
        scope: dict[str, Any] = {}
        exec(compile(text, file, "exec"), scope)
        linecache.checkcache()
        fit(scope["train"], storage)
        return "the train function 'train' has changed" in capfd.readouterr().err

    script = storage.parent / "script.py"
    train = "import dray.train\ndef train():\n    return {}\n"
    for number, changed in ((1, False), (1, False), (22, True)):
        script.write_text(train.format(number))
        assert told(script, script.read_text()) is changed
    assert not told(Path("<stdin>"), train.format(333))
    assert not told(script, script.read_text())


def test_a_name_of_another_training_is_told_and_kept(
    storage: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")

    def train() -> None:
        dray.train.report({})

    def other() -> None:
        dray.train.report({})

    fit(train, storage)
    fit(train, storage)
    assert "was started with other code or settings" not in capfd.readouterr().err
    fit(other, storage, workers=1)
    said = capfd.readouterr().err
    assert "the train function was 'test_a_name" in said
    assert "other' now; scaling_config.num_workers was 2, and is 1 now" in said
    assert "give RunConfig another name" in said
    written = json.loads((storage / "run/run.json").read_text())
    assert [each["scaling_config"]["num_workers"] for each in written["history"]] == [2, 2]
    assert written["scaling_config"]["num_workers"] == 1
    assert not any("history" in each for each in written["history"])
    fit(train, storage, workers=1, on_mismatch="ignore")
    assert "was started with other code or settings" not in capfd.readouterr().err
    with pytest.raises(
        ConfigError, match=r"'run' was started with other .*: .*num_workers was 1, and is 2"
    ):
        fit(train, storage, on_mismatch="error")
    assert json.loads((storage / "run/run.json").read_text())["scaling_config"]["num_workers"] == 1
    fit(train, storage, workers=1, on_mismatch="error")
    events = map(json.loads, (storage / "run/events.jsonl").read_text().splitlines())
    changes = [event["changes"] for event in events if "changed" in event["event"]]
    assert [len(each) for each in changes] == [2, 1]
    assert changes[0][1] == "scaling_config.num_workers was 2, and is 1 now"


@pytest.mark.usefixtures("process_engine")
def test_a_process_that_goes_on_after_its_function_is_told(
    storage: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")
    monkeypatch.setenv("DRAY_WAIT_WARNING_S", "0.2")

    def goes_on() -> None:
        while (storage / "run/events.jsonl").read_text().count('"waiting"') < 4:  # two lines
            threading.Event().wait(0.02)

    def train() -> int:
        if dray.train.get_context().get_world_rank() == 1:
            atexit.register(goes_on)
        return 7

    assert fit(train, storage).return_value == 7
    first, second = events(storage, "waiting")
    assert (first["missing"], second["missing"]) == ([1], [1])
    said = capfd.readouterr().err
    assert re.search(
        r"rank 1 has not ended, though all functions have returned, for \d+ s \(rank 1: pid", said
    )
