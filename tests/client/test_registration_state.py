"""A registration's state machine, driven by answers that are lost, late and doubled."""

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from messagehub.client.registration_state import DOUBTS, RegistrationState

FAR = 1e9


def asked() -> tuple[RegistrationState, int]:
    state = RegistrationState()
    assert (state.name, state.next_step(0.0)) == ("wanted", "register")
    number = state.ask()
    assert (state.name, state.next_step(FAR)) == ("asked", None)
    return state, number


def acknowledged() -> RegistrationState:
    state, number = asked()
    state.acknowledged(number)
    assert (state.name, state.next_step(FAR)) == ("acknowledged", None)
    return state


def test_a_registration_is_asked_for_acknowledged_unregistered_and_gone() -> None:
    state = acknowledged()
    state.close()
    assert (state.name, state.next_step(0.0)) == ("closing", "unregister")
    state.unregistered(state.ask(), now=0.0)
    assert (state.name, state.next_step(FAR)) == ("gone", None)


def test_what_no_broker_heard_of_is_gone_at_once() -> None:
    state = RegistrationState()
    state.close()
    assert state.name == "gone"
    state, number = asked()
    state.failed(number, now=0.0, most_seconds=5.0, was_heard=False)
    state.close()
    assert state.name == "gone"


def test_a_lost_answer_leaves_a_doubt_that_closing_settles() -> None:
    state, number = asked()
    state.failed(number, now=0.0, most_seconds=5.0, was_heard=True)
    assert state.name == "wanted"
    state.close()
    assert (state.name, state.next_step(0.0)) == ("closing", "unregister")


def test_not_registered_is_no_end_while_the_registration_may_be_on_its_way() -> None:
    state, number = asked()
    state.failed(number, now=0.0, most_seconds=5.0, was_heard=True)
    state.close()
    now = 0.0
    for _ in range(DOUBTS - 1):
        state.unregistered(state.ask(), now=now)
        assert state.name == "closing"
        assert state.next_step(now) is None
        now = state.retry_at
        assert state.next_step(now) == "unregister"
    state.unregistered(state.ask(), now=now)
    assert state.name == "gone"


def test_a_late_acknowledgement_of_a_closed_one_is_unregistered() -> None:
    state, late = asked()
    state.close()
    assert state.name == "closing"
    state.unregistered(state.ask(), now=0.0)  # it overtook the registration
    assert (state.name, state.next_step(0.0)) == ("closing", None)
    state.acknowledged(late)
    assert state.next_step(0.0) == "unregister"
    state.unregistered(state.ask(), now=0.0)
    assert state.name == "gone"


def test_a_doubled_answer_changes_nothing() -> None:
    state, number = asked()
    state.acknowledged(number)
    state.acknowledged(number)
    assert state.name == "acknowledged"
    state.refused(number)
    state.failed(number, now=0.0, most_seconds=5.0, was_heard=False)
    assert state.name == "acknowledged"
    state.close()
    question = state.ask()
    state.unregistered(question, now=0.0)
    state.unregistered(question, now=0.0)
    state.acknowledged(number)
    state.not_unregistered(question, now=0.0, most_seconds=5.0)
    assert (state.name, state.next_step(FAR)) == ("gone", None)


def test_the_answer_to_an_older_question_does_not_undo_a_newer_one() -> None:
    state, first = asked()
    state.failed(first, now=0.0, most_seconds=5.0, was_heard=True)
    second = state.ask()
    state.refused(first)
    state.failed(first, now=0.0, most_seconds=5.0, was_heard=True)
    assert state.name == "asked"
    state.acknowledged(second)
    assert state.name == "acknowledged"


def test_a_refusal_ends_it() -> None:
    state, number = asked()
    state.refused(number)
    assert state.name == "gone"


def test_what_fails_is_asked_again_after_pauses_that_grow() -> None:
    state = RegistrationState()
    now, pauses = 0.0, []
    for _ in range(10):
        assert state.next_step(now) == "register"
        state.failed(state.ask(), now=now, most_seconds=5.0, was_heard=False)
        assert state.next_step(now) is None
        pauses.append(state.retry_at - now)
        now = state.retry_at
    assert [round(pause, 2) for pause in pauses] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    state.failed(state.ask(), now=now, most_seconds=5.0, was_heard=False)
    state.hurry()
    assert state.next_step(now) == "register"


def test_another_broker_is_told_again_and_a_listed_one_stays_listed() -> None:
    state = acknowledged()
    state.is_listed = True
    assert state.name == "acknowledged"
    state.forgotten()
    assert (state.name, state.next_step(0.0)) == ("listed", "register")
    state.failed(state.ask(), now=0.0, most_seconds=5.0, was_heard=False)
    assert state.name == "listed"
    state.acknowledged(state.ask())
    assert state.name == "acknowledged"


def test_what_another_broker_may_know_from_its_store_is_unregistered() -> None:
    state = acknowledged()
    state.forgotten()
    state.failed(state.ask(), now=0.0, most_seconds=5.0, was_heard=False)
    state.close()
    assert (state.name, state.next_step(0.0)) == ("closing", "unregister")
    state.unregistered(state.ask(), now=0.0)
    assert state.name == "gone"


class Network(RuleBasedStateMachine):
    """A broker that holds the registration or not, and a network that loses, delays and doubles.

    Questions are served in any order. What is on its way arrives, or is lost, before the doubts have ended: that is
    what the pauses between them are for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = RegistrationState()
        self.now = 0.0
        self.is_held = False
        self.number = 0
        self.on_the_way: list[tuple[str, int]] = []
        self.answers: list[tuple[str, int]] = []

    @rule()
    def step(self) -> None:
        step = self.state.next_step(self.now)
        if step is not None:
            self.number = self.state.ask()
            self.on_the_way.append((step, self.number))

    is_ordered = False

    def _next_served(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.on_the_way) - 1))

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data())
    def serve(self, data: st.DataObject) -> None:
        question = self.on_the_way.pop(self._next_served(data))
        self.is_held = question[0] == "register"
        self.answers.append(question)

    @precondition(lambda self: self.answers)
    @rule(data=st.data(), is_doubled=st.booleans())
    def answer(self, data: st.DataObject, is_doubled: bool) -> None:
        index = data.draw(st.integers(0, len(self.answers) - 1))
        step, number = self.answers[index] if is_doubled else self.answers.pop(index)
        if step == "register":
            self.state.acknowledged(number)
        else:
            self.state.unregistered(number, now=self.now)

    @precondition(lambda self: self.state.next_step(FAR) is None and not self.state.is_closed)
    @rule()
    def time_out(self) -> None:
        if self.state.name == "asked":
            self.state.failed(self.number, now=self.now, most_seconds=5.0, was_heard=True)

    @rule(seconds=st.floats(0.0, 3.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def close(self) -> None:
        self.state.close()

    @rule()
    def restart_broker(self) -> None:
        self.state.forgotten()
        self.state.hurry()

    def teardown(self) -> None:
        """Whatever happened: once the network delivers again, a closed one is gone and an open one is known."""
        for step, _ in self.on_the_way:
            self.is_held = step == "register" or (self.is_held and not self.is_ordered)  # or the worst order
        self.on_the_way, self.answers = [], []
        if self.state.name == "asked":
            self.state.failed(self.number, now=self.now, most_seconds=5.0, was_heard=True)
        elif self.state.name == "closing" and self.state.next_step(FAR) is None:
            self.state.not_unregistered(self.number, now=self.now, most_seconds=5.0)
        was_gone = self.state.name == "gone"
        for _ in range(2 * DOUBTS):
            self.now += 60.0
            step = self.state.next_step(self.now)
            if step == "register":
                self.is_held = True
                self.state.acknowledged(self.state.ask())
            elif step == "unregister":
                self.is_held = False
                self.state.unregistered(self.state.ask(), now=self.now)
        assert self.state.name in ("acknowledged", "gone")
        if not was_gone or self.is_ordered:
            assert self.is_held == (self.state.name == "acknowledged")


class OrderedNetwork(Network):
    """One connection: what was asked first is served first, so that one that is gone is never held by the broker."""

    is_ordered = True

    def _next_served(self, data: st.DataObject) -> int:
        return 0


Network.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
OrderedNetwork.TestCase.settings = Network.TestCase.settings
TestNetwork = Network.TestCase
TestOrderedNetwork = OrderedNetwork.TestCase


@given(st.lists(st.sampled_from(["close", "forget", "hurry", "list"]), max_size=8))
def test_a_closed_one_never_comes_back(history: Iterable[str]) -> None:
    state = acknowledged()
    state.close()
    for what in history:
        {"close": state.close, "forget": state.forgotten, "hurry": state.hurry, "list": lambda: None}[what]()
    assert state.name == "closing"
    assert state.next_step(FAR) == "unregister"
