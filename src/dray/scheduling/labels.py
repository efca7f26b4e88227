"""Label selectors, which restrict the nodes of a request, in the language that Ray uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from dray.errors import ArgumentTypeError, ConfigError

# Every node has this label, with its id, so that a selector can name it.
NODE_ID = "ray.io/node-id"
# A selector's word for a label that only has to be there, or with "!" must not be.
EXISTS = "exists()"
_VALUE = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_NAME = rf"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{{0,251}}[A-Za-z0-9])?/)?{_VALUE}"
_CHARACTERS = "letters, digits and inner '-', '_' and '.', 63 at most"
_SELECTOR = rf"!?(?:{_VALUE}|in\(\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*\))"


def check_selector(selector: object, what: str) -> None:
    """Check that a label selector is well formed.

    Args:
        selector: Label to "value", "!value", "in(a, b)" or "!in(a, b)".
    """
    if not isinstance(selector, Mapping):
        raise ArgumentTypeError(f"{what} must be a dict of labels to values, not {selector!r}")
    for name, value in selector.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ArgumentTypeError(
                f"{what} must map strings to strings, not {name!r} to {value!r}"
            )
        check_name(name, what)
        if not re.fullmatch(_SELECTOR, value):
            raise ConfigError(
                f"{what}[{name!r}] must be 'value', '!value', 'in(a, b)' or '!in(a, b)', "
                f"not {value!r}; a value has {_CHARACTERS}"
            )


def check_name(name: str, what: str) -> None:
    """Check the name of a label, which may have a prefix: "zone", "example.com/zone"."""
    if not re.fullmatch(_NAME, name):
        raise ConfigError(
            f"{what}: {name!r} is no name of a label: it has {_CHARACTERS}, after a prefix and "
            "'/', if it has one"
        )


def check_value(value: str, what: str) -> None:
    """Check the value of a node's label."""
    if value and not re.fullmatch(_VALUE, value):
        raise ConfigError(f"{what} has {_CHARACTERS}, and is not {value!r}")


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether a node with these labels is one that the selector allows.

    Example:
        >>> from dray.scheduling.labels import matches
        >>> matches({"zone": "in(a, b)", "tier": "!spot"}, {"zone": "a"})
        True
    """
    return all(_allows(value, labels.get(name)) for name, value in selector.items())


def narrowed(selector: Mapping[str, str], node_ids: Iterable[str]) -> dict[str, str]:
    """Return a selector of the nodes that a selector allows among those of some ids."""
    wanted = selector.get(NODE_ID, EXISTS)
    allowed = sorted(node_id for node_id in node_ids if _allows(wanted, node_id))
    return {**selector, NODE_ID: f"in({', '.join(allowed)})"}


def _allows(wanted: str, label: str | None) -> bool:
    negated = wanted.startswith("!")
    values = wanted.removeprefix("!")
    if values == EXISTS:
        return (label is not None) != negated
    if values.startswith("in("):
        among = {value.strip() for value in values[3:-1].split(",")}
    else:
        among = {values}
    return (label in among) != negated
