"""The options of Ray Data that a program sets and reads; none of them changes anything here.

One that would change which rows there are is refused.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from dray.data.execution_options import ExecutionOptions
from dray.errors import AbsentNameError


class Options:
    """Options by any name, each of which may have options as well."""

    if TYPE_CHECKING:  # any name may be set

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        """Return options that a program may set, and finds again."""
        if name.startswith("_"):
            raise AttributeError(name)
        made = Options()
        setattr(self, name, made)
        return made

    def __call__(self, *_: object, **__: object) -> Any:
        """Raise: an executor that could do something is not there.

        Raises:
            AbsentNameError: Always.
        """
        raise AbsentNameError(
            "DataContext has no such function: pass values by set_config() or train_loop_config",
            owner="dray.data.DataContext",
            absent="functions",
        )


class DataContext(Options):
    """Options of Ray Data, and values of a program, which come to the workers of a training.

    There is one for each process; `fit()` of a trainer with datasets takes it along.

    Attributes:
        execution_options: Those of Ray's executor.
        max_errored_blocks: 0: a function that raises ends the iteration.

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
            AbsentNameError: It would have rows left out.
        """
        if name == "max_errored_blocks" and value != 0:
            raise AbsentNameError(
                "dray.data leaves out no rows on which a function fails, so max_errored_blocks is "
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
        """Be the options of this process."""
        DataContext._current = self

    def set_config(self, key: str, value: Any) -> None:
        """Keep a value, which workers of a training find under the same key."""
        self._config[key] = value

    def get_config(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or another if it has none."""
        return self._config.get(key, default)

    def remove_config(self, key: str) -> None:
        """Forget the value of a key."""
        self._config.pop(key, None)

    def copy(self) -> DataContext:
        """Return the same options, to be changed without changing these."""
        return copy.deepcopy(self)


DatasetContext = DataContext  # its former name in Ray
