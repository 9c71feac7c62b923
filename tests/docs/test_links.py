"""Links within and between the pages lead to headings that are there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
OPERATE = ROOT / "docs" / "guide" / "operate.md"


def headings(page: Path) -> list[str]:
    """The headings of a page, without those in code."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.*?) *$", text, re.MULTILINE)


def anchor(heading: str) -> str:
    """What GitHub calls the place of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """All places of a page; a heading that comes again gets a number."""
    seen: Counter[str] = Counter()
    found = set()
    for name in map(anchor, headings(page)):
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def test_every_link_to_a_heading_leads_to_one() -> None:
    # given all links that name a place in a page of ours
    links = [
        (page, target, name)
        for page in PAGES
        for target, name in LINK.findall(page.read_text())
        if "://" not in target
    ]
    assert len(links) > 40
    # then that page has the heading
    broken = [
        f"{page.relative_to(ROOT)}: {target}#{name}"
        for page, target, name in links
        if name not in anchors(page.parent / target if target else page)
    ]
    assert broken == []


def test_what_goes_wrong_is_found_by_what_is_seen() -> None:
    # given the table at the head of the page for operators
    head = OPERATE.read_text().partition("\n## ")[0]
    rows = re.findall(r"^\| (?!what you see|-)(.*?) \| (.*) \|$", head, re.MULTILINE)
    assert len(rows) > 15
    # then each line leads somewhere
    assert [seen for seen, where in rows if not LINK.search(where)] == []
    # and every section about something that went wrong is named
    named = {name for _, where in rows for _, name in LINK.findall(where)}
    wrong = {anchor(each) for each in headings(OPERATE) if each.startswith("When ")}
    assert len(wrong) >= 6
    assert wrong <= named
