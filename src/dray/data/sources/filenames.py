"""Names that a program chooses for the files that rows are written to."""

from __future__ import annotations


class FilenameProvider:
    """Names of files, for the argument `filename_provider` of `write_parquet` and similar methods.

    Override `get_filename_for_task`. If each row has its own file, as in `write_images`, dray
    inserts `_000000_` and the row's number before the extension.

    Args:
        dataset_uuid: The prefix of the names; None is no prefix.
        file_format: The extension of the names, such as "parquet"; None is no extension.

    Attributes:
        dataset_uuid: The argument `dataset_uuid`.
        file_format: The argument `file_format`.

    Example:
        >>> from dray.data.datasource import FilenameProvider
        >>> class Numbered(FilenameProvider):
        ...     def get_filename_for_task(self, write_uuid, task_index):
        ...         return f"rows-{task_index:03}.{self.file_format}"
        >>> Numbered(file_format="csv").get_filename_for_task("8f1c", 2)
        'rows-002.csv'
    """

    def __init__(self, dataset_uuid: str | None = None, file_format: str | None = None) -> None:
        self.dataset_uuid, self.file_format = dataset_uuid, file_format

    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        """Return the name of a file.

        Args:
            write_uuid: A string that is unique to this write.
            task_index: The number of the file, from 0; each number needs another name.
        """
        begin = "" if self.dataset_uuid is None else f"{self.dataset_uuid}_"
        end = "" if self.file_format is None else f".{self.file_format}"
        return f"{begin}{write_uuid}_{task_index:06}{end}"
