"""A hook of mkdocs: links to files of the repository that are no pages become the names of those files.

In the repository such a link opens the file; the site has only the pages. A file that is not there is an error.
"""

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    pages = Path(config["docs_dir"]).resolve()
    folder = Path(page.file.abs_src_path).resolve().parent

    def named(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(pages):
            return link[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_path} links to {link[2]}, which is not there")
        path = target.relative_to(pages.parent)
        return link[1] if link[1].strip("`") == str(path) else f"{link[1]} (`{path}`)"

    return _LINK.sub(named, markdown)
