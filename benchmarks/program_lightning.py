"""Program: trains with Lightning, under a library or by Lightning's own launcher.

Arguments: those of `benchmarks.stepping`.
"""

from typing import Any

import lightning.pytorch as pl
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from benchmarks.stepping import BATCH_SIZE, Config, Steps, main, names_of, network, rows, rows_in

of_library = names_of("lightning")


class Classifier(pl.LightningModule):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.network, self.config = network(), config

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())

    def train_dataloader(self) -> Any:
        return DataLoader(rows(rows_in(self.config)), batch_size=BATCH_SIZE, shuffle=True)


class Told(pl.Callback):
    """A callback that records the steps."""

    steps: Steps

    def on_train_batch_end(self, *_: Any) -> None:
        self.steps.stepped()


def train(config: Config) -> None:
    told = Told()
    given: dict[str, Any] = {"strategy": "ddp", "devices": config["workers"], "callbacks": [told]}
    callback = None
    if of_library is not None:
        callback = of_library.RayTrainReportCallback()
        plugins = [of_library.RayLightningEnvironment()]
        given = {"strategy": of_library.RayDDPStrategy(), "plugins": plugins}
        given["callbacks"] = [callback, told]
    quiet = ("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger")
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=config["steps"], **dict.fromkeys(quiet, False), **given
    )
    told.steps = Steps(config, trainer.global_rank)
    if of_library is not None:
        told.steps.watch(callback, "on_train_batch_end")
        trainer = of_library.prepare_trainer(trainer)
    trainer.fit(Classifier(config))


if __name__ == "__main__":
    main(train, alone=train)
