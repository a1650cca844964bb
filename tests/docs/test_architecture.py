"""The walks of docs/explanation/architecture.md: every step exists and is called by one before it, none leads up."""

import re
from collections.abc import Iterator

import pytest

from tests.integration.harness import ROOT
from tests.test_layers import LEVEL, imports, modules, part

PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
WALKS = dict(walk.partition("\n")[::2] for walk in PAGE.split("\n## ")[1:])
STEP = re.compile(r"`([a-z_/]+(?:\.py|/))`")
MAKERS = {
    "messagehub.hub_parts",
    "messagehub.broker.parts",
    "messagehub.admin.app",
    "messagehub.services.services",
}
"""What makes the parts of a process and hands them to each other, so that they need not import one another."""


def modules_of(path: str) -> set[str]:
    """The modules of a path as the page writes it: one file, or all of a folder."""
    name = path if path.startswith("registry/") else f"messagehub/{path}"
    dotted = name.removesuffix(".py").rstrip("/").replace("/", ".")
    return {module for module in modules() if module == dotted or (path[-1] == "/" and module.startswith(f"{dotted}."))}


def ways(text: str) -> Iterator[list[str]]:
    """The steps of a walk within one process: paragraphs and double arrows begin a new one."""
    for piece in re.split(r"\n\n|⇒", text):
        steps = STEP.findall(piece)
        if steps:
            yield steps


def test_there_are_six_walks() -> None:
    assert len(WALKS) == 6
    assert all(sum(map(len, ways(text))) > 3 for text in WALKS.values())


@pytest.mark.parametrize("title", WALKS)
def test_every_step_of_a_walk_exists(title: str) -> None:
    steps = [step for way in ways(WALKS[title]) for step in way]
    assert [step for step in steps if not modules_of(step)] == []


@pytest.mark.parametrize("title", WALKS)
def test_every_step_is_called_by_one_before_it(title: str) -> None:
    """Whoever calls a part imports it, or is handed it by what makes the parts."""
    lost = []
    for first, *others in ways(WALKS[title]):
        before = modules_of(first)
        for step in others:
            found = modules_of(step)
            if not any(imports(module) & found for module in before | MAKERS):
                lost.append(step)
            before |= found
    assert lost == []


@pytest.mark.parametrize("title", WALKS)
def test_no_step_leads_up_to_a_layer_above_the_first(title: str) -> None:
    up = []
    for first, *others in ways(WALKS[title]):
        top = max(LEVEL[part(module)] for module in modules_of(first))
        up += [step for step in others if any(LEVEL[part(module)] > top for module in modules_of(step))]
    assert up == []
