"""A check of docstrings, comments and pages: no clauses as subjects, imperatives first."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPENINGS = {"What", "Who", "Which", "Whose", "How", "Where", "Why", "Whether"}
SUBJECTS = {"What", "Who", "Whose", "Whoever", "Whatever", "How"}
PAGES = ("*.md", "docs/*.md", "docs/reference/*.md")
CODE_BLOCK = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
NO_PROSE = re.compile(r" *(#|\||>>>|\.\.\.|    )")  # headings, tables, code
NEXT_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )")
# An argument or attribute in a docstring; "Whether" is how a flag is described.
ENTRY = re.compile(rf"^ +\w+: (?:{'|'.join(sorted(OPENINGS - {'Whether'}))}) .*$", re.MULTILINE)
NO_VERBS = {
    "As",
    "Images",
    "Its",
    "Seconds",
    "Tasks",
    "Versions",
}  # these may open a function's docstring


def misnamed(path: Path) -> Iterator[str]:
    """Yield the place and the first line of each docstring of a file that breaks the rules."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        kinds = (ast.Module, ast.ClassDef, *functions)
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        if not text:
            continue
        first = text.split()[0].strip("`'\",.:")
        told = isinstance(node, functions) and first not in NO_VERBS
        place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
        if first in OPENINGS or (told and re.fullmatch(r"[A-Z][a-z]*[^s]s", first)):
            yield f"{place}: {text.splitlines()[0]}"
        yield from (f"{place}: {entry.strip()}" for entry in ENTRY.findall(text))


def clauses(path: Path) -> Iterator[str]:
    """Yield the comments, at a module's top level, that begin with a clause as their subject."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for line, (before, text) in enumerate(pairwise(["", *lines]), 1):
        opens = text.startswith("# ") and text.split()[1].strip("`'\",.:") in OPENINGS
        if opens and not before.startswith("#"):
            yield f"{path.relative_to(ROOT)}:{line}: {text}"


def clauses_as_subjects(text: str) -> Iterator[str]:
    """Yield the sentences of a text that begin with a clause as their subject, except questions."""
    for block in NEXT_BLOCK.split(CODE_BLOCK.sub("", text)):
        lines = [line.strip() for line in block.splitlines() if not NO_PROSE.match(line)]
        prose = re.sub(r"^(?:[-*]|\d+\.) +", "", " ".join(lines)).replace("**", "")
        for sentence in re.split(r"(?<=[.:;?!]) +", prose):
            first = sentence.split(" ", 1)[0].strip("`'\"(,")
            if first in SUBJECTS and not sentence.endswith("?"):
                yield sentence


def prose_of(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, or the text of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def main() -> int:
    """Print all findings; return 1 if there are any."""
    folders = ("src", "tools", "benchmarks", "examples")
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    begins = [line for path in files for line in (*misnamed(path), *clauses(path))]
    subjects = [
        f"{path.relative_to(ROOT)}: {sentence[:100]}"
        for path in (*files, *(page for pattern in PAGES for page in sorted(ROOT.glob(pattern))))
        for text in prose_of(path)
        for sentence in clauses_as_subjects(text)
    ]
    for line in (*begins, *subjects):
        print(line)
    if begins:
        print("begin with a noun phrase (a module, a class) or an imperative (a function: Return)")
    if subjects:
        print("begin sentences with the thing that they are about, not with What, Who or How")
    return 1 if begins or subjects else 0


if __name__ == "__main__":
    sys.exit(main())
