"""How processes under one supervisor share out what there is to claim."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from tempfile import TemporaryFile

import pytest

from holdfast.system.siblings import FRESH_S, TOGETHER, YIELD_S, LoadTable, Siblings

COUNT = 3


class Clock:
    def __init__(self) -> None:
        self.ns = 10**12

    def __call__(self) -> int:
        return self.ns

    def pass_s(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)


class Family:
    """Three processes as each sees the others, with one clock."""

    def __init__(self, leaving: ExitStack) -> None:
        self.clock = Clock()
        memory = leaving.enter_context(TemporaryFile())  # noqa: SIM115  it is closed with the test
        os.ftruncate(memory.fileno(), LoadTable.size(COUNT))
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(COUNT)]
        for sockets in pairs:
            for end in sockets:
                leaving.enter_context(end)
        mouths = [mouth for _, mouth in pairs]
        tables = [LoadTable(memory.fileno(), COUNT) for _ in range(COUNT)]
        for table in tables:
            leaving.callback(table.close)
        self.members = [
            Siblings(slot, 1_000 + slot, tables[slot], pairs[slot][0], mouths, self.clock) for slot in range(COUNT)
        ]

    def touch(self, *chats: int, room: int = 100) -> None:
        for member, driven in zip(self.members, chats, strict=False):
            member.touch(driven, room)

    def was_nudged(self, slot: int) -> bool:
        try:
            return bool(self.members[slot].ear.recv(16))
        except BlockingIOError:
            return False


@pytest.fixture
def family() -> Iterator[Family]:
    with ExitStack() as leaving:
        yield Family(leaving)


def test_one_that_is_alone_takes_all_there_is_room_for(family: Family) -> None:
    family.touch(50)
    assert family.members[0].share(50, 100) == 100


def test_those_that_drive_the_same_take_a_few_at_a_time(family: Family) -> None:
    family.touch(0, 0, 0)
    assert family.members[0].share(0, 100) == TOGETHER
    family.touch(80, 80, 80)
    assert family.members[0].share(80, 100) == 10
    assert family.members[0].share(80, 1) == 1


def test_one_that_drives_more_leaves_it_to_the_one_that_drives_fewest_and_nudges_it(family: Family) -> None:
    family.touch(6, 5, 2)
    assert family.members[0].share(6, 100) == 0
    assert family.members[0].yields
    assert family.was_nudged(2)
    assert not family.was_nudged(1)
    assert family.members[2].share(2, 100) == 5


def test_what_a_sibling_has_not_taken_in_time_is_taken_all_the_same(family: Family) -> None:
    family.touch(6, 0)
    assert family.members[0].share(6, 100) == 0
    family.clock.pass_s(YIELD_S)
    assert family.members[0].share(6, 100) == TOGETHER
    assert not family.members[0].yields
    assert family.members[0].share(6, 100) == 0  # and the next one is left to it again


@pytest.mark.parametrize("why", ["hangs", "full", "gone"])
def test_one_that_cannot_take_any_is_not_waited_for(family: Family, why: str) -> None:
    family.touch(0, 0)
    if why == "hangs":
        family.clock.pass_s(FRESH_S + 1)
    elif why == "full":
        family.members[1].touch(0, 0)
    else:
        family.members[1].close()
    assert family.members[0].share(6, 100) == 100


def test_an_ear_that_is_full_holds_no_one_up(family: Family) -> None:
    family.touch(6, 0)
    for _ in range(5_000):
        assert family.members[0].share(6, 100) == 0
    family.members[1].hear()
    assert not family.was_nudged(1)
