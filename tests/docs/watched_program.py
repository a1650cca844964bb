"""Runs a program of the docs as its reader would, and says on stdout how far it is.

A line of JSON each time that the plot was drawn: what the program's own names say.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.backend_bases import FigureCanvasBase

namespace: dict[str, Any] = {"__name__": "__main__"}


def tell(_event: object) -> None:
    consumer = namespace["consumer"]
    told = {"drawn": len(namespace["shown"]), "read": consumer.sequence, "missed": consumer.missed}
    print(json.dumps(told), flush=True)


def main() -> None:
    canvas: FigureCanvasBase = plt.gcf().canvas
    canvas.mpl_connect("draw_event", tell)
    path = Path(sys.argv[1])
    exec(compile(path.read_text(), str(path), "exec"), namespace)


if __name__ == "__main__":
    main()
