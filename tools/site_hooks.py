r"""Hooks of mkdocs: what a page needs so that it reads on the site as it does in the repository.

Links to files of the repository that are no pages become the names of those files; one that is not there is an error.
GitHub wants `\|` for a bar in code of a table, and the site's Markdown shows that as it stands.
CommonMark lets a list or a table follow a line of text at once; the site's Markdown wants an empty line between them.
"""

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)")
_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
_ROW_CODE = re.compile(r"(?<=[ (])`[^`\n]*\\\|[^`\n]*`")
_UNSEPARATED = (
    re.compile(r"^(?![-|#\s]|\d+\. )(.+\n)(?=- |\d+\. |\|)", re.MULTILINE),
    re.compile(r"\A(?=- |\d+\. |\|)"),  # right behind a fence
)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    folder = Path(page.file.abs_src_path).resolve().parent
    named = _LINK.sub(lambda link: _named(link, folder, Path(config["docs_dir"]).resolve()), markdown)
    return "".join(part if part.startswith("```") else _separated(part) for part in _FENCE.split(named))


def _named(link: re.Match[str], folder: Path, pages: Path) -> str:
    target = (folder / link[2]).resolve()
    if target.is_relative_to(pages):
        return link[0]
    if not target.exists():
        raise FileNotFoundError(f"{folder} has a link to {link[2]}, which is not there")
    path = target.relative_to(pages.parent)
    return link[1] if link[1].strip("`") == str(path) else f"{link[1]} (`{path}`)"


def _separated(text: str) -> str:
    behind_text, behind_fence = _UNSEPARATED
    first = behind_fence.sub("\n", text.removeprefix("\n"))
    plain = _ROW_CODE.sub(lambda code: code[0].replace(r"\|", "|"), first)
    return ("\n" if text.startswith("\n") else "") + behind_text.sub(r"\1\n", plain)
