"""How much a run tests. `make test` is `quick`, `make nightly` is `thorough`, `make soak` is `soak`.

The same tests run at every level; what takes long by intention takes its measure from here. Tests marked `slow` run
from `thorough` on, `make soak` runs those marked `soak` alone. MESSAGEHUB_STORM_SECONDS sets the length of storms.
"""

import os

from hypothesis import settings

LEVEL = os.environ.get("MESSAGEHUB_TEST_LEVEL", "quick")
IS_QUICK = LEVEL == "quick"

_STORM_SECONDS = {"quick": 10, "thorough": 60, "soak": 1800}
STORM_SECONDS = float(os.environ.get("MESSAGEHUB_STORM_SECONDS", _STORM_SECONDS[LEVEL]))
KILLING_SECONDS = STORM_SECONDS / 2 if IS_QUICK else STORM_SECONDS  # of one part of the system; a storm is of all
FUZZED_FRAMES = {"quick": 50_000, "thorough": 1_000_000, "soak": 10_000_000}[LEVEL]


def examples(count: int) -> int:
    """Return how many examples a property test makes that makes `count` of them in `make test`."""
    return count if IS_QUICK else 10 * count


settings.register_profile("quick", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=examples(100))
settings.load_profile("quick" if IS_QUICK else "thorough")
