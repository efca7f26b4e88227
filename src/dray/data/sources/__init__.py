"""Sources and sinks of rows, including the names of Ray Data's module `datasource`."""

from dray.compat.attributes import attach_getattr

__all__ = [
    "BlockBasedFileDatasink",
    "Datasink",
    "Datasource",
    "FileBasedDatasource",
    "FileShuffleConfig",
    "FilenameProvider",
    "PartitionStyle",
    "Partitioning",
    "PathPartitionFilter",
    "PathPartitionParser",
    "ReadTask",
    "RowBasedFileDatasink",
    "SaveMode",
    "WriteResult",
]

_HOMES = {
    "dray.data.sources.combined": ("FileShuffleConfig",),
    "dray.data.sources.datasink": (
        *("BlockBasedFileDatasink", "Datasink", "RowBasedFileDatasink", "WriteResult"),
        "WriteReturnType",
    ),
    "dray.data.sources.datasource": ("Datasource", "FileBasedDatasource", "ReadTask"),
    "dray.data.sources.filenames": ("FilenameProvider",),
    "dray.data.sources.partitions": (
        *("PartitionStyle", "Partitioning", "PathPartitionFilter", "PathPartitionParser"),
    ),
    "dray.data.sources.target": ("SaveMode",),
}

attach_getattr(__name__, names=_HOMES)
