"""The drawings of the story: in a terminal, also without colours, and as a page that needs nothing beside it."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.story.layout import panels
from hicache.testing.story.page import render_page
from hicache.testing.story.script import COMPONENTS, LETTERS, LOCKED, OWNERS, RESIDENCY, Scene, run_story
from hicache.testing.story.terminal import show_legend, show_scene

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "explain.svg"
SIGNS = ("■", "○", "◔", "◑", "◕", "†", "·", "□", "[■]")


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    """The whole story, played on the reference."""
    return list(run_story(ReferenceAdapter))


@pytest.fixture(scope="module")
def page(scenes: list[Scene]) -> str:
    """The story as a page."""
    return render_page(scenes)


@pytest.fixture(scope="module")
def document(page: str) -> ET.Element:
    """The page as an XML parser reads it."""
    return ET.fromstring(page)  # noqa: S314 - our own page


def printed(scenes: list[Scene], width: int) -> str:
    """What a terminal without colours shows."""
    output = io.StringIO()
    console = Console(file=output, width=width, color_system=None)
    show_legend(console)
    for scene in scenes:
        show_scene(console, scene)
    return output.getvalue()


def words_of(element: ET.Element) -> str:
    """All text below an element, with single spaces."""
    return " ".join(" ".join(element.itertext()).split())


@pytest.mark.parametrize("width", [80, 130])
def test_the_terminal_tells_every_act_within_its_width(scenes: list[Scene], width: int) -> None:
    output = printed(scenes, width)
    too_long = [line for line in output.splitlines() if len(line) > width]
    assert not too_long, f"lines longer than {width}: {too_long}"
    told = " ".join(output.split())
    for scene in scenes:
        for expected in (f"{scene.number} {scene.act.title}", scene.act.text, *scene.act.clauses):
            assert expected in told, f"act {scene.number}: the terminal does not show {expected!r}"
        for row in scene.picture.rows:
            missing = [words for words in row.pages if words not in output]
            assert not missing, f"act {scene.number}: the terminal does not show {missing}"


def test_the_terminal_explains_every_sign_that_it_uses(scenes: list[Scene]) -> None:
    legend, drawn = printed([], 130), printed(scenes, 130)
    unexplained = [sign for sign in SIGNS if sign not in legend]
    assert not unexplained, f"signs that the legend lacks: {unexplained}"
    for meaning in (*COMPONENTS.values(), *RESIDENCY.values(), *OWNERS.values(), LOCKED):
        assert meaning in legend, f"the legend does not say {meaning!r}"
    signs = set(re.findall(r"[^\w\s.,:;?!'()├└─│┊◀-]", drawn))
    assert signs <= set("".join(SIGNS)), f"signs without a word: {signs - set(''.join(SIGNS))}"


def test_the_terminal_draws_the_tree_with_its_cells(scenes: list[Scene]) -> None:
    lines = [" ".join(line.split()) for line in printed(scenes[8:9], 130).splitlines()]
    for expected in (
        "root ◀ device anchor",
        "├─ You are a cat ┊ who talks in rhyme. [■] ◑ † [■][■][■] locked by request, transfer",
        "│ ├─ What do you eat? ┊ Fish is a treat. [■][■] ■ ■ ■ ■ locked by request",
        "│ │ └─ And what to drink? ┊ Milk, I should think. [■][■][■] ■ ■ ■ locked by request",
        "│ └─ Where do you sleep? ┊ On coats of sheep. ◑ ◑ ◑ [■][■][■] ◀ best match locked by transfer",
        "load: 3 of 6 layers copied ■■■···",
        "device pages F ■■■■■■○○ S ■■■■○○○○ M ■■○·",
    ):
        assert expected in lines, f"the terminal does not draw {expected!r}: {lines}"


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(page: str, document: ET.Element) -> None:
    assert document.tag == f"{SVG}svg", f"the root is {document.tag}"
    tags = {element.tag.removeprefix(SVG) for element in document.iter()}
    loading = tags & {"image", "script", "foreignObject", "iframe", "link"}
    assert not loading, f"elements that load or run something: {loading}"
    links = [
        value
        for element in document.iter()
        for name, value in element.attrib.items()
        if name.rpartition("}")[2] in ("href", "src") and not value.startswith("#")
    ]
    assert not links, f"the page refers to {links}"
    for forbidden in ("@import", "@font-face", "url(", "http://", "https://"):
        rest = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert forbidden not in rest, f"the page holds {forbidden!r}"


def test_references_within_the_page_lead_somewhere(document: ET.Element) -> None:
    ids = [element.attrib["id"] for element in document.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids)), f"an id stands twice in {sorted(ids)}"
    used = {element.attrib["href"][1:] for element in document.iter(f"{SVG}use")}
    used.add(document.attrib["aria-labelledby"])
    assert used <= set(ids), f"{used - set(ids)} is not in the page"


def test_the_page_says_everything_in_text_that_can_be_selected(scenes: list[Scene], document: ET.Element) -> None:
    groups = {group.attrib["aria-label"]: group for group in document.iter(f"{SVG}g") if "aria-label" in group.attrib}
    assert list(groups)[1:] == [f"Act {scene.number}: {scene.act.title}" for scene in scenes], f"groups: {list(groups)}"
    for scene in scenes:
        group = groups[f"Act {scene.number}: {scene.act.title}"]
        texts = " ".join(words_of(text) for text in group.iter(f"{SVG}text"))
        for expected in (scene.act.title, scene.act.text, *scene.act.clauses):
            assert expected in texts, f"act {scene.number}: the page does not say {expected!r}"
        pages = [words for row in scene.picture.rows for words in row.pages]
        assert [words for words in pages if words not in texts] == [], f"act {scene.number}: {pages} in {texts}"
    legend = words_of(groups["How to read the drawings"])
    for meaning in (*COMPONENTS.values(), *RESIDENCY.values(), *OWNERS.values(), LOCKED):
        assert meaning in legend, f"the legend does not say {meaning!r}"


def test_each_cell_of_the_page_tells_its_state_in_words(document: ET.Element) -> None:
    titles = [words_of(title) for title in document.iter(f"{SVG}title")]
    for component in LETTERS:
        for expected in (
            "device: resident, locked",
            "host: resident",
            "device: arriving by a transfer",
            "device: not resident",
        ):
            said = f"{component.upper()} on the {expected}"
            assert said in titles, f"no cell says {said!r}"
    assert "SWA on the device: tombstone: FULL is resident, this is not" in titles, "no tombstone says so"
    assert "FULL on the device: 4 in the tree, 2 owned by a request, 2 free" in titles, "no pool says who has its pages"


def test_the_page_shows_each_lock_and_each_mark(scenes: list[Scene], document: ET.Element) -> None:
    rows = [row for scene in scenes for row in scene.picture.rows]
    locked = sum(cell.is_locked for row in rows for cells in row.cells.values() for cell in cells)
    padlocks = len(list(document.iter(f"{SVG}use")))
    assert padlocks == locked + 1, f"{locked} cells are locked, and one in the legend: {padlocks} padlocks"
    notes = Counter(words_of(text) for text in document.iter(f"{SVG}text") if "mark" in text.attrib.get("class", ""))
    assert notes == {"◀ device anchor": 2, "◀ best match": 2}, f"two matches with two ends each, got {notes}"


def test_every_class_of_the_page_has_a_style_and_every_colour_a_dark_one(page: str, document: ET.Element) -> None:
    style = page[page.index("<style>") : page.index("</style>")]
    classes = {name for element in document.iter() for name in element.attrib.get("class", "").split()}
    silent = {name for name in classes if f".{name}" not in style} - {"chip", "pool"}
    assert not silent, f"classes without a style: {silent}"
    light, dark = (set(re.findall(r"(--[\w-]+): #", part)) for part in style.split("prefers-color-scheme: dark"))
    assert light == dark, f"colours of one scheme only: {light ^ dark}"
    used = set(re.findall(r"var\((--[\w-]+)\)", style))
    assert used <= light | {"--own"}, f"colours that are not defined: {used - light}"


def test_panels_stand_below_each_other_and_hold_what_they_show(scenes: list[Scene]) -> None:
    below = 0
    for panel in panels(scenes, 0):
        assert panel.top >= below, f"act {panel.scene.number} begins at {panel.top}, within the one before it"
        below = panel.top + panel.height
        places = [y for node in panel.nodes for _, y, _ in node.pages]
        pages = sum(len(row.pages) for row in panel.scene.picture.rows)
        assert len(places) == pages, f"act {panel.scene.number}: {pages} pages at {len(places)} places"
        assert all(0 < y < panel.movements_y for y in places), f"act {panel.scene.number}: pages at {places}"
        assert panel.movements_y <= panel.pools_y < panel.height, f"act {panel.scene.number}: pools at {panel.pools_y}"


def test_no_two_pages_of_a_drawing_cover_each_other(scenes: list[Scene]) -> None:
    for panel in panels(scenes, 0):
        corners = [(x, y) for node in panel.nodes for x, y, _ in node.pages]
        close = [
            (one, other)
            for number, one in enumerate(corners)
            for other in corners[:number]
            if abs(one[0] - other[0]) < 132 and abs(one[1] - other[1]) < 26
        ]
        assert not close, f"act {panel.scene.number}: pages at {close} cover each other"


def test_the_page_in_the_documentation_is_that_of_the_reference(page: str) -> None:
    kept = DOCUMENT.read_text(encoding="utf-8")
    assert kept == page, "docs/explain.svg is old: write it anew with `hicache explain --svg docs/explain.svg`"


def test_the_drawing_in_the_readme_is_one_of_the_story(scenes: list[Scene]) -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    drawing = [line for line in lines if "■" in line]
    drawn = {line.strip() for line in printed(scenes[4:5], 130).splitlines()}
    assert len(drawing) == 4, f"README.md draws a tree of four nodes, got {drawing}"
    assert drawn.issuperset(line.strip() for line in drawing), f"README.md draws {drawing}, the story {drawn}"
