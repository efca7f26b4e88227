"""Tell malignant from benign tumours with LightGBM on several workers; goes on where it was."""

from __future__ import annotations

import argparse
from typing import Any

import dray.train
from dray.train import FailureConfig, Result, RunConfig, ScalingConfig
from dray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback, get_network_params

PARAMS = {
    "objective": "binary",
    "metric": ["binary_logloss", "binary_error"],
    "tree_learner": "data",
    "verbosity": -1,
}


def train_loop(config: dict[str, Any]) -> None:
    import lightgbm
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    context = dray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    split = train_test_split(*load_breast_cancer(return_X_y=True), test_size=0.3, random_state=0)
    rows, test_rows, labels, test_labels = (part[rank::size] for part in split)
    data = lightgbm.Dataset(rows, labels)
    test = lightgbm.Dataset(test_rows, test_labels, reference=data)

    model, left = None, config["rounds"]
    checkpoint = dray.train.get_checkpoint()
    if checkpoint is not None:
        model = RayTrainReportCallback.get_model(checkpoint)
        left -= model.current_iteration()
    if left > 0:
        lightgbm.train(
            PARAMS | get_network_params(),
            data,
            num_boost_round=left,
            valid_sets=[data, test],
            valid_names=["train", "test"],
            init_model=model,
            callbacks=[RayTrainReportCallback(frequency=10)],
        )


def main() -> Result:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=50, help="those of an earlier run included")
    parser.add_argument("--storage-path", default="~/dray_results", help="where runs are kept")
    parser.add_argument("--name", help="the run's name; one used before goes on with that run")
    options = parser.parse_args()
    trainer = LightGBMTrainer(
        train_loop,
        train_loop_config={"rounds": options.rounds},
        scaling_config=ScalingConfig(num_workers=options.num_workers),
        run_config=RunConfig(
            name=options.name,
            storage_path=options.storage_path,
            failure_config=FailureConfig(max_failures=1),
        ),
    )
    return trainer.fit()


if __name__ == "__main__":
    result = main()
    assert result.metrics is not None
    assert result.checkpoint is not None
    print(f"wrong on {result.metrics['test-binary_error']:.1%} of rank 0's test rows")
    print(f"the model is {result.checkpoint.path}/{RayTrainReportCallback.CHECKPOINT_NAME}")
