"""The pages name only what is there: files, functions, classes, other pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])
# Those that tell of dray's own code; the others name other software, too.
OF_THE_CODE = ("design.md", "glossary.md", "new-accelerator.md", "new-engine.md", "CONTRIBUTING.md")
FOLDERS = ("benchmarks", "docs", "examples", "src", "tests", "tools")

_FILE = re.compile(r"[\w/]+\.py|[\w/]+/")
_NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert page.parent.joinpath(link).exists(), link


@pytest.mark.parametrize("name", OF_THE_CODE)
def test_files_and_names_are_those_of_the_code(name: str) -> None:
    page = next(page for page in PAGES if page.name == name)
    quoted = re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
    files, words = _files(), _words()
    for text in quoted:
        if _FILE.fullmatch(text) and "NAME" not in text:
            assert any(file.endswith(f"/{text.rstrip('/')}") for file in files), text
        elif _NAME.fullmatch(text):
            assert text.removesuffix("()").rsplit(".", 1)[-1] in words, text


def test_the_code_says_what_the_guide_has_advice_for() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    rows = guide.partition("| the message says | do |\n|---|---|\n")[2].partition("\n\n")[0]
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    texts = [text for row in rows.splitlines() for text in re.findall("`(.+?)`", row.split("|")[1])]
    assert len(texts) >= 10
    for text in texts:
        for part in filter(None, map(str.strip, text.split("..."))):
            assert part in code, text


def _files() -> list[str]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return [f"/{path.relative_to(ROOT)}" for path in [*found, *ROOT.glob("*.*")]]


def _words() -> set[str]:
    """Return the words of the code, and of what builds it."""
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    sources += [ROOT / "Makefile", ROOT / "pyproject.toml"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    return set(re.findall(r"\w+", text))
