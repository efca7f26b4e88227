"""The pickler for functions and values that are sent: cloudpickle's, for modules of any type."""

from __future__ import annotations

import functools
import importlib
import io
import sys
from collections import ChainMap
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar, TypeVar

_OF_A_CHILD = "__mp_main__"
# The type of functions with functools.cache or lru_cache.
Cached = functools._lru_cache_wrapper
# The script, and its name in processes that multiprocessing starts afresh.
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
        In a child of multiprocessing, code of the script is sent by value, as in the script itself:
        cloudpickle takes it for a module that others can import.
        A function with a cache of functools is sent by value where the function is, with an empty
        cache: cloudpickle has only its name. A cached property has a lock before Python 3.12.
        """

        dispatch_table: ClassVar[Any] = ChainMap(
            {
                CodeType: _reduce_code,
                TypeVar: _reduce_type_variable,
                Cached: _reduce_cached,
                functools.cached_property: _reduce_cached_property,
            },
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


def _reduce_cached(cached: Any) -> Any:
    function = cached.__wrapped__
    by_name = cached.__reduce__()
    if not isinstance(function, FunctionType) or _is_importable(cached, by_name):
        return by_name
    # In two steps, since a function that calls itself means the cached one.
    return (
        _empty_cache,
        (cached.cache_parameters(),),
        function,
        None,
        None,
        functools.update_wrapper,
    )


def _is_importable(value: object, name: str) -> bool:
    module = getattr(value, "__module__", None)
    if module in MAIN_MODULES or module not in sys.modules:
        return False
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _empty_cache(parameters: dict[str, Any]) -> Any:
    def call(*args: object, **kwargs: object) -> object:
        return cached.__wrapped__(*args, **kwargs)

    cached: Any = functools.lru_cache(**parameters)(call)
    return cached


def _reduce_cached_property(cached: functools.cached_property[Any]) -> tuple[Any, ...]:
    return _cached_property, (cached.func, cached.attrname)


def _cached_property(function: Any, name: str | None) -> functools.cached_property[Any]:
    made: functools.cached_property[Any] = functools.cached_property(function)
    if name is not None:
        made.__set_name__(type, name)
    return made


def dumps(value: object) -> bytes:
    """Pickle a value, functions and classes of `__main__` by value."""
    file = io.BytesIO()
    pickler_class()(file, protocol=5).dump(value)
    return file.getvalue()
