"""Datasets: rows from files and memory, read lazily by programs and by training workers."""

from typing import TYPE_CHECKING

from dray.compat.attributes import attach_getattr

__all__ = [
    "ActorPoolStrategy",
    "BlockBasedFileDatasink",
    "DataContext",
    "DataIterator",
    "Dataset",
    "DatasetSummary",
    "Datasink",
    "Datasource",
    "ExecutionOptions",
    "ExecutionResources",
    "FileShuffleConfig",
    "GroupedData",
    "MixStoppingCondition",
    "NodeIdStr",
    "Preprocessor",
    "ReadTask",
    "RowBasedFileDatasink",
    "SaveMode",
    "Schema",
    "TaskPoolStrategy",
    "from_arrow",
    "from_arrow_refs",
    "from_huggingface",
    "from_items",
    "from_numpy",
    "from_numpy_refs",
    "from_pandas",
    "from_pandas_refs",
    "from_polars",
    "from_torch",
    "range",
    "range_tensor",
    "read_avro",
    "read_binary_files",
    "read_csv",
    "read_datasource",
    "read_delta",
    "read_iceberg",
    "read_images",
    "read_json",
    "read_lance",
    "read_numpy",
    "read_orc",
    "read_parquet",
    "read_sql",
    "read_text",
    "read_tfrecords",
    "read_webdataset",
]

# These names are imported at first use, because their modules import pyarrow.
_HOMES = {
    "dray.data.aggregate.summary": ("DatasetSummary",),
    "dray.data.context": ("DataContext", "DatasetContext"),
    "dray.data.dataset": ("Dataset",),
    "dray.data.execution_options": ("ExecutionOptions", "ExecutionResources", "NodeIdStr"),
    "dray.data.sources.combined": ("FileShuffleConfig",),
    "dray.data.sources.datasink": (
        *("BlockBasedFileDatasink", "Datasink", "RowBasedFileDatasink"),
    ),
    "dray.data.sources.datasource": ("Datasource", "ReadTask"),
    "dray.data.sources.target": ("SaveMode",),
    "dray.data.grouped": ("GroupedData",),
    "dray.data.iterator": ("DataIterator", "DatasetIterator"),
    "dray.data.pipeline": ("Schema",),
    "dray.data.preprocessors": ("Preprocessor",),
    "dray.data.from_memory": (
        *("from_arrow", "from_huggingface", "from_items", "from_numpy", "from_pandas"),
        *("from_arrow_refs", "from_numpy_refs", "from_pandas_refs"),
        *("from_polars", "from_torch", "range", "range_tensor"),
    ),
    "dray.data.relational": ("MixStoppingCondition",),
    "dray.data.readers.elsewhere": ("read_datasource", "read_sql"),
    "dray.data.readers.files": ("read_binary_files", "read_images", "read_numpy", "read_text"),
    "dray.data.readers.lakes": ("read_delta", "read_iceberg", "read_lance"),
    "dray.data.readers.records": ("read_avro", "read_tfrecords", "read_webdataset"),
    "dray.data.readers.tables": ("read_csv", "read_json", "read_orc", "read_parquet"),
    "dray.data.pools.options": ("ActorPoolStrategy", "TaskPoolStrategy"),
}

attach_getattr(
    __name__,
    later=("aggregate", "collate_fn", "datatype", "expressions", "preprocessors"),
    names=_HOMES,
)

if TYPE_CHECKING:
    from dray.data import aggregate as aggregate
    from dray.data import collate_fn as collate_fn
    from dray.data import datatype as datatype
    from dray.data import expressions as expressions
    from dray.data import preprocessors as preprocessors
    from dray.data.aggregate.summary import DatasetSummary
    from dray.data.context import DataContext
    from dray.data.dataset import Dataset
    from dray.data.execution_options import ExecutionOptions, ExecutionResources, NodeIdStr
    from dray.data.from_memory import (
        from_arrow,
        from_arrow_refs,
        from_huggingface,
        from_items,
        from_numpy,
        from_numpy_refs,
        from_pandas,
        from_pandas_refs,
        from_polars,
        from_torch,
        range,
        range_tensor,
    )
    from dray.data.grouped import GroupedData
    from dray.data.iterator import DataIterator
    from dray.data.pipeline import Schema
    from dray.data.pools.options import ActorPoolStrategy, TaskPoolStrategy
    from dray.data.preprocessors import Preprocessor
    from dray.data.readers.elsewhere import read_datasource, read_sql
    from dray.data.readers.files import read_binary_files, read_images, read_numpy, read_text
    from dray.data.readers.lakes import read_delta, read_iceberg, read_lance
    from dray.data.readers.records import read_avro, read_tfrecords, read_webdataset
    from dray.data.readers.tables import read_csv, read_json, read_orc, read_parquet
    from dray.data.relational import MixStoppingCondition
    from dray.data.sources.combined import FileShuffleConfig
    from dray.data.sources.datasink import BlockBasedFileDatasink, Datasink, RowBasedFileDatasink
    from dray.data.sources.datasource import Datasource, ReadTask
    from dray.data.sources.target import SaveMode
