"""What the kernel tells of a channel's directory or, until there is one, of the directory of all channels."""

import os

from messagehub.shm import inotify
from messagehub.shm.channel_directory.directory import CHANNEL_LOCK, Directory
from messagehub.shm.channel_directory.entries import is_about_members
from messagehub.shm.errors import DataBlockError

_NEWS = inotify.MOVED_TO | inotify.CLOSE_WRITE | inotify.CREATE | inotify.DELETE


class DirectoryWatch:
    def __init__(self, directory: Directory, channel: str) -> None:
        """Nothing is watched before `look`."""
        self._directory = directory
        self._channel = channel
        self._news = inotify.Inotify()
        self._is_watched = False
        self._is_parent_watched = False
        self._watched_tables = False

    @property
    def is_open(self) -> bool:
        """Whether the kernel tells of changes."""
        return self._is_watched or self._is_parent_watched

    def fds(self) -> list[int]:
        return [self._news.fileno()] if self.is_open else []

    def has_news(self) -> bool:
        """Whether what the kernel told is about producers or tables; everything told so far is forgotten."""
        told = [self._is_news(happened) for happened in self._news.read()]
        return any(told)

    def look(self) -> None:
        """Watch what is there by now."""
        if not self._is_watched:
            self._is_watched = self._watch_channel() or (self._watch_parent() and self._watch_channel())
        if self._is_watched and self._is_parent_watched:
            self._news.unwatch(self._directory.path)
            self._is_parent_watched = False
        if self._is_watched and not self._watched_tables:
            self._watched_tables = self._news.watch(self._directory.tables_path(self._channel), inotify.CREATE)

    def close(self) -> None:
        self._news.close()
        self._is_watched = self._is_parent_watched = False

    def _watch_channel(self) -> bool:
        """A directory without its lock is about to be filled, or to go."""
        path = self._directory.channel_path(self._channel)
        return self._news.watch(path, _NEWS) and os.path.exists(os.path.join(path, CHANNEL_LOCK))

    def _watch_parent(self) -> bool:
        if not self._is_parent_watched:
            try:
                self._directory.make()
            except DataBlockError:
                return False  # not ours to make: look now and then
            self._is_parent_watched = self._news.watch(self._directory.path, inotify.CREATE | inotify.MOVED_TO)
        return self._is_parent_watched

    def _is_news(self, happened: inotify.Happened) -> bool:
        if happened.path == self._directory.path:
            if happened.mask & inotify.IGNORED:
                self._is_parent_watched = False
            return happened.name == self._channel or not self._is_parent_watched
        if _is_removal(happened):
            self._is_watched = self._watched_tables = False  # the directory is gone, and may be made again
            return True
        return is_about_members(happened.name) or not happened.path


def _is_removal(news: inotify.Happened) -> bool:
    """Whether the channel's directory goes: its lock goes just before it."""
    return bool(news.mask & inotify.IGNORED or (news.name == CHANNEL_LOCK and news.mask & inotify.DELETE))
