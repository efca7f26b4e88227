"""Workers of tasks and workers of trainings live side by side in a session."""

from __future__ import annotations

from pathlib import Path

from tests.support import programs


def test_the_end_of_one_is_not_taken_for_the_others(tmp_path: Path) -> None:
    program = programs.write(
        tmp_path / "program.py",
        """
        import signal, dray

        pid = dray.remote(lambda: os.getpid())

        def train():
            return "fine"

        if __name__ == "__main__":
            assert fit(train).return_value == "fine"
            worker = dray.get(pid.remote())  # made by the same fork server
            assert fit(train).return_value == "fine"
            assert dray.get(pid.remote()) == worker
            os.kill(worker, signal.SIGKILL)
            assert fit(train).return_value == "fine"
            assert dray.get(pid.remote()) != worker
        """,
    )
    ended = programs.run(program, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "Exception in thread" not in ended.stderr
