"""The pickler of functions and values that travel: cloudpickle's, for modules of any type."""

from __future__ import annotations

import functools
import importlib
import io
import sys
from collections import ChainMap
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar, TypeVar

_OF_A_CHILD = "__mp_main__"
# The script, and what it is called in processes that multiprocessing starts afresh.
MAIN_MODULES = ("__main__", _OF_A_CHILD)


@functools.cache
def pickler_class() -> Any:
    """Return the class, made when it is first needed: cloudpickle is slow to import."""
    import cloudpickle
    from cloudpickle.cloudpickle_fast import _dynamic_class_reduce

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """cloudpickle's, and modules of a type of their own are imported by name as others are.

        cloudpickle sends the modules that a function may mean: one that says `torch.distributed`
        and `model.config` may mean `torch.distributed.config`, whose type PyTorch has made.
        Code keeps the file it is from, whose lines tracebacks show:
        cloudpickle 3.1.3 calls every file <dynamic-code>.
        What a child of multiprocessing has of the script is sent by value, as in the script itself:
        cloudpickle takes it for a module that others can import.
        """

        dispatch_table: ClassVar[Any] = ChainMap(
            {CodeType: _reduce_code, TypeVar: _reduce_type_variable},
            cloudpickle.Pickler.dispatch_table,
        )

        def reducer_override(self, obj: Any) -> Any:
            special = isinstance(obj, ModuleType) and type(obj) is not ModuleType
            if special and obj.__name__ in sys.modules:
                return importlib.import_module, (obj.__name__,)
            if isinstance(obj, FunctionType) and obj.__module__ == _OF_A_CHILD:
                return self._dynamic_function_reduce(obj)
            if isinstance(obj, type) and obj.__module__ == _OF_A_CHILD:
                return _dynamic_class_reduce(obj)
            return super().reducer_override(obj)

    return Pickler


# The position of the file's name among the arguments of CodeType, since Python 3.8.
_FILE_NAME = 10


def _reduce_code(code: CodeType) -> tuple[Any, tuple[Any, ...]]:
    import cloudpickle

    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, (*arguments[:_FILE_NAME], code.co_filename, *arguments[_FILE_NAME + 1 :])


def _reduce_type_variable(variable: TypeVar) -> tuple[Any, tuple[Any, ...]]:
    from cloudpickle import Pickler
    from cloudpickle.cloudpickle import _decompose_typevar, _make_typevar

    if variable.__module__ == _OF_A_CHILD:
        return _make_typevar, _decompose_typevar(variable)
    reduced: tuple[Any, tuple[Any, ...]] = Pickler.dispatch_table[TypeVar](variable)
    return reduced


def dumps(value: object) -> bytes:
    """Pickle a value, functions and classes of `__main__` by value."""
    file = io.BytesIO()
    pickler_class()(file, protocol=5).dump(value)
    return file.getvalue()
