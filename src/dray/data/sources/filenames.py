"""The names of files that rows are written to, if a program gives them."""

from __future__ import annotations


class FilenameProvider:
    """Names for the files of `write_parquet` and the like, for `filename_provider=`.

    Override `get_filename_for_task`. Files of one row each, as those of `write_images`, get
    `_000000_` and the row's number before the ending.

    Args:
        dataset_uuid: The beginning of names; None is none.
        file_format: The ending of names, such as "parquet"; None is none.

    Attributes:
        dataset_uuid: The first argument.
        file_format: The second one.

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
            write_uuid: A text that no other write has.
            task_index: The number of the file, from 0; no two files may have one name.
        """
        begin = "" if self.dataset_uuid is None else f"{self.dataset_uuid}_"
        end = "" if self.file_format is None else f".{self.file_format}"
        return f"{begin}{write_uuid}_{task_index:06}{end}"
