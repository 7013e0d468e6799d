"""A real task from its beginning to its end, while the worker that does it is killed with -9 again and again."""

import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from holdfast import App, State
from holdfast.core.journal import CallsStarted
from holdfast.events import CallAsked, CallBegan, CallDone, Finished, TextAdded, Update
from tests.support.programs import Program
from tests.support.turns import entries, said
from tests.tools.carpenter import agent

# The mended till has another length: Python takes cached bytecode for that of a file of the same second and length.
FILES = {
    "till.py": "def total(left, right):\n    return left - 1 * right\n",
    "test_till.py": "open('runs', 'a').write('x')\nfrom till import total\nassert total(2, 3) == 5\n",
    ".gitignore": "runs\n__pycache__\n",
}
Moment = Callable[[Update], bool]
MOMENTS: tuple[Moment, ...] = (
    lambda update: isinstance(update, TextAdded),  # in the middle of an answer
    lambda update: isinstance(update, CallBegan) and update.call.name == "read_file",
    lambda update: isinstance(update, CallAsked),  # while a person is asked, who answers before the next one is there
    lambda update: isinstance(update, CallDone) and update.call.name == "edit_file",
    lambda update: isinstance(update, CallAsked) and "commit" in update.call.arguments,
    lambda update: isinstance(update, TextAdded) and update.text.startswith("The"),  # the last answer
)


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def prepared(folder: Path) -> Path:
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "A till that subtracts")
    return folder


async def carried_out(url: str, folder: Path, moments: tuple[Moment, ...]) -> list[tuple[str, str]]:
    """The conversation, once it is over."""
    left = list(moments)
    with ExitStack() as workers:

        def next_worker() -> Program:
            return workers.enter_context(Program("tests.tools.carpenter", url, str(folder)))

        async with App(url, agents=[agent(str(folder))]) as app:
            chat = await app.create("carpenter", "Mend the test, and commit it.")
            worker = next_worker()
            async for update in chat.stream(after="", follow=True):
                killed = bool(left) and left[0](update)
                if killed:
                    left.pop(0)
                    worker.process.kill()
                    worker.process.wait()
                if isinstance(update, CallAsked):
                    (asked,) = await chat.open_calls()
                    await asked.approve(by="ada")
                if killed:
                    worker = next_worker()
                if isinstance(update, Finished):
                    break
            assert left == []
            assert await chat.state() is State.IDLE
            started = Counter(
                call_id
                for entry in await entries(chat)
                if isinstance(entry, CallsStarted)
                for call_id in entry.call_ids
            )
            asked_for = {part.call_id: part.name for message in await chat.messages() for part in message.calls}
            unsafe = [call_id for call_id, name in asked_for.items() if name in ("shell", "edit_file")]
            assert [started[call_id] for call_id in unsafe] == [1, 1, 1, 1]
            return [(role, text.replace(str(folder), "here")) for role, text in said(await chat.messages())]


async def test_a_task_is_done_once_however_often_its_worker_is_killed(store_url: str, tmp_path: Path) -> None:
    folders = [prepared(tmp_path / name) for name in ("calm", "killed")]
    stories = [
        await carried_out(store_url, folder, moments) for folder, moments in zip(folders, ((), MOMENTS), strict=True)
    ]
    assert stories[0] == stories[1]
    assert stories[0][-1] == ("assistant", "The test passes, and the change is committed.")
    for folder in folders:
        assert (folder / "till.py").read_text() == "def total(left, right):\n    return left + right\n"
        assert (folder / "runs").read_text() == "xx", "the test ran twice, as it was asked to"
        assert git(folder, "log", "--format=%s").splitlines() == [
            "Till: add, do not subtract",
            "A till that subtracts",
        ]
        assert git(folder, "status", "--porcelain") == ""
