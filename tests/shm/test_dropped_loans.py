"""A loan that nobody commits or aborts gives its slot back when its last view is gone."""

import os
import threading

import numpy as np
import pytest

from messagehub.shm.errors import RingFull
from messagehub.shm.layout import WhenFull
from messagehub.shm.rings.ring import open_reader
from tests.shm.rings import checked, payload, writer


def test_dropped_loans_leave_all_slots_usable(root: str) -> None:
    with writer(root, slot_count=2) as made, open_reader(os.path.join(root, "ring"), start="oldest") as reader:
        for _ in range(5):
            with pytest.warns(ResourceWarning, match="a loan of channel 'c' .*commit or abort it.* was never closed"):
                made.loan(300, 0.0)
        assert made.write(payload(1), 0.0) == (1, 1)
        assert checked(reader.read(0)) == 1


@pytest.mark.parametrize("keep", [lambda loan: loan.buffer[4:], lambda loan: np.frombuffer(loan.buffer, np.uint8)])
def test_the_slot_stays_taken_while_somebody_could_still_write_it(root: str, keep) -> None:
    with writer(root, slot_count=1, when_full=WhenFull.ERROR) as made:
        kept = keep(made.loan(300))
        with pytest.raises(RingFull):
            made.write(payload(1))
        with pytest.warns(ResourceWarning):
            del kept
        assert made.write(payload(1)) == (1, 1)


def test_a_loan_dropped_by_one_thread_frees_another_that_waits(root: str) -> None:
    with writer(root, slot_count=1) as made:
        loans = [made.loan(300)]
        waiting = threading.Thread(target=made.write, args=(payload(1), 30.0))
        waiting.start()
        with pytest.warns(ResourceWarning):
            loans.clear()
        waiting.join(30.0)
        assert made.head == 1


def test_an_overwriting_writer_that_its_own_loans_stop_is_told_to_commit_them(root: str) -> None:
    with writer(root, slot_count=2) as made:
        loans = [made.loan(300), made.loan(300)]
        with pytest.raises(
            RingFull, match=r"loans of this producer .* hold 2 of them\. Commit or abort them"
        ) as refused:
            made.write(payload(1), 0.0)
        assert "overwrite" not in str(refused.value)
        for loan in loans:
            loan.abort()
        assert made.write(payload(1), 0.0) == (1, 1)


def test_a_loan_may_outlive_its_writer(root: str) -> None:
    made = writer(root)
    loan = made.loan(300)
    made.close()
    del made, loan


def test_a_committed_loan_is_given_back_once(root: str) -> None:
    with writer(root, slot_count=2) as made, open_reader(os.path.join(root, "ring"), start="oldest") as reader:
        loan = made.loan(300)
        loan.buffer[:] = payload(1)
        loan.commit()
        del loan
        made.write(payload(2))
        assert [checked(reader.read(0)), checked(reader.read(0))] == [1, 2]
