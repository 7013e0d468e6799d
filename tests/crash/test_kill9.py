"""`kill -9` at every crash point, in different verbs, on both stores.

A process plays the scenario and is killed with SIGKILL where `HOLDFAST_CRASH_AT` says. Then the store is opened
again, and what is in it must be, row by row, what an undisturbed run had committed at that step: everything that was
answered, the verb in flight wholly or not at all, nothing else. The verb in flight is asked for again and has then
happened once. The dead worker's chats are taken over and every chat can be finished.

On SQLite each point is tried in several steps; on PostgreSQL, where a try takes four times as long, each point and
each step once. `HOLDFAST_CRASH_MATRIX=full` (`make long`) kills in every step at every point that it passes, on both.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from _pytest.mark.structures import ParameterSet

from holdfast import faults
from holdfast.store import open_store
from holdfast.store.records import StoreOptions
from holdfast.system.clock import FakeClock
from tests.crash.judge import Judge, reopen_and_judge, work_goes_on
from tests.crash.reference import Reference, play_undisturbed
from tests.crash.writer import WRITER_S_MAX, Line, read_log, start_writer
from tests.support.behind import sql
from tests.support.postgres import PostgresServer
from tests.support.scenario import STEPS, Kind

# Which points a step of a kind passes. `test_the_points_are_where_this_file_says` keeps it true.
TRANSACTION = ("write.begun", "commit.before", "commit.after", "ack.before")
CHAT = tuple(point for point in faults.POINTS if point.startswith("write.") and "receipt" not in point)[1:]
RECEIPT = ("write.receipt.before", "write.receipt.after")
POINTS_OF: dict[Kind, tuple[str, ...]] = {
    "open": ("migrate.before", "migrate.after"),
    "create": (*TRANSACTION, *CHAT, *RECEIPT, "create.before", "create.after"),
    "client": (*TRANSACTION, *CHAT, *RECEIPT),
    "commit": (*TRANSACTION, *CHAT),
    "claim": (*TRANSACTION, *CHAT, "claim.before", "claim.after"),
    "deltas": (*TRANSACTION, "deltas.before", "deltas.after"),
    "fork": (*TRANSACTION, *CHAT, *RECEIPT, "fork.before", "fork.after"),
    "delete": (*TRANSACTION, "delete.before", "delete.rows", "delete.after"),
    "lease": ("lease.before", "lease.after"),
    "expire": (*TRANSACTION, *CHAT, "expire.before", "expire.after"),
    "sweep": (*TRANSACTION, *CHAT),
    "upkeep": TRANSACTION,
    "refused": (),
    "sabotage": (),
}

# Points that only one store has, and why.
SQLITE_ONLY = {
    "checkpoint.before": "PostgreSQL's server makes its own checkpoints, in a process of its own",
    "checkpoint.after": "as before",
}

# Of commands: whoever is killed there is tried in tests/cli, test_backups.py and test_pruning.py.
OF_COMMANDS = {"copy.step", "backup.checked", "restore.prepared", "restore.kept", "vacuum.rebuilt"}
# Of chats that are larger than the scenario's, and of imports: test_slices.py and test_transfers.py of tests/crash.
OF_LARGE_CHATS = {"import.before", "import.slice", "import.after", "fork.slice", "clear.before", "clear.after"}
# Of budgets, which the scenario has none of: test_budgets.py of tests/crash.
OF_BUDGETS = {"draw.before", "draw.after", "fold.before", "fold.after"}
# Of schedules, which it has none of either: test_schedules.py of tests/crash.
OF_SCHEDULES = {"schedule.before", "schedule.chat", "schedule.after"}
# Of memory: test_memory.py of tests/crash.
OF_MEMORY = {"memory.before", "memory.written", "memory.after"}
# Of logins to MCP servers: tests/tools/test_mcp_logins.py.
OF_LOGINS = {"mcp.refreshed"}
OF_OTHERS = OF_COMMANDS | OF_LARGE_CHATS | OF_BUDGETS | OF_SCHEDULES | OF_MEMORY | OF_LOGINS
POINTS = set(faults.POINTS) - OF_OTHERS

STEPS_PER_POINT = 5
STEPS_PER_POINT_IN_A_TRANSACTION = 3  # wherever it is left, there is nothing of it


FULL = os.environ.get("HOLDFAST_CRASH_MATRIX") == "full"

# The first step makes the tables; who is killed in a later one may find them made.
BARE = pytest.mark.bare_database
OPENING = STEPS[0].name


def where_to_kill(store: str) -> list[tuple[str, str]]:
    if FULL:
        return [(point, step.name) for point in faults.POINTS for step in STEPS if point in POINTS_OF[step.kind]]
    return each_in_several_steps() if store == "sqlite" else each_once()


def each_in_several_steps() -> list[tuple[str, str]]:
    """Every point, each in several steps: in those that were killed least so far, so that all get their turn."""
    killed: Counter[str] = Counter()
    cases: list[tuple[str, str]] = []
    for point in faults.POINTS:
        steps = [step.name for step in STEPS if point in POINTS_OF[step.kind]]
        within = point.startswith("write.")
        count = STEPS_PER_POINT_IN_A_TRANSACTION if within else STEPS_PER_POINT
        steps = sorted(steps, key=killed.__getitem__)[:count]
        killed.update(steps)
        cases += [(point, step) for step in steps]
    return cases


def each_once() -> list[tuple[str, str]]:
    """Every step, each at the point that was tried least so far; then every point that this left out."""
    tried: Counter[str] = Counter()
    cases: list[tuple[str, str]] = []
    for step in STEPS:
        if points := POINTS_OF[step.kind]:
            point = min(points, key=tried.__getitem__)
            tried[point] += 1
            cases.append((point, step.name))
    for point in faults.POINTS:
        steps = [step.name for step in STEPS if point in POINTS_OF[step.kind]]
        if steps and not tried[point]:
            cases.append((point, steps[len(steps) // 2]))
    return cases


def cases_of(store: str) -> list[ParameterSet]:
    return [
        pytest.param(store, point, step, marks=BARE if step == OPENING else (), id=f"{store}-{point}-{step}")
        for point, step in where_to_kill(store)
    ]


# --- the run that nobody disturbs -------------------------------------------------------------------------------

References = Callable[[str], Reference]


@pytest.fixture(scope="session")
def reference_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> References:
    """By URL: the undisturbed run on that kind of store, played when it is first asked for."""
    known: dict[str, Reference] = {}

    def reference_of(url: str) -> Reference:
        kind = url.partition(":")[0]
        if kind not in known:
            known[kind] = asyncio.run(play_undisturbed(own_store(kind, request, tmp_path_factory)))[""]
        return known[kind]

    return reference_of


@pytest.fixture(scope="session")
def crowd_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Reference]]:
    """The same for several runs in one store, by prefix."""
    known: dict[str, dict[str, Reference]] = {}

    def crowd_of(url: str) -> dict[str, Reference]:
        kind = url.partition(":")[0]
        if kind not in known:
            prefixes = tuple(f"{n}-" for n in range(CROWD))
            known[kind] = asyncio.run(play_undisturbed(own_store(kind, request, tmp_path_factory), prefixes))
        return known[kind]

    return crowd_of


def own_store(kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if kind == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('reference')}/holdfast.db"
    server: PostgresServer = request.getfixturevalue("postgres_cluster")
    return server.create_database()


def kill_at(order: str, url: str, folder: Path, *arguments: str) -> list[Line]:
    """Run the writer until it dies there. Returns what it had written down."""
    with start_writer(url, folder, *arguments, crash_at=order) as writer:
        _, said = writer.communicate(timeout=WRITER_S_MAX)
    assert writer.returncode == -signal.SIGKILL, f"it was to die at {order}: {said}"
    return read_log(folder / "log")


# --- one process, killed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store_url", "point", "step"), [*cases_of("sqlite"), *cases_of("postgres")], indirect=["store_url"]
)
def test_a_killed_writer_loses_nothing_and_leaves_nothing_half(
    point: str, step: str, store_url: str, reference_of: References, tmp_path: Path
) -> None:
    reference = reference_of(store_url)
    log = kill_at(f"{point}:{reference.occurrence(point, step)}", store_url, tmp_path)
    assert (log[-1].step, log[-1].answered) == (step, False), "it died in another step than it was to die in"
    asyncio.run(reopen_and_judge(store_url, log, reference))


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("point", SQLITE_ONLY)
def test_a_writer_killed_around_a_checkpoint_loses_nothing(
    point: str, at: int, reference_of: References, tmp_path: Path
) -> None:
    """Checkpoints run beside the answer: the step in flight is this one or the next."""
    url = f"sqlite:///{tmp_path}/holdfast.db"
    log = kill_at(f"{point}:{at}", url, tmp_path)
    asyncio.run(reopen_and_judge(url, log, reference_of(url)))


# --- several at once ------------------------------------------------------------------------------------------------

CROWD = 4
# A crowd's writes share transactions, so there are fewer of those than writes; these are reached in any case.
CROWD_CRASHES = (
    *("write.begun:9", "commit.before:5", "commit.before:14", "commit.before:23", "commit.after:6"),
    *(
        "commit.after:19",
        "ack.before:4",
        "ack.before:12",
        "ack.before:27",
        "create.after:7",
        "claim.after:11",
        "deltas.after:3",
    ),
    *("fork.after:2", "delete.before:2", "delete.after:5", "lease.after:6", "write.receipt.after:21"),
    *("write.chat.after:40", "write.journal.after:77", "write.calls.after:101", "write.queue.after:118"),
)


@pytest.mark.parametrize(
    ("store_url", "order"),
    [
        *(("sqlite", order) for order in CROWD_CRASHES),
        *(("postgres", order) for order in (CROWD_CRASHES if FULL else CROWD_CRASHES[::2])),
    ],
    indirect=["store_url"],
)
def test_writes_that_share_a_transaction_are_each_whole_or_absent(
    order: str, store_url: str, crowd_of: Callable[[str], dict[str, Reference]], tmp_path: Path
) -> None:
    references = crowd_of(store_url)
    log = kill_at(order, store_url, tmp_path, str(CROWD))
    if store_url.startswith("postgresql"):
        wait_for_the_server(store_url)
    asyncio.run(reopen_and_judge_all(store_url, log, references))


def wait_for_the_server(url: str) -> None:
    """Until it has noticed the death. Of those who did not meet the point some have asked for something: while we
    judge, the server would go on with that.
    """
    ours = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'"
    give_up_at = time.monotonic() + 30
    while sql(url, ours):
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


async def reopen_and_judge_all(url: str, log: list[Line], references: dict[str, Reference]) -> None:
    clock = FakeClock()
    async with open_store(url, StoreOptions(clock=clock)) as store:
        for prefix, reference in references.items():
            # The store was opened once, by the first.
            own = [line for line in log if line.prefix == prefix or line.step == "open_the_store"]
            lines = [msgspec.structs.replace(line, prefix=prefix) for line in own]
            await Judge(lines, reference, store, clock, url).judge()
        await work_goes_on(store, clock)


@pytest.mark.parametrize(
    ("point", "step"),
    [
        ("write.begun", "approve"),
        ("write.journal.after", "finish_the_turn"),
        ("write.queue.after", "end_the_child"),
        ("write.receipt.after", "edit_a_message"),
        ("commit.before", "claim_two_chats"),
        ("commit.after", "respond_with_calls"),
        ("ack.before", "queue_a_message"),
        ("deltas.after", "stream_to_two_chats"),
        ("delete.after", "delete_a_chat_and_its_child"),
        ("lease.before", "renew_a_lease"),
        ("expire.after", "expire_workers"),
    ],
)
def test_a_process_that_had_the_store_open_all_along_goes_on(
    point: str, step: str, store_url: str, reference_of: References, tmp_path: Path
) -> None:
    """The dead one held the write lock, or a half written transaction; the other one needs no restart."""

    async def survive() -> None:
        clock = FakeClock()
        async with open_store(store_url, StoreOptions(clock=clock)) as store:
            assert (await store.prune_receipts(), await store.list_chats()) == (0, [])  # it has written and read
            log = kill_at(f"{point}:{reference.occurrence(point, step)}", store_url, tmp_path)
            await Judge(log, reference, store, clock, store_url).judge()
            await work_goes_on(store, clock)

    reference = reference_of(store_url)
    asyncio.run(survive())


# --- what else could be wrong with these tests ------------------------------------------------------------------


def test_every_point_is_reached_and_they_are_where_this_file_says(store_url: str, reference_of: References) -> None:
    """A point that the scenario never reaches is a crash that nobody tried."""
    reached = set(reference_of(store_url).reached)
    declared = {(point, step.name) for step in STEPS for point in POINTS_OF[step.kind]}
    assert declared - reached == set()
    points = POINTS if store_url.startswith("sqlite") else POINTS - SQLITE_ONLY.keys()
    assert {point for point, _ in reached} == points
    cases = where_to_kill(store_url.partition(":")[0].removesuffix("ql"))
    assert {point for point, _ in cases} == POINTS - SQLITE_ONLY.keys()
    assert {step for _, step in cases} == {step.name for step in STEPS if POINTS_OF[step.kind]}


def test_every_step_that_should_change_something_does(store_url: str, reference_of: References) -> None:
    reference = reference_of(store_url)
    for step in STEPS:
        changed = reference.before(step.name) != reference.after(step.name)
        assert changed == (step.kind not in ("open", "refused")), step.name
