"""The schemas that the directory shows are checked once each, of producers and of tables."""

import pytest

from messagehub.broker.host_watcher.entry_checks import RETRY_SECONDS, Adoption, EntryChecks
from messagehub.errors import InvalidSchema, RateLimited
from registry import commands
from registry.registry import Registry
from registry.schemas.checks import CheckResult

PRODUCER = Adoption("c", "p", commands.RegisterProducer(channel="c", schema_hash="h", schema_version="1", config={}))
TABLE = Adoption("c", None, commands.RegisterTable(channel="c", generation=1, shm_name="/x"))


class Asked:
    """What the checks ask for, and when they want a channel to be looked at again."""

    def __init__(self) -> None:
        self.asked: list[tuple[Adoption, CheckResult | None]] = []
        self.looks: list[tuple[str, float]] = []
        self.refusal: Exception | None = None
        self.registry = Registry()
        self.checks = EntryChecks(self._ask, lambda channel, seconds: self.looks.append((channel, seconds)))

    def _ask(self, adoption: Adoption, result: CheckResult | None, _: Registry) -> bool:
        if self.refusal is not None:
            raise self.refusal
        if result is not None:
            return False
        self.asked.append((adoption, result))
        return True

    def must_wait(self, adoption: Adoption) -> bool:
        return self.checks.must_wait(adoption, self.checks.result(adoption), self.registry)


@pytest.fixture
def hub() -> Asked:
    return Asked()


@pytest.fixture(params=[PRODUCER, TABLE], ids=["producer", "table"])
def shown(request: pytest.FixtureRequest) -> Adoption:
    adoption: Adoption = request.param
    return adoption


def test_a_check_is_asked_for_once_and_its_result_kept(hub: Asked, shown: Adoption) -> None:
    assert [hub.must_wait(shown) for _ in range(3)] == [True, True, True]
    assert len(hub.asked) == 1
    assert hub.checks.is_asking
    assert hub.checks.is_asking_about("c")
    result = CheckResult(schema_hash="h")
    hub.checks.done(shown, result)
    assert not hub.checks.is_asking
    assert hub.looks == [("c", 0.0)]
    assert hub.checks.result(shown) is result
    assert not hub.must_wait(shown), "a registration that is refused is not checked at every look"
    hub.checks.forget("c", shown.producer_id)
    assert hub.checks.result(shown) is None


def test_a_result_counts_for_the_registration_it_was_made_for(hub: Asked, shown: Adoption) -> None:
    assert hub.must_wait(shown)
    hub.checks.done(shown, CheckResult(schema_hash="h"))
    other = shown._replace(command=commands.RegisterTable(channel="c", generation=7, shm_name="/y"))
    assert hub.checks.result(other) is None
    assert hub.must_wait(other)


def test_a_check_that_nobody_did_is_asked_for_again_later(hub: Asked, shown: Adoption) -> None:
    assert hub.must_wait(shown)
    hub.checks.done(shown, CheckResult(is_lost=True))
    assert hub.looks == [("c", RETRY_SECONDS)]
    hub.refusal = RateLimited("too many schemas wait")
    assert hub.must_wait(shown)
    assert hub.looks == [("c", RETRY_SECONDS)] * 2
    assert not hub.checks.is_asking
    hub.refusal = None
    assert hub.must_wait(shown)
    assert len(hub.asked) == 2


def test_a_refusal_that_needs_no_check_is_raised(hub: Asked, shown: Adoption) -> None:
    hub.refusal = InvalidSchema("no")
    with pytest.raises(InvalidSchema):
        hub.must_wait(shown)
    assert not hub.checks.is_asking


def test_results_of_producers_that_are_gone_are_forgotten_and_the_tables_is_not(hub: Asked) -> None:
    for shown in (PRODUCER, TABLE):
        assert hub.must_wait(shown)
        hub.checks.done(shown, CheckResult(schema_hash="h"))
    hub.checks.forget_producers_but("c", {"another"})
    assert hub.checks.result(PRODUCER) is None
    assert hub.checks.result(TABLE) is not None
