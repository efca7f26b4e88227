"""A plugin for mypy: a class decorated with `@dray.remote` has `remote` and `options`.

mypy ignores the return type of a class decorator, so without the plugin the class stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import MDEF, SymbolTableNode, TypeInfo, Var
from mypy.plugin import ClassDefContext, Plugin
from mypy.typeops import bind_self
from mypy.types import FunctionLike, get_proper_type

DECORATOR = "dray.core.remote.remote"
ACTOR_CLASS = "dray.core.actor.ActorClass"


def add_members(context: ClassDefContext) -> bool:
    """Give a class of actors the methods of `ActorClass`; return False to be called again later."""
    found = context.api.lookup_fully_qualified_or_none(ACTOR_CLASS)
    if found is None or not isinstance(found.node, TypeInfo):
        return False
    info = context.cls.info
    for name in ("remote", "options"):
        given = get_proper_type(found.node.names[name].type)
        if not isinstance(given, FunctionLike):
            return False
        member = Var(name, bind_self(given))
        member.info, member.is_classvar = info, True
        member._fullname = f"{info.fullname}.{name}"
        info.names[name] = SymbolTableNode(MDEF, member, plugin_generated=True)
    return True


class ActorsPlugin(Plugin):
    """The plugin, with one hook."""

    def get_class_decorator_hook_2(self, fullname: str) -> Callable[[ClassDefContext], bool] | None:
        """Return the hook of `@dray.remote`."""
        return add_members if fullname == DECORATOR else None


def plugin(version: str) -> type[Plugin]:
    """Return the plugin, for any version of mypy."""
    return ActorsPlugin
