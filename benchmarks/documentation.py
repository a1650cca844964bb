"""`--write-docs`: the figures of docs/explanation/performance.md, written from the JSON of a run."""

import shutil
from pathlib import Path

from benchmarks.picture import draw
from benchmarks.processes import ROOT
from benchmarks.report import Results, by_group, heading, median_of, ratio, spread_of, target, verdict

PAGE = ROOT / "docs" / "explanation" / "performance.md"
PICTURES = ROOT / "docs" / "explanation" / "performance"
BEGIN, END = "<!-- figures: written by `python -m benchmarks --write-docs` -->", "<!-- end of the figures -->"
HEADINGS = ("compared", "median", "against", "median", "ratio", "spread", "target", "")


def write_docs(results: Results, page: Path = PAGE, pictures: Path = PICTURES) -> None:
    """Replace what stands between the two markers of the page, and the pictures beside it."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the figures: {BEGIN} and {END}")
    shutil.rmtree(pictures, ignore_errors=True)
    pictures.mkdir()
    drawn = {path.name for path in draw(results, pictures)}
    page.write_text(f"{before}{BEGIN}\n\n{figures(results, drawn)}\n{END}{after}")


def figures(results: Results, pictures: set[str]) -> str:
    machine = results.machine
    minutes = (results.ended_at - results.started_at).total_seconds() / 60
    lines = [
        f"Measured on {results.started_at:%Y-%m-%d} from {results.started_at:%H:%M} UTC for {minutes:.0f} minutes with "
        f"`{results.command}` at commit `{results.commit or 'unknown'}`: {machine.processor}, {machine.cpus} cores, "
        f"{machine.platform}, Python {machine.python}, rings in {results.rings}, load average at the end "
        f"{machine.load_average[0]:.1f}.",
        "",
    ]
    if results.quick:
        lines += ["It was a run with `--quick`: short measurements, of the headlines only.", ""]
    for group, rows in by_group(results.rows).items():
        lines += [f"### {group[0].upper()}{group[1:]}", ""]
        if (picture := f"{group.lower().replace(' ', '-')}.png") in pictures:
            lines += [f"![{group} against its targets]({PICTURES.name}/{picture})", ""]
        lines += [_row(HEADINGS), _row(["---", "---:", "---", "---:", "---:", "---:", "---:", "---"])]
        previous = ""
        for row in rows:
            if heading(row) != previous:
                previous = heading(row)
                lines.append(_row([f"**{previous}**", *[""] * 7]))
            said = verdict(row) if row.found else f"{row.verdict}: {row.reason}"
            figures_of = median_of(row, row.contender), row.against or "", median_of(row, row.against)
            lines.append(_row([row.contender, *figures_of, ratio(row), spread_of(row), target(row), said]))
        lines.append("")
    return "\n".join(lines)


def _row(cells: "list[str] | tuple[str, ...]") -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
