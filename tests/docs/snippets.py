"""The code blocks of a page, and how they are run: in their order, as a reader would paste them.

Python blocks of a page share one interpreter, as in a notebook; shell blocks (`sh`) share their variables. A comment in
front of a block says what no reader needs to see:

    <!-- run: background -->          in a process of its own, while the blocks behind it run
    <!-- run: background until X -->  likewise, and the next block waits until it has printed X
                                      (a shell block in the background is one command)
    <!-- run: raises ErrorName -->    the last statement ends in this error
    <!-- run: not, REASON -->         left out
    <!-- run: first
    rows = [{"id": 1}]
    -->                               code in front of the next block: what the reader has already
"""

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"(?:^<!-- run: (?P<how>[^\n]*?)(?:\n(?P<first>.*?))?\s*-->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NOT_CODE = {"", "json", "toml", "ini", "text", "mermaid", "yaml", "nginx", "pyi"}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    how: str = ""

    def with_domain(self, domain: str) -> str:
        """Return the code with this domain in place of the one that pages give a broker for tests, which tests that run
        at the same time would share."""
        return self.text.replace('domain="tests"', f'domain="{domain}-tests"')

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Every block of code on the page that is to be run, in order."""
    source = page.read_text()
    found = []
    for match in _BLOCK.finditer(source):
        language, text, how, first = match["language"], match["text"], match["how"] or "", match["first"]
        if language in NOT_CODE or how.startswith("not,"):
            continue
        line = source.count("\n", 0, match.start("text")) + 1
        if first is not None:
            text, line, how = f"{first}\n{text}", line - first.count("\n") - 1, ""
        found.append(Block(page, line, language, text, how))
    return found
