"""PyTorch Lightning in the workers of a TorchTrainer: strategies, environment, reports.

Both packages are supported: `lightning` and `pytorch_lightning`. The names here extend the package
that the process has imported when it first uses one of them.
"""

import typing
from importlib.util import find_spec

from dray.compat.attributes import attach_getattr
from dray.errors import MissingDependencyError

__all__ = [
    "DrayDDPStrategy",
    "DrayDeepSpeedStrategy",
    "DrayFSDPStrategy",
    "DrayLightningEnvironment",
    "DrayTrainReportCallback",
    "RayDDPStrategy",
    "RayDeepSpeedStrategy",
    "RayFSDPStrategy",
    "RayLightningEnvironment",
    "RayTrainReportCallback",
    "prepare_trainer",
]

if typing.TYPE_CHECKING:
    from dray.train.lightning.callback import DrayTrainReportCallback, RayTrainReportCallback
    from dray.train.lightning.strategies import (
        DrayDDPStrategy,
        DrayDeepSpeedStrategy,
        DrayFSDPStrategy,
        DrayLightningEnvironment,
        RayDDPStrategy,
        RayDeepSpeedStrategy,
        RayFSDPStrategy,
        RayLightningEnvironment,
        prepare_trainer,
    )

if find_spec("lightning") is None and find_spec("pytorch_lightning") is None:
    raise MissingDependencyError("lightning", "dray[lightning]")

_CALLBACK = ("DrayTrainReportCallback", "RayTrainReportCallback")
attach_getattr(
    __name__,
    names={
        "dray.train.lightning.callback": _CALLBACK,
        "dray.train.lightning.strategies": [name for name in __all__ if name not in _CALLBACK],
    },
)
