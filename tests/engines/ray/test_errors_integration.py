"""What Ray refuses, in dray's words."""

from __future__ import annotations

from pathlib import Path

import pytest

import dray
from dray.errors import ConfigError

pytestmark = [
    pytest.mark.usefixtures("engine"),
    pytest.mark.parametrize("engine_name", ["ray"], indirect=True),
]


def test_a_local_directory_of_one_task_is_refused(tmp_path: Path) -> None:
    @dray.remote(runtime_env={"working_dir": str(tmp_path)})
    def task() -> None:
        return None

    with pytest.raises(ConfigError, match=r"passed to `dray\.init\(runtime_env=\.\.\.\)`"):
        task.remote()
