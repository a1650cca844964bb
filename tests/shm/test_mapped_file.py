import os
import sys

import pytest

from messagehub.shm import errors
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.mapped_file import Segment, write_file
from messagehub.shm.rings.ring import open_reader
from tests.shm.children import fork, wait
from tests.shm.rings import writer

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def test_a_block_has_no_name_until_it_is_published(root: str) -> None:
    path = os.path.join(root, "x")
    segment = Segment.create(path, 8192)
    assert os.listdir(root) == []
    segment.publish()
    assert os.listdir(root) == ["x"]
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.path.getsize(path) == 8192


def test_a_creator_that_dies_before_publishing_leaves_nothing(root: str) -> None:
    wait(fork(lambda: Segment.create(os.path.join(root, "x"), 8192)))
    assert os.listdir(root) == []


def test_the_second_publication_of_a_name_is_refused(root: str) -> None:
    path = os.path.join(root, "x")
    write_file(path, b"first")
    with pytest.raises(errors.NameTaken):
        Segment.create(path, 8192).publish()
    with open(path, "rb") as file:
        assert file.read() == b"first"


def test_symlinks_are_never_followed(root: str) -> None:
    with writer(root):
        os.symlink(os.path.join(root, "ring"), os.path.join(root, "link"))
        with pytest.raises(errors.SymlinkRefused):
            open_reader(os.path.join(root, "link"))
        with pytest.raises(errors.NameTaken):
            write_file(os.path.join(root, "link"), b"")


def test_nothing_there_says_so(root: str) -> None:
    with pytest.raises(errors.NothingThere):
        open_reader(os.path.join(root, "absent"))


def test_names_too_long_and_unfit_are_refused(root: str) -> None:
    with pytest.raises(errors.NameTooLong):
        Segment.create(os.path.join(root, "n" * 300), 8192).publish()
    with pytest.raises(errors.NameTooLong):
        open_reader(os.path.join(root, "n" * 300))
    directory = Directory(root=root)
    with pytest.raises(errors.NameTooLong):
        directory.exclusive_block("c" * 300)
    for name in ("", ".", "..", "a/b", "a\0b", "a b", "-x", "x@y"):
        with pytest.raises(errors.NameRefused):
            directory.channel_path(name)


def test_other_platforms_get_the_sentence(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(errors.NotLinux, match="need Linux"):
        open_reader(os.path.join(root, "x"))
    with pytest.raises(errors.NotLinux):
        Segment.create(os.path.join(root, "x"), 8192)
    with pytest.raises(errors.NotLinux):
        Directory(root=root).make_channel("c")


def test_a_root_that_is_missing_or_cannot_hold_blocks_is_refused(root: str) -> None:
    with pytest.raises(errors.RootUnusable):
        Segment.create(os.path.join(root, "absent", "x"), 8192)
    with pytest.raises(errors.RootUnusable):
        Directory(root=os.path.join(root, "absent")).make_channel("c")


def test_a_directory_or_fifo_at_the_name_is_no_block(root: str) -> None:
    os.mkdir(os.path.join(root, "d"))
    os.mkfifo(os.path.join(root, "f"))
    for name in ("d", "f"):
        with pytest.raises(errors.WrongMagic):
            open_reader(os.path.join(root, name))


@as_root
def test_the_file_of_another_user_is_refused_by_reader_writer_and_directory(root: str) -> None:
    os.chmod(root, 0o777)

    def as_nobody() -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        writer(root).write(b"bait")
        os.mkdir(os.path.join(root, "messagehub-0"))

    assert wait(fork(as_nobody)) == 0
    with pytest.raises(errors.ForeignOwner):
        open_reader(os.path.join(root, "ring"))
    with pytest.raises(errors.ForeignOwner):
        writer(root)
    with pytest.raises(errors.ForeignOwner):
        Directory(root=root).make_channel("c")


@as_root
def test_a_reader_of_another_user_is_denied(root: str) -> None:
    os.chmod(root, 0o777)
    with writer(root):

        def as_nobody() -> None:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with pytest.raises(errors.PermissionRefused):
                open_reader(os.path.join(root, "ring"))
            with pytest.raises(errors.PermissionRefused):
                writer(root)

        assert wait(fork(as_nobody)) == 0


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o722])
def test_a_directory_that_is_open_to_others_is_refused(root: str, mode: int) -> None:
    directory = Directory(root=root)
    directory.make_channel("c")
    os.chmod(os.path.join(root, directory.place), mode)
    with pytest.raises(errors.RootUnusable, match="chmod 700"):
        directory.make_channel("c")
