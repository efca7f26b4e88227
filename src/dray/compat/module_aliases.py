"""Module paths of Ray for modules that have another path in dray."""

from __future__ import annotations

from collections.abc import Mapping

_API = ("config", "context", "data_parallel_trainer", "preemption")
_REPORTS = ("report_config", "reported_checkpoint", "result", "train_fn_utils", "validation_config")
_DATASOURCE = (
    *("datasink", "datasource", "file_based_datasource", "file_datasink", "filename_provider"),
    "partitioning",
)
_LIGHTGBM = ("config", "lightgbm_checkpoint", "lightgbm_trainer", "v2")
_TENSORFLOW = ("config", "tensorflow_checkpoint", "tensorflow_trainer", "train_loop_utils")
_XGBOOST = ("config", "v2", "xgboost_checkpoint", "xgboost_trainer")
_TORCH = ("torch_checkpoint", "torch_trainer", "train_loop_utils")

# Alias -> the module that it stands for.
ALIASES: Mapping[str, str] = {
    **dict.fromkeys(
        ("dray.air", "dray.air.checkpoint", "dray.air.config", "dray.air.result"), "dray.train"
    ),
    **dict.fromkeys(("dray.train.v2", "dray.train.v2.api"), "dray.train"),
    **{f"dray.train.v2.api.{name}": "dray.train" for name in (*_API, *_REPORTS)},
    "dray.data.block": "dray.data.forms.accessor",
    "dray.data.datasource": "dray.data.sources",
    **{f"dray.data.datasource.{name}": "dray.data.sources" for name in _DATASOURCE},
    "dray.data.grouped_data": "dray.data.grouped",
    "dray.data.stats": "dray.data.aggregate.summary",
    "dray.data.read_api": "dray.data",
    "dray.data.preprocessor": "dray.data.preprocessors",
    "dray.data.preprocessors.normalizer": "dray.data.preprocessors",
    **dict.fromkeys(("dray._raylet", "dray.types"), "dray"),
    "dray.util.check_serialize": "dray.util.serialization",
    "dray.util.helpers": "dray.util.results",
    "dray.util.multiprocessing.pool": "dray.util.multiprocessing",
    **dict.fromkeys(
        ("dray.util.state.api", "dray.experimental.state", "dray.experimental.state.api"),
        "dray.util.state",
    ),
    "dray.train.v2.api.callback": "dray.train.callback",
    "dray.train.v2.api.exceptions": "dray.exceptions",
    **{f"dray.train.{name}": "dray.train" for name in ("base_trainer", "data_parallel_trainer")},
    **{f"dray.train.torch.{name}": "dray.train.torch" for name in _TORCH},
    "dray.train.collective.collectives": "dray.train.collective",
    "dray.train.huggingface.transformers._transformers_utils": (
        "dray.train.huggingface.transformers"
    ),
    "dray.train.lightning._lightning_utils": "dray.train.lightning",
    "dray.train.v2.torch": "dray.train.torch",
    "dray.train.v2.torch.config": "dray.train.torch.config",
    **{f"dray.train.v2.torch.{name}": "dray.train.torch" for name in _TORCH},
    **{f"dray.train.lightgbm.{name}": "dray.train.lightgbm" for name in _LIGHTGBM},
    "dray.train.lightgbm._lightgbm_utils": "dray.train.lightgbm",
    "dray.train.v2.lightgbm": "dray.train.lightgbm",
    **{f"dray.train.v2.lightgbm.{name}": "dray.train.lightgbm" for name in _LIGHTGBM},
    **{f"dray.train.xgboost.{name}": "dray.train.xgboost" for name in _XGBOOST},
    "dray.train.xgboost._xgboost_utils": "dray.train.xgboost",
    "dray.train.v2.xgboost": "dray.train.xgboost",
    **{f"dray.train.v2.xgboost.{name}": "dray.train.xgboost" for name in _XGBOOST},
    **{f"dray.train.tensorflow.{name}": "dray.train.tensorflow" for name in _TENSORFLOW},
    "dray.train.v2.tensorflow": "dray.train.tensorflow",
    "dray.train.v2.tensorflow.tensorflow_trainer": "dray.train.tensorflow",
    "dray.air.session": "dray.train.air_session",
    "dray.air.integrations": "dray.train",  # needed only as the parent of the next one
    "dray.air.integrations.keras": "dray.train.tensorflow.keras",
    **{f"dray.train.v2.jax{rest}": "dray.train.jax" for rest in ("", ".config", ".jax_trainer")},
}
