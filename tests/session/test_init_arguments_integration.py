"""What `dray.init` takes of Ray's arguments, and the context that it returns."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dray
from dray import session
from dray.errors import AbsentArgumentError, ConfigError, EngineError
from tests.support.programs import environment


@pytest.fixture
def init(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start sessions, and end them."""
    monkeypatch.setenv("DRAY_PROGRESS", "0")
    monkeypatch.delenv("DRAY_ENGINE", raising=False)
    dray.shutdown()
    yield dray.init
    dray.shutdown()


def engine() -> str:
    assert session._engine is not None
    return session._engine.name


def test_the_context_tells_of_the_session_and_ends_it(init: Any) -> None:
    with init("local", num_cpus=2, _memory=2**30) as context:
        assert engine() == "process"
        assert dray.cluster_resources()["memory"] == 2**30
        own = dray.get_runtime_context().get_node_id()
        assert context.address_info["node_id"] == context["node_id"] == own
        assert context["node_ip_address"] == dray.nodes()[0]["NodeManagerAddress"]
        assert context.dashboard_url is context["address"] is context["webui_url"] is None
        assert dray.__version__ in repr(context)
        assert dray.__version__ in context._repr_html_()
        assert init(ignore_reinit_error=True)["node_id"] == own
    assert not dray.is_initialized()
    context = init(num_cpus=1)
    context.disconnect()
    with pytest.raises(EngineError, match="the session has ended"):
        context["node_id"]
    assert not dray.is_initialized()
    dray.shutdown(wait_for_processes=True, _exiting_interpreter=False)


def test_local_mode_is_the_inline_engine(init: Any) -> None:
    init(local_mode=True)
    assert engine() == "inline"
    dray.shutdown()
    with pytest.raises(ConfigError, match="local_mode=True is the inline engine; engine='proc"):
        init(local_mode=True, engine="process")


def test_what_has_no_meaning_here_is_said_to_who_looks(
    init: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("dray")
    monkeypatch.setattr(logger, "level", logger.level)
    init(
        local_mode=True,
        include_dashboard=False,
        dashboard_host="0.0.0.0",
        dashboard_port=8265,
        logging_level="debug",
        logging_format="%(message)s",
        configure_logging=True,
        job_config=None,
        logging_config=None,
        enable_resource_isolation=False,
        _temp_dir="/nowhere",
        _system_config={"a": 1},
    )
    assert logger.level == logging.DEBUG
    (said,) = [record.getMessage() for record in caplog.records if record.name == "dray"]
    assert said == (
        "dray.init: these arguments have no effect on the inline engine: include_dashboard, "
        "dashboard_host, dashboard_port, _temp_dir, _system_config, logging_format"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_cpu": 2}, r"dray.init\(\) has no argument 'num_cpu'; did you mean num_cpus?"),
        ({"qqq": 2}, r"dray.init\(\) has no argument 'qqq'; it takes address, engine, "),
        ({"job_config": object()}, r"has no argument 'job_config': give its parts to dray.init"),
        ({"logging_level": "loud"}, "logging_level must be a level of logging"),
        ({"address": "ray://head:10001"}, "Ray Client is not supported.*`ray job submit`"),
        ({"address": "ray://head:10001", "engine": "inline"}, "Ray Client is not supported"),
        ({"address": 4}, "address must be a string, not 4"),
    ],
)
def test_what_is_refused_says_what_to_do(
    init: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        init(**arguments)
    assert isinstance(refused.value, TypeError) == isinstance(refused.value, AbsentArgumentError)
    assert not dray.is_initialized()


def test_an_address_means_the_ray_engine(init: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert session._engine_at("auto", None, False) == ("ray", "auto")
    assert session._engine_at("10.0.0.1:6379", None, False) == ("ray", "10.0.0.1:6379")
    assert session._engine_at("local", None, False) == ("process", None)
    assert session._engine_at("local", "ray", False) == ("ray", "local")
    monkeypatch.setenv("DRAY_ENGINE", "process")
    with pytest.raises(ConfigError, match="the process engine runs on this machine alone"):
        init("10.0.0.1:6379")
    assert init("auto", num_cpus=2)["node_id"] == dray.nodes()[0]["NodeID"]


SCRIPT = """
import dray
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig
dray.init(num_cpus=2, log_to_driver={shown})

@dray.remote
def task():
    print("a task's line")

def loop():
    print("a rank's line")

dray.get(task.remote())
config = RunConfig(storage_path={storage!r}, name="run")
DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=1), run_config=config).fit()
print("the driver's line")
"""


@pytest.mark.parametrize("shown", [True, False])
def test_what_workers_print_is_shown_or_not(tmp_path: Path, shown: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(shown=shown, storage=str(tmp_path))],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ("a task's line" in done.stdout) is ("a rank's line" in done.stdout) is shown
    assert "the driver's line" in done.stdout
    logs = [path.read_text() for path in tmp_path.glob("run/logs/*/*.log")]
    assert logs == ["a rank's line\n"]
