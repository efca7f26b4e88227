"""The options of Ray Data that a program can set and read; dray stores them but does not use them.

An option that would change the rows of a dataset raises an error.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from dray.data.execution_options import ExecutionOptions
from dray.errors import AbsentNameError


class Options:
    """Options of any name, each of which may have options of its own."""

    if TYPE_CHECKING:  # any name may be set

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        """Return a new set of options, and store it under this name."""
        if name.startswith("_"):
            raise AttributeError(name)
        made = Options()
        setattr(self, name, made)
        return made

    def __call__(self, *_: object, **__: object) -> Any:
        """Raise an error, because dray has no executor that could do this.

        Raises:
            AbsentNameError: Always.
        """
        raise AbsentNameError(
            "DataContext has no such function: pass values by set_config() or train_loop_config",
            owner="dray.data.DataContext",
            absent="functions",
        )


class DataContext(Options):
    """Options of Ray Data and values of the program, which training workers receive.

    Each process has one. `fit()` of a trainer with datasets sends it to the workers.

    Attributes:
        execution_options: The options of Ray's executor.
        max_errored_blocks: 0, because a function that raises an error ends the iteration.

    Example:
        >>> import dray.data
        >>> context = dray.data.DataContext.get_current()
        >>> context.enable_progress_bars = False
        >>> context.set_config("root", "/data")
        >>> dray.data.DataContext.get_current().get_config("root")
        '/data'
    """

    _current: DataContext | None = None

    def __init__(self) -> None:
        self.execution_options = ExecutionOptions()
        self.max_errored_blocks = 0
        self._config: dict[str, Any] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option.

        Raises:
            AbsentNameError: The option would leave out rows.
        """
        if name == "max_errored_blocks" and value != 0:
            raise AbsentNameError(
                "dray.data never skips rows on which a function fails, so max_errored_blocks is "
                "always 0: have the function catch the error and return an empty batch, or call "
                "flat_map() with one that returns []",
                owner="dray.data.DataContext",
                absent=name,
            )
        super().__setattr__(name, value)

    @classmethod
    def get_current(cls) -> DataContext:
        """Return the options of this process."""
        if DataContext._current is None:
            DataContext._current = cls()
        return DataContext._current

    def make_current(self) -> None:
        """Make these the options of this process."""
        DataContext._current = self

    def set_config(self, key: str, value: Any) -> None:
        """Store a value; training workers find it under the same key."""
        self._config[key] = value

    def get_config(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default` if the key is not set."""
        return self._config.get(key, default)

    def remove_config(self, key: str) -> None:
        """Delete a key and its value."""
        self._config.pop(key, None)

    def copy(self) -> DataContext:
        """Return an independent copy."""
        return copy.deepcopy(self)


DatasetContext = DataContext  # the former name in Ray
