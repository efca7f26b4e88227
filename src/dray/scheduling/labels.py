"""Label selectors: which nodes a request may go to, in the language that Ray uses."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dray.errors import ConfigError

# Every node has this label, with its id, so that a selector can name it.
NODE_ID = "ray.io/node-id"
# A selector's word for a label that only has to be there, or with "!" must not be.
EXISTS = "exists()"
_VALUE = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_SELECTOR = rf"!?(?:{_VALUE}|in\(\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*\))"


def check_selector(selector: object, what: str) -> None:
    """Check that a label selector is well formed.

    Args:
        selector: Label to "value", "!value", "in(a, b)" or "!in(a, b)".
    """
    if not isinstance(selector, Mapping):
        raise ConfigError(f"{what} must be a dict of labels to values, not {selector!r}")
    for name, value in selector.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            raise ConfigError(f"{what} must map strings to strings, not {name!r} to {value!r}")
        if not re.fullmatch(_SELECTOR, value):
            raise ConfigError(
                f"{what}[{name!r}] must be 'value', '!value', 'in(a, b)' or '!in(a, b)', "
                f"not {value!r}"
            )


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether a node with these labels is one that the selector allows.

    Example:
        >>> from dray.scheduling.labels import matches
        >>> matches({"zone": "in(a, b)", "tier": "!spot"}, {"zone": "a"})
        True
    """
    return all(_allows(value, labels.get(name)) for name, value in selector.items())


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
