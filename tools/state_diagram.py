"""The diagram of the controller's state machine in docs/design.md, drawn from its table."""

from __future__ import annotations

import sys
from pathlib import Path

from dray.train.run.state import FINAL, TABLE, State

PAGE = Path(__file__).resolve().parent.parent / "docs" / "design.md"
BEGIN, END = "<!-- state diagram: begin -->", "<!-- state diagram: end -->"


def diagram() -> str:
    """Return the table as a Mermaid diagram.

    The page says in words that the controller may fail in any state, so the diagram has no arrows
    for that from 9 states.
    """
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.INITIALIZING.value}"]
    for (state, event), step in TABLE.items():
        if event.name == "CONTROLLER_FAILED" or step.state is state:
            continue
        actions = ", ".join(action.value for action in step.actions)
        label = f"{event.value} / {actions}" if actions else event.value
        lines.append(f"    {state.value} --> {step.state.value}: {label}")
    lines += [f"    {state.value} --> [*]" for state in sorted(FINAL)]
    return "\n".join([*lines, "```"])


def main(arguments: list[str]) -> int:
    """Write the diagram; with --check, return 1 if the page has another one."""
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        print(f"{PAGE.name} has no place for the diagram: {BEGIN} and {END}")
        return 1
    drawn = f"{head}{BEGIN}\n{diagram()}\n{END}{tail}"
    if "--check" in arguments:
        if drawn != text:
            print(f"{PAGE.name} shows another state machine than the code has; run make diagrams")
            return 1
        print("the state diagram is current")
        return 0
    PAGE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
