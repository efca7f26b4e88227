"""A smoke test of an installed dray without extras, for `make release-check`."""

from __future__ import annotations

import importlib.util
import tempfile

import dray
import dray.train


@dray.remote
def square(number: int) -> int:
    """A task."""
    return number * number


def train(config: dict[str, int]) -> None:
    """A train function without a framework."""
    rank = dray.train.get_context().get_world_rank()
    for step in range(config["steps"]):
        dray.train.report({"step": step, "rank": rank})


def main() -> None:
    """Run tasks and a training of two workers.

    Raises:
        SystemExit: A result is wrong, or an extra is installed.
    """
    present = [name for name in ("ray", "torch", "jax") if importlib.util.find_spec(name)]
    squares = dray.get([square.remote(n) for n in range(4)])
    with tempfile.TemporaryDirectory() as storage:
        trainer = dray.train.DataParallelTrainer(
            train,
            train_loop_config={"steps": 3},
            scaling_config=dray.train.ScalingConfig(num_workers=2),
            run_config=dray.train.RunConfig(storage_path=storage),
        )
        metrics = trainer.fit().metrics
    dray.shutdown()
    if present or squares != [0, 1, 4, 9] or metrics != {"step": 2, "rank": 0}:
        raise SystemExit(f"not as expected: {present}, {squares}, {metrics}")
    print(f"dray {dray.__version__} from {dray.__file__}: tasks and training run")


if __name__ == "__main__":
    main()
