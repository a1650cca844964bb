"""A storm over three hosts and three members of etcd, in namespaces of their own, and then the histories are checked.

MESSAGEHUB_STORM_SECONDS sets how long. A failure names its seed and keeps histories and logs in build/site-storm;
MESSAGEHUB_CHAOS_SEED=… strikes in the same order again.
"""

import os
import time
from pathlib import Path

import pytest

from examples.namespaces import Network, network, why_not
from tests.debian import program_or_skip
from tests.integration.harness import ROOT, eventually
from tests.levels import STORM_SECONDS
from tests.site.storm import checker
from tests.site.storm.storm import ETCDS, HUBS, SiteStorm

RECOVER_SECONDS = 60.0
STAYS = {"brokers.lock", "ended-rings"}
"""One small file each of a domain, whatever was there."""


def _seed() -> int:
    return int(os.environ.get("MESSAGEHUB_CHAOS_SEED", time.time_ns() % 1_000_000))


@pytest.mark.soak
@pytest.mark.timeout(2 * STORM_SECONDS + 600)
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_storm_over_a_site_breaks_no_promise_and_leaves_nothing(tmp_path: Path) -> None:
    etcd = program_or_skip("etcd", "etcd-server")
    seed = _seed()
    print(f"MESSAGEHUB_CHAOS_SEED={seed}")
    with network(*HUBS, *ETCDS) as made:
        namespaces = {os.readlink(f"/proc/{host.pid}/ns/net") for host in made.hosts.values()}
        storm = SiteStorm(tmp_path, made, etcd, seed)
        try:
            strikes = _rage(storm)
            found = _check(storm)
            storm.stop_hubs()
            storm.stop_etcd()
            _nothing_is_left(storm, made)
        except BaseException:
            storm.ask_everybody()
            kept_at = ROOT / "build" / "site-storm" / str(seed)
            storm.keep(kept_at)
            print(f"histories and logs are kept in {kept_at}")
            raise
        finally:
            storm.close()
    eventually(lambda: not _processes_in(namespaces))
    print(f"{strikes} strikes, {found}")


def _rage(storm: SiteStorm) -> int:
    storm.begin()
    storm.until(lambda: not checker.who_has_not_recovered(storm.history, HUBS, 0.0), RECOVER_SECONDS)
    strikes = storm.rage(STORM_SECONDS)
    storm.calm()
    since = time.time()
    storm.until(storm.is_one_site, RECOVER_SECONDS)
    lacking = ["everything"]

    def recovered() -> bool:
        lacking[:] = checker.who_has_not_recovered(storm.history, HUBS, since)
        return not lacking

    try:
        storm.until(recovered, RECOVER_SECONDS)
    except AssertionError:
        raise AssertionError(f"{RECOVER_SECONDS:g} s after the storm this does not work: {lacking}") from None
    return strikes


def _check(storm: SiteStorm) -> dict[str, float]:
    storm.stop_clients()
    eventually(lambda: not storm.members(), timeout=RECOVER_SECONDS)
    for name in HUBS:
        storm.run("collect", name)
    found: dict[str, float] = dict(checker.no_acknowledged_write_is_lost(storm.history, HUBS))
    found |= checker.nothing_is_given_twice(storm.history)
    found["reads"] = checker.reads_never_go_back(storm.history)
    found |= checker.data_is_right(storm.history)
    found["slowest call"] = checker.every_call_ends_in_time(storm.history)
    return found


def _nothing_is_left(storm: SiteStorm, made: Network) -> None:
    """On no host a process but the one that holds it, nor anything in shared memory once what is dead was cleaned."""
    for name in HUBS:
        host = made.hosts[name]
        namespace = os.readlink(f"/proc/{host.pid}/ns/net")
        eventually(lambda: _processes_in({namespace}) == [host.pid])  # noqa: B023  called at once
        storm.run("clean", name)
        shared = Path(f"/proc/{host.pid}/root/dev/shm")
        left = [
            str(path.relative_to(shared)) for path in shared.rglob("*") if path.is_file() and path.name not in STAYS
        ]
        assert not left, f"in the shared memory of {name}: {left}"


def _processes_in(namespaces: set[str]) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/net") in namespaces:
                found.append(int(pid))
        except OSError:
            continue
    return found
