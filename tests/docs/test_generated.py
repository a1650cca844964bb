"""Pages that are written from the code say what the code says, and leave nothing out."""

import re
from importlib import import_module

import pytest

from messagehub.admin.metrics.help_texts import UNKNOWN
from messagehub.settings import _ENVIRONMENT, RELOADABLE, Settings  # private: which variables there are
from tests.integration.harness import ROOT
from tools import generate, reference_python

REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.parametrize("page", sorted(generate.PAGES))
def test_a_generated_page_is_up_to_date(page: str) -> None:
    assert generate.changed(page) is None, "run `make generate`"


def test_a_stale_page_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(generate, "PAGES", {"cli.md": lambda: "another text"})
    assert generate.main(["--check"]) == 1
    assert "docs/reference/cli.md: is not up to date: run `make generate`" in capsys.readouterr().out


@pytest.mark.parametrize("module", reference_python.MODULES)
def test_everything_that_can_be_imported_has_a_section(module: str) -> None:
    text = (REFERENCE / "python.md").read_text()
    section = re.search(rf"^## {re.escape(module)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section
    names = re.findall(r"^### (\w+)$", section[1], re.MULTILINE)
    assert names == reference_python.public_names(import_module(module))
    assert names


def rows() -> dict[str, list[str]]:
    """The cells of each setting's line."""
    lines = [line for line in (REFERENCE / "settings.md").read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip().strip("`") for cell in line[1:-1].split("|")] for line in lines]
    return {name: told for name, *told in cells}


def test_every_setting_is_told_with_its_variable_and_whether_a_running_hub_takes_it() -> None:
    told = rows()
    assert set(told) == set(Settings.__struct_fields__)
    for name, (variable, *_, reloads) in told.items():
        expected = {"dir": "MESSAGEHUB_DIR"} | _ENVIRONMENT
        assert variable == expected.get(name, ""), name
        assert (reloads == "yes") == (name in RELOADABLE), name


def test_every_metric_is_explained_by_more_than_its_name() -> None:
    lines = [line for line in (REFERENCE / "metrics.md").read_text().splitlines() if line.startswith("| `")]
    assert len(lines) > 60
    for name, *_, said in ([cell.strip() for cell in line[1:-1].split("|")] for line in lines):
        assert said != UNKNOWN, name
        assert said.count(" ") > 2, name
