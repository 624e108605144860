"""Pages of the site: links, spelling, a complete reference, pictures that scripts draw, and a strict build."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

import regard
from docs import make_pictures, reference
from regard.components import VIEWS
from tests.documentation.blocks import DOCS, ROOT, pages, prose
from tests.scale import HANG_GUARD

PAGES = [*pages(), ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
WORDS = Path(__file__).with_name("words.txt")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`]*`")
RESULT = re.compile(r"benchmarks/results/[\w/-]+\.json")
HEADING = re.compile(r"^#+ (.*)$")


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchor(heading: str) -> str:
    """Anchor of a heading, as Python-Markdown builds it.

    >>> anchor("Completion in the `shell`!")
    'completion-in-the-shell'
    """
    words_only = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
    return re.sub(r"[\s-]+", "-", words_only)


def anchors(page: Path) -> set[str]:
    headings = [HEADING.match(line) for _, line in prose(page)]
    return {anchor(heading[1]) for heading in headings if heading}


def links(page: Path) -> Iterator[tuple[int, str]]:
    for line_number, line in prose(page):
        for link in LINK.findall(CODE.sub("", line)):
            yield line_number, link


@pytest.fixture(scope="module")
def generated() -> reference.Pages:
    return {**reference.pages(), **reference.claim_files()}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_have_a_target(page: Path, generated: reference.Pages) -> None:
    for line_number, link in links(page):
        location = f"{page}:{line_number}"
        path, _, fragment = unquote(link).partition("#")
        if link.startswith(("http:", "https:")):
            assert link.startswith("https:"), f"{location}: {link} is not encrypted"
            continue
        target = (page.parent / path).resolve() if path else page
        generated_name = str(target.relative_to(DOCS)) if target.is_relative_to(DOCS) else ""
        assert target.exists() or generated_name in generated, f"{location}: {link} has no target"
        has_fragment = fragment and target.suffix == ".md" and generated_name not in generated
        assert not has_fragment or fragment in anchors(target), f"{location}: {target.name} has no heading #{fragment}"
        if page.is_relative_to(DOCS):
            assert target.is_relative_to(DOCS), f"{location}: {link} leaves the site"


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    existing = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted(existing)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=page_name)
def test_a_page_begins_with_what_the_reader_will_have(page: Path) -> None:
    _, _, text = page.read_text(encoding="utf-8").partition("\n\n")
    is_record = page.parent.name == "decisions" and page.name != "index.md"
    assert text.startswith("**Decision.**" if is_record else "*"), "write it in italics below the title"
    assert is_record or not text.startswith("**")


def test_figures_name_artefacts_that_exist() -> None:
    named = {name for page in PAGES for name in RESULT.findall(page.read_text(encoding="utf-8"))}
    assert len(named) >= 5
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_view_is_explained_on_the_page_about_figures() -> None:
    text = (DOCS / "visualisation.md").read_text(encoding="utf-8")
    assert [name for name, view in VIEWS.items() if view.draw is not None and f"| `{name}` |" not in text] == []


# ---- words


def words(line: str) -> Iterator[str]:
    """Yield the words of a line of prose without code, addresses and markup."""
    text = re.sub(r"\]\([^)]*\)|<[^>]*>|https?://\S+", " ", CODE.sub(" ", line))
    yield from re.findall(r"[^\W\d_]+(?:['’][^\W\d_]+)*", text)


def normalize(word: str) -> str:
    return word.replace("’", "'").removesuffix("'s").lower()


@pytest.fixture(scope="module")
def allowed_words() -> set[str]:
    return set(WORDS.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=page_name)
def test_words_are_spelled_as_in_the_list(page: Path, allowed_words: set[str]) -> None:
    unknown = [
        f"{page.relative_to(ROOT)}:{line_number}: {word}"
        for line_number, line in prose(page)
        for word in words(line)
        if normalize(word) not in allowed_words
    ]
    assert not unknown, f"correct them, or add them to {WORDS.name}"


def test_the_list_of_words_is_sorted() -> None:
    listed = WORDS.read_text(encoding="utf-8").split()
    assert listed == sorted(set(listed))


# ---- generated pages and pictures


def test_the_reference_has_every_command_and_every_name(generated: reference.Pages) -> None:
    for name, verb in reference.verbs():
        page = generated[f"reference/commands/{reference.place(name)}"]
        for option in verb.params:
            assert not option.opts[0].startswith("--") or option.opts[0] in page, f"{name} {option.opts[0]}"
    python = "\n".join(text for name, text in generated.items() if name.startswith("reference/python"))
    assert [name for name in regard.__all__ if f"## regard.{name}\n" not in python] == []
    for module in (regard.nn, regard.search):
        assert [name for name in module.__all__ if f"## {module.__name__}.{name}\n" not in python] == []
    assert " object at 0x" not in python


def test_every_picture_has_a_script_and_every_drawing_is_shown_in_both_themes() -> None:
    drawn = {f"{name}-{theme}.svg" for name in make_pictures.FIGURES for theme in make_pictures.THEMES}
    script = (DOCS / "make_screens.py").read_text(encoding="utf-8")
    for path in make_pictures.PICTURES.rglob("*.*"):
        assert path.name in drawn or f'"{path.stem}"' in script, f"{path.name}: no script draws it"
    shown = {Path(link.partition("#")[0]).name for page in pages() for _, link in links(page) if "pictures/" in link}
    shown |= set(re.findall(r"docs/pictures/([\w.-]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    drawings = {path.name for path in make_pictures.PICTURES.glob("*.svg")}
    assert drawings <= shown
    for path in make_pictures.PICTURES.glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert "<script" not in text
        assert "href=" not in text, f"{path.name} loads a resource"


def test_masks_are_drawn(tmp_path: Path) -> None:
    paths = make_pictures.draw(tmp_path, "mask-causal", tmp_path)
    assert [path.name for path in paths] == ["mask-causal-light.svg", "mask-causal-dark.svg"]
    assert all(path.read_text(encoding="utf-8").startswith("<svg") for path in paths)


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: pip install -c constraints.txt -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_GUARD)
    assert done.returncode == 0, done.stdout + done.stderr
    loaded = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["'](https?:[^"']*)""")
    for page in (tmp_path / "site").rglob("*.html"):
        assert not loaded.findall(page.read_text(encoding="utf-8")), page
