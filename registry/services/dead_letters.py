"""Dead letters: messages that were given up. The newest are in memory."""

from collections import deque
from collections.abc import Collection

from msgspec.structs import replace

from registry.records import DeadLetter

MOST_LETTERS = 1_000
MOST_LETTER_BYTES = 16 * 2**20
MOST_PAYLOAD_BYTES = 65_536  # a larger payload, or larger headers, are not kept


class DeadLetters:
    """The newest undeliverable messages, bounded in number and bytes."""

    def __init__(self) -> None:
        self._letters: deque[DeadLetter] = deque()
        self._bytes = 0
        self._next_number = 1
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._letters)

    def add(self, letter: DeadLetter) -> None:
        self._letters.append(replace(letter, number=self._next_number))
        self._next_number += 1
        self._bytes += _size(letter)
        while len(self._letters) > MOST_LETTERS or self._bytes > MOST_LETTER_BYTES:
            self._bytes -= _size(self._letters.popleft())
            self.dropped += 1

    def newest(self, address: str | None, limit: int) -> list[DeadLetter]:
        found = [letter for letter in self._letters if address in (None, letter.address)]
        return found[-limit:]

    def remove(self, numbers: Collection[int]) -> int:
        """Return how many of them were still here."""
        removed = [letter for letter in self._letters if letter.number in numbers]
        self._letters = deque(letter for letter in self._letters if letter.number not in numbers)
        self._bytes -= sum(map(_size, removed))
        return len(removed)


def _size(letter: DeadLetter) -> int:
    return 500 + len(letter.payload_base64 or "") + 2 * len(str(letter.headers))
