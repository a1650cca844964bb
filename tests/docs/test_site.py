"""The site builds without a network, and every link in it leads somewhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.harness import ROOT


def build(project: Path, target: Path) -> "subprocess.CompletedProcess[str]":
    # Not with --quiet: what is not logged is no reason for --strict to fail.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT, target)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_every_page_is_there(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    built = {page.relative_to(site) for page in site.rglob("*.html")}
    named = {page.with_name("index.html") if page.stem == "README" else page for page in pages}
    assert named <= built


def test_a_page_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert fetched == [], page


def test_lists_and_tables_are_shown_as_such(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(), flags=re.DOTALL)
        assert re.findall(r"^(?:<p>)?(?:- |\||```).*", text, re.MULTILINE) == [], page


@pytest.mark.parametrize("broken", ["nowhere.md", "data.md#nothing-is-called-so", "../../nowhere.py"])
def test_a_link_that_leads_nowhere_is_refused(broken: str, tmp_path: Path) -> None:
    """In a project of two pages, with the configuration of this one but for its list of pages."""
    settings = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(settings[: settings.index("nav:\n  - README.md")])
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "site_hooks.py", tmp_path / "tools")
    pages = tmp_path / "docs" / "howto"
    pages.mkdir(parents=True)
    (pages / "data.md").write_text("# Data\n")
    (pages / "more.md").write_text("# More\n\n[a page](data.md)\n")
    assert build(tmp_path, tmp_path / "site").returncode == 0
    (pages / "more.md").write_text(f"# More\n\n[a page]({broken})\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1, done.stderr
    assert broken in done.stderr
