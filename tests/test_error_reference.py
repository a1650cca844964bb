"""The page of errors names every error, and says the same of it as the code does."""

import importlib
import pkgutil
import re
from pathlib import Path

import messagehub
import registry
from messagehub.errors import BY_CODE, HubError

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "errors.md"
ROWS = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (yes|no) \| .+? \|( .+? \|)?$", PAGE.read_text(), re.MULTILINE)
SAID = {code: (name, retryable == "yes") for code, name, retryable, _ in ROWS}


def classes(kind: type[HubError]) -> list[type[HubError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in classes(child))]


def test_every_code_is_on_the_page_with_its_class_and_whether_to_retry() -> None:
    for package in (messagehub, registry):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    public = [kind for kind in classes(HubError) if kind.__module__.split(".")[0] in ("messagehub", "registry")]
    for kind in public:
        if "code" in vars(kind) and not kind.__name__.startswith("_"):
            assert kind.code in SAID, f"{kind.__name__} is not on the page"
    names = {kind.__name__: kind for kind in public}
    for code, (name, retryable) in SAID.items():
        assert name in names, f"{name} is on the page only"
        assert (names[name].code, names[name].retryable) == (code, retryable)


def test_a_code_has_one_row() -> None:
    codes = [code for code, _, _, _ in ROWS]
    assert sorted(codes) == sorted(set(codes))


def test_what_comes_over_the_wire_is_said_with_what_to_do() -> None:
    advised = {code: SAID[code] for code, _, _, advice in ROWS if advice}
    assert advised == {code: (kind.__name__, kind.retryable) for code, kind in BY_CODE.items()}


def test_the_classes_on_the_page_can_be_imported_from_where_it_says() -> None:
    """Each is in `messagehub.errors`, unless the text of its section names other modules."""
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        said = re.match(r".*\nIn (.+)\.\n", section)
        homes = re.findall(r"`(messagehub[\w.]+)`", said[1]) if said else ["messagehub.errors"]
        for name in re.findall(r"^\| `\w+` \| `(\w+)` \| (?:yes|no) \|", section, re.MULTILINE):
            assert any(hasattr(importlib.import_module(home), name) for home in homes), name


def test_troubleshooting_names_only_codes_that_there_are() -> None:
    text = (PAGE.parents[1] / "howto" / "troubleshooting.md").read_text()
    named = {code for code in re.findall(r"`([A-Z][A-Z_]{4,})`", text) if not code.startswith("MESSAGEHUB_")}
    assert len(named) > 20
    assert named - SAID.keys() == set()
