"""Preprocessors: changes of columns that learn from one dataset and apply to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.checks import require
from dray.compat.attributes import attach_getattr

require("numpy", "dray[data]")
require("pyarrow", "dray[data]")

__all__ = [
    "Categorizer",
    "Chain",
    "Concatenator",
    "CountVectorizer",
    "CustomKBinsDiscretizer",
    "FeatureHasher",
    "HashingVectorizer",
    "LabelEncoder",
    "MaxAbsScaler",
    "MinMaxScaler",
    "MultiHotEncoder",
    "Normalizer",
    "OneHotEncoder",
    "OrdinalEncoder",
    "PowerTransformer",
    "Preprocessor",
    "RobustScaler",
    "SimpleImputer",
    "StandardScaler",
    "Tokenizer",
    "TorchVisionPreprocessor",
    "UniformKBinsDiscretizer",
]

_HOMES = {
    "dray.data.preprocessors.chain": ("Chain",),
    "dray.data.preprocessors.concatenator": ("Concatenator",),
    "dray.data.preprocessors.discretizer": ("CustomKBinsDiscretizer", "UniformKBinsDiscretizer"),
    "dray.data.preprocessors.encoder": (
        "Categorizer",
        "LabelEncoder",
        "MultiHotEncoder",
        "OneHotEncoder",
        "OrdinalEncoder",
    ),
    "dray.data.preprocessors.imputer": ("SimpleImputer",),
    "dray.data.preprocessors.preprocessor": ("Preprocessor",),
    "dray.data.preprocessors.scaler": (
        "MaxAbsScaler",
        "MinMaxScaler",
        "RobustScaler",
        "StandardScaler",
    ),
    "dray.data.preprocessors.tokenizer": ("Tokenizer",),
    "dray.data.preprocessors.torch": ("TorchVisionPreprocessor",),
    "dray.data.preprocessors.transformer": ("Normalizer", "PowerTransformer"),
    "dray.data.preprocessors.vectorizer": (
        "CountVectorizer",
        "FeatureHasher",
        "HashingVectorizer",
    ),
}

attach_getattr(__name__, names=_HOMES)

if TYPE_CHECKING:
    from dray.data.preprocessors.chain import Chain
    from dray.data.preprocessors.concatenator import Concatenator
    from dray.data.preprocessors.discretizer import (
        CustomKBinsDiscretizer,
        UniformKBinsDiscretizer,
    )
    from dray.data.preprocessors.encoder import (
        Categorizer,
        LabelEncoder,
        MultiHotEncoder,
        OneHotEncoder,
        OrdinalEncoder,
    )
    from dray.data.preprocessors.imputer import SimpleImputer
    from dray.data.preprocessors.preprocessor import Preprocessor
    from dray.data.preprocessors.scaler import (
        MaxAbsScaler,
        MinMaxScaler,
        RobustScaler,
        StandardScaler,
    )
    from dray.data.preprocessors.tokenizer import Tokenizer
    from dray.data.preprocessors.torch import TorchVisionPreprocessor
    from dray.data.preprocessors.transformer import Normalizer, PowerTransformer
    from dray.data.preprocessors.vectorizer import (
        CountVectorizer,
        FeatureHasher,
        HashingVectorizer,
    )
