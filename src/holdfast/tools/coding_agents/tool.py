"""`coding_agent("claude", root=…)`: a coding agent on the command line as a tool, whose session survives the worker.

The program runs without a terminal and with nothing to read, as a child under the worker's guard
(`system/processes.py`). What it says is read by its rules (`programs.py`, `events.py`), shown to people as progress,
and judged by a table (`verdicts.py`).

The call is idempotent because a run of it never begins blindly. What is kept of its session (`sessions.py`) is
durable before the program starts. A run that finds such a keepsake of its own call resumes that session and tells it
in words that it was interrupted; it starts one only where the program itself says that there is none, on the host
where it would be, and with the id that it would have: a program that has it already refuses. A run whose result is
lost ends as unknown, so that the call is run again, which resumes.
"""

import asyncio
import os
import re
import socket
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import Field

from holdfast.core.call_words import spent_text
from holdfast.core.records import Frozen
from holdfast.errors import ConfigError, OutcomeUnknown, ToolFailed
from holdfast.system import processes
from holdfast.system.capture import Kept, PipeReader
from holdfast.system.cover import ProcessSpec
from holdfast.system.sandbox import Sandbox
from holdfast.tools.base import Tool, tool
from holdfast.tools.coding_agents.events import Events
from holdfast.tools.coding_agents.installed import InstalledProgram
from holdfast.tools.coding_agents.programs import KNOWN, CodingAccess, CodingProgram
from holdfast.tools.coding_agents.sessions import LATEST, Session, Sessions, session_id
from holdfast.tools.coding_agents.verdicts import Ending, Exit, Verdict, spent, verdict_of
from holdfast.tools.confinement import Confined, Confinement
from holdfast.tools.context import ToolContext, tool_context
from holdfast.tools.figures import show
from holdfast.tools.permissions.acts import Act, Read, Run, Whereabouts, Write
from holdfast.tools.shell.acts import acts_of
from holdfast.tools.shell.tool import end_words, holds

DEADLINE_S = 3600.0
OWN_END_S = 5.0  # it ends its program at its deadline, and tells what is known; a body that fails to is cut off
GRACE_S = 5.0  # for the process to end by itself after its result
TASK_CHARS_MAX = 30_000  # a word of a command line has 128 KiB on Linux, in bytes
ALLOWED_MAX = 20
HEARD_BYTES_MAX = 65_536  # of standard output that is kept as it is; events are read from all of it
STDERR_BYTES_MAX = 8_192
STDERR_SHOWN = 2_000
COST_MIN = 0.000001  # that a program is told it may spend: nothing at all would be no number to it

_GAP = re.compile(r"\{\w+\}")

INTERRUPTED = (
    "You were interrupted while you worked on the task below: the process that ran you ended before it could report. "
    "Parts of it may be done already. Look at what is there first, do not do again what is done, finish the rest, "
    "and then report on all of it. The task was:\n\n{task}"
)
PLACEHOLDER = "It ended without an error and said nothing. What it did is in its folder: look there."


def coding_agent(
    program: str | CodingProgram,
    *,
    root: str | Path,
    access: CodingAccess = "edit",
    model: str | None = None,
    name: str | None = None,
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    deadline_s: float = DEADLINE_S,
    grace_s: float = GRACE_S,
    sandbox: Sandbox | None = None,
    contained: bool = False,
    description: str | None = None,
) -> Tool:
    """A tool that gives tasks to a coding agent on the command line, which works on them in `root`: "claude",
    "codex", "gemini", or a `CodingProgram` that you declare.

    `access` is what the program may do there without being asked: "read", "edit" files, or "all". Whether the tool
    may run is for `Permissions` to say: a call is `run(NAME ACCESS)`, such as `run(claude edit)`, with `read` or
    `write` of the folder; without a rule that allows it, a person is asked. `options` are further words of its
    command line; `environment` is added to the minimal one and to the program's own keys, which it gets from the
    worker's. See docs/how-to/coding-agents.md.
    """
    found = KNOWN.get(program) if isinstance(program, str) else program
    if found is None:
        raise ConfigError(
            f"there is no coding program {program!r} that is known: {', '.join(KNOWN)}; "
            "declare another as CodingProgram"
        )
    named = name or found.name
    if not Path(root).is_dir():
        raise ConfigError(f"tool {named!r}: its root {str(root)!r} is not a folder: make it, or name another")
    if found.access and access not in found.access:
        raise ConfigError(f"tool {named!r}: access is {access!r}; {found.name} has {', '.join(found.access)}")
    if model is not None and not found.model:
        raise ConfigError(f"tool {named!r}: {found.name} takes no model: leave `model` out")
    confinement = None if sandbox is None else Confinement(sandbox, root)
    if confinement is not None:
        confinement.settle()
    runner = _Runner(found, named, str(root), access, model, tuple(options), environment or {}, confinement)
    runner.deadline_s, runner.grace_s = deadline_s, grace_s
    made: Tool = tool(
        name=named,
        replay="idempotent",
        untrusted=True,  # it may have read the web, and does not say so
        deadline_s=deadline_s + OWN_END_S,
        acts=runner.acts,
        needs_approval=False if confinement is None else confinement.approval(named, False),
        description=runner.description if description is None else description,
    )(_body(runner))
    place = Whereabouts(
        root=str(Path(root).absolute()),
        search_path=runner.environment["PATH"],
        sandboxed=contained or holds(sandbox),
    )
    return replace(made, whereabouts=place)


_Task = Annotated[str, Field(min_length=1, max_length=TASK_CHARS_MAX, description="What it is to do, and to report.")]
_Session = Annotated[
    str | None,
    Field(max_length=200, description=f"To go on with an earlier session: its name, or '{LATEST}'. None: a new one."),
]
_Allow = Annotated[
    list[str] | None,
    Field(
        max_length=ALLOWED_MAX,
        description="What it was denied before and may do now, as it names its tools. A person may be asked first.",
    ),
]


def _body(runner: "_Runner") -> Any:
    """With the parameters that the program has."""
    if not runner.program.resume:

        async def alone(task: _Task) -> str:
            return await runner.run(task, None, (), tool_context())

        return alone
    if not runner.program.allow:

        async def with_sessions(task: _Task, session: _Session = None) -> str:
            return await runner.run(task, session, (), tool_context())

        return with_sessions

    async def with_allowances(task: _Task, session: _Session = None, allow: _Allow = None) -> str:
        return await runner.run(task, session, tuple(allow or ()), tool_context())

    return with_allowances


class _Words(Frozen):
    """Of a call, for the command line."""

    task: str
    allow: tuple[str, ...] = ()
    budget: str = ""


class _Heard:
    """A run of the program, when its process is gone."""

    def __init__(self, events: Events, ending: Ending, words: str, end: str) -> None:
        self.events = events
        self.ending = ending
        self.words = words  # on standard error, and what is no event
        self.end = end  # of the process

    def failed_with(self, patterns: Sequence[str], *, answer: bool = False) -> bool:
        """It is an error, in these words of its own. Those of its model, its answer, can quote anything."""
        if verdict_of(self.ending).verdict is not Verdict.ERROR:
            return False
        told = f"{self.events.words}\n{self.words}\n{self.events.text if answer else ''}"
        return any(fnmatchcase(told, f"*{pattern}*") for pattern in patterns)


class _Runner:
    deadline_s = DEADLINE_S
    grace_s = GRACE_S

    def __init__(
        self,
        program: CodingProgram,
        name: str,
        root: str,
        access: CodingAccess,
        model: str | None,
        options: tuple[str, ...],
        environment: Mapping[str, str],
        confinement: Confinement | None,
    ) -> None:
        self.program = program
        self._name = name
        self._root = root
        self._access: CodingAccess = access
        self._model = model
        self._options = options
        self._extra = dict(environment)
        self._confinement = confinement
        self._installed = InstalledProgram(program, root)
        self._at_work: set[tuple[str, str]] = set()  # chats and their sessions

    @property
    def environment(self) -> dict[str, str]:
        program = self.program
        own = {name: os.environ[name] for name in program.inherited if name in os.environ}
        return processes.environment({**program.environment, **own, **self._extra})

    @property
    def description(self) -> str:
        goes_on = " with the name of its session, by which it can be asked to go on" if self.program.resume else ""
        may = {"read": "look at", "edit": "change", "all": "do anything with"}[self._access]
        return (
            f"Give a task to {self.program.name}, a coding agent that works by itself in {self._root} and may {may} "
            "files there. It knows nothing of this conversation but what the task says. Its report comes back"
            f"{goes_on}. It ends after {self.deadline_s:g} s at the latest."
        )

    # --- what it may do ---------------------------------------------------------------------------------------

    def acts(self, arguments: dict[str, Any]) -> Sequence[Act]:
        """What it runs by itself is for its own permissions, which `access` says; what it is allowed beyond that is
        judged like a command of ours.
        """
        runs: list[Act] = [Run(argv=(self.program.name, self._access), unknown="it decides by itself what it does")]
        for allowed in arguments.get("allow") or ():
            # A bracket within would end it for the program, and what follows would be a tool that is allowed.
            inner = re.fullmatch(r"(?:Bash|Shell|run_shell_command)\(([^()]*)\)", allowed, re.DOTALL)
            if inner is not None and "*" not in inner[1] and not inner[1].endswith(":"):
                runs += acts_of(inner[1])
            else:
                why = f"it cannot be told what {self.program.name} does with it"
                runs.append(Run(argv=(), unknown=why, line=allowed[:2_000]))
        folder = Read(path=".", extent="below") if self._access == "read" else Write(path=".")
        return [*runs, folder]

    # --- one call ---------------------------------------------------------------------------------------------

    async def run(self, task: str, named: str | None, allow: tuple[str, ...], context: ToolContext) -> str:
        if "\x00" in task or any("\x00" in word for word in allow):
            raise ToolFailed("A task cannot hold a NUL character.")
        if wrong := [word for word in allow if not word[:1].isalpha()]:
            raise ToolFailed(
                f"{wrong[0][:80]!r} names no tool: `allow` has tools, as {self.program.name} names them."
            )
        until = asyncio.get_running_loop().time() + self.deadline_s
        try:
            await self._installed.check(self.environment, context.children)
        except OSError as error:
            raise self._refused(error) from error
        sessions = Sessions(self._name, self.program.name, context)
        begun = sessions.begun_by_this_call()
        if begun is not None:
            session = begun
        elif named is not None:
            session = replace(sessions.find(named), call=context.call_id)
        else:
            own = session_id(context) if self.program.chooses_session else ""
            taken = [name for chat_id, name in self._at_work if chat_id == context.chat_id]
            session = sessions.new(own, socket.gethostname(), taken)
        place = (context.chat_id, session.name)
        if place in self._at_work:
            raise ToolFailed(f"{session.name} is at work for another call: wait for it, or begin another session.")
        self._at_work.add(place)
        _running.add((id(self), *place))
        try:
            run = _Run(self, sessions, session, context, until)
            return await self._work(run, task, allow, interrupted=begun is not None, goes_on=named is not None)
        finally:
            self._at_work.discard(place)
            _running.discard((id(self), *place))

    async def _work(self, run: "_Run", task: str, allow: tuple[str, ...], *, interrupted: bool, goes_on: bool) -> str:
        session, resumes = run.session, interrupted or goes_on
        if interrupted:
            self._check_resumable(session)
            task = INTERRUPTED.format(task=task)
        await run.keep()
        run.context.progress(f"[{session.name}{': goes on' if resumes else ''}]\n")
        words = _Words(task=task, allow=allow, budget=await self._budget(run.context))
        heard = await run.carry_out(self._argv(session, words, resumes=resumes))
        if resumes and heard.failed_with(self.program.no_session):
            here = session.host == socket.gethostname() and self.program.chooses_session
            if goes_on or session.acted or not (interrupted and here):
                raise ToolFailed(self._no_session(session))
            # It was to start here, under this very id, and did not get as far.
            heard = await run.carry_out(self._argv(session, words, resumes=False))
        elif not resumes and heard.failed_with(self.program.session_taken):
            # There is a session of this call's id, and no keepsake of it: the database is older than what was done.
            words = replace(words, task=INTERRUPTED.format(task=task))
            heard = await run.carry_out(self._argv(session, words, resumes=True))
        return self._told(heard, run)

    def _check_resumable(self, session: Session) -> None:
        if not session.id:
            raise ToolFailed(
                f"{self._name} was interrupted on {session.host} before the id of its session was known, so it "
                "cannot be resumed, and it was not started again: it may have begun. Look at what is there, and give "
                "it the rest as a new task."
            )
        if not self.program.resume:
            raise ToolFailed(
                f"{self._name} was interrupted, and {self.program.name} cannot go on with a session. It was not "
                "started again: it may have begun. Look at what is there, and give it the rest as a new task."
            )

    def _no_session(self, session: Session) -> str:
        return (
            f"The session {session.name} of {self.program.name} is not on this host ({socket.gethostname()}): it "
            f"began on {session.host}, or its files were deleted. It was not started again. Look at what is there, "
            "and begin a new session with what it has to know."
        )

    async def _budget(self, context: ToolContext) -> str:
        """What it may spend in money, for a program that bounds itself; empty: as much as it likes."""
        left = await context.budget_left()
        if left.cost == 0 or left.tokens == 0:
            raise ToolFailed(f"Nothing was run: of the budget no {'tokens are' if left.cost else 'money is'} left.")
        return "" if left.cost is None else f"{max(left.cost, COST_MIN):.6f}"

    def _argv(self, session: Session, given: _Words, *, resumes: bool) -> list[str]:
        program = self.program
        template = program.resume if resumes else program.start
        access = program.access_on_resume if resumes and program.access_on_resume is not None else program.access
        more = [*access.get(self._access, ()), *(program.model if self._model is not None else ()), *self._options]
        if given.allow:
            more += [word for one in program.allow for word in (given.allow if one == "{allowed}" else (one,))]
        if given.budget:
            more += program.budget
        # Options go before the first word that is not one, and a subcommand before options.
        head = 1 if template and not template[0].startswith("-") and "{" not in template[0] else 0
        words = [*template[:head], *more, *template[head:]]
        values = {"{task}": given.task, "{session}": session.id, "{model}": self._model or ""}
        values["{budget}"] = given.budget
        return [*program.command, *(_filled(word, values) for word in words)]

    # --- the end ----------------------------------------------------------------------------------------------

    def _told(self, heard: _Heard, run: "_Run") -> str:
        row = verdict_of(heard.ending)
        events = heard.events
        text = events.text.strip()
        trailer = run.trailer()
        why = (events.words if heard.ending.flagged or not text else "") or text or heard.words
        match row.verdict:
            case Verdict.SUCCESS:
                return f"{text}\n\n{trailer}"
            case Verdict.PLACEHOLDER:
                return f"{PLACEHOLDER}\n\n{trailer}"
            case Verdict.ERROR if heard.failed_with(self.program.no_login, answer=True):
                advice = f"{self.program.name} is not logged in on {socket.gethostname()}: {self.program.login}."
                raise ToolFailed(f"{advice}\n{_cut(why)}")
            case Verdict.ERROR:
                raise ToolFailed(f"{self.program.name} failed: {_cut(why) or heard.end}\n\n{trailer}")
            case Verdict.CANCELLED:
                so_far = f"What it said so far:\n{_cut(text)}\n\n" if text else ""
                raise ToolFailed(f"Timed out after {self.deadline_s:g} s; it was ended. {so_far}{trailer}")
            case Verdict.LOST:
                said = f" It said: {_cut(why)}" if why else ""
                raise OutcomeUnknown(f"{self.program.name} gave no result: {row.why} ({heard.end}).{said} {trailer}")

    # --- the program ------------------------------------------------------------------------------------------

    async def start(self, argv: list[str], out: int, err: int, context: ToolContext) -> processes.Child:
        confined = Confined() if self._confinement is None else await self._confinement.begin(context)
        spec = ProcessSpec(
            [*confined.prefix, *argv], self.environment, self._root, stdout=out, stderr=err, view=confined.view
        )
        try:
            return await processes.start_covered(spec, children=context.children)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> ToolFailed:
        if not Path(self._root).is_dir():
            return ToolFailed(f"Nothing was run: the folder {self._root} is not there any more.")
        return ToolFailed(f"Nothing was run: {error.strerror or error}.")


class _Run:
    """Of the program, for one call; started once, or a second time where the first start said that it did nothing."""

    def __init__(
        self, runner: _Runner, sessions: Sessions, session: Session, context: ToolContext, until: float
    ) -> None:
        self._runner = runner
        self._sessions = sessions
        self.session = session
        self.context = context
        self._until = until  # by the loop's clock
        self._before = session.figures  # at the start of the process
        self._counted = (0, 0.0)  # since then
        self._denied: tuple[str, ...] = ()
        self._tokens = 0
        self._cost = 0.0

    async def keep(self) -> None:
        await self._sessions.keep(self.session)

    async def carry_out(self, argv: list[str]) -> _Heard:
        self._before, self._counted = self.session.figures, (0, 0.0)
        events = Events(self._runner.program)
        heard, printed = Kept(HEARD_BYTES_MAX), Kept(STDERR_BYTES_MAX)
        news = asyncio.Event()

        def hear(data: bytes) -> None:
            events.hear(data)
            if told := events.take_news():
                self.context.progress(told)
            news.set()

        out, theirs = os.pipe()
        err, theirs_too = os.pipe()
        try:
            child = await self._runner.start(argv, theirs, theirs_too, self.context)
        except BaseException:
            os.close(out)
            os.close(err)
            raise
        finally:
            os.close(theirs)
            os.close(theirs_too)
        readers = PipeReader(out, heard, hear), PipeReader(err, printed)
        cut = True
        try:
            cut = not await self._listen(child, events, news, readers[0])
        finally:
            await child.end()
            for reader in readers:
                reader.close()
            events.end()
            self._count(events)
        await self._remember(events)
        words = printed.text.strip() or (heard.text.strip() if not events.began else "")
        ending = Ending(
            began=events.began,
            last=events.last,
            flagged=events.flagged,
            said=bool(events.text.strip()),
            figures=events.figures.known,
            exit=_exit_of(child.returncode, cut=cut),
        )
        self._denied = events.denied
        return _Heard(events, ending, words, "it was ended" if cut else end_words(child.returncode))

    async def _listen(self, child: processes.Child, events: Events, news: asyncio.Event, reader: PipeReader) -> bool:
        """Whether the process ended by itself: before the deadline, or soon after its result."""
        loop = asyncio.get_running_loop()
        until = self._until
        exits = asyncio.ensure_future(child.exited())
        try:
            while not exits.done():
                hears = asyncio.ensure_future(news.wait())
                left_s = max(0.0, until - loop.time())
                await asyncio.wait((exits, hears), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                hears.cancel()
                news.clear()
                if (events.session and events.session != self.session.id) or (
                    events.acted and not self.session.acted
                ):
                    await self._remember(events)
                if events.last:
                    self._count(events)
                    await self._remember(events)
                    until = min(until, loop.time() + self._runner.grace_s)
                    await asyncio.wait((exits,), timeout=max(0.0, until - loop.time()))
                    break
                if loop.time() >= until:
                    break
            if exits.done():
                await reader.ended(processes.LINGER_S)
            return exits.done()
        finally:
            exits.cancel()

    async def _remember(self, events: Events) -> None:
        """The session as it is known now, at once: nothing is read on before it is durable."""
        known = self.session
        figures = known.figures.after(events.figures) if events.figures.known else known.figures
        after = replace(
            known,
            id=events.session or known.id,
            acted=known.acted or events.acted,
            tokens=figures.tokens,
            cost=figures.cost,
        )
        if after != known:
            self.session = after
            await self._sessions.keep(after)

    def _count(self, events: Events) -> None:
        """Before the figures are kept; also of a run that is being cancelled. Some tell a result, and then another:
        what was counted is not counted again.
        """
        tokens, cost = spent(self._before, events.figures, self._runner.program.counted)
        tokens, cost = max(0, tokens - self._counted[0]), max(0.0, cost - self._counted[1])
        if tokens or cost:
            self._counted = (self._counted[0] + tokens, self._counted[1] + cost)
            self._tokens, self._cost = self._tokens + tokens, self._cost + cost
            self.context.spent(tokens=tokens, cost=cost)

    def trailer(self) -> str:
        """For the model, at the end of what it is told."""
        program, told = self._runner.program, [f"session {self.session.name}"]
        if not program.resume:
            told = [program.name]
        if words := spent_text(self._tokens, self._cost):
            told.append(words)
        denied = ""
        if self._denied:
            more = " To let it, name them in `allow`, with this session." if program.allow else ""
            denied = f"\n[It was not allowed: {'; '.join(self._denied)}.{more}]"
        return f"[{', '.join(told)}]{denied}"


def _exit_of(code: int | None, *, cut: bool) -> Exit:
    if cut:
        return "cut"
    if code == 0:
        return "clean"
    # As shells, and these programs, tell of a signal: 130 and 143. What else is above 128 is a code of their own.
    return "signal" if code is None or code < 0 or code in (130, 137, 143) else "code"


def _filled(word: str, values: Mapping[str, str]) -> str:
    """In one go: what a task says in the place of a gap stays as it is."""
    return _GAP.sub(lambda gap: values.get(gap[0], gap[0]), word)


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= STDERR_SHOWN else f"{text[: STDERR_SHOWN // 2]}\n[…]\n{text[-STDERR_SHOWN // 2 :]}"


_running: set[tuple[int, str, str]] = set()  # sessions at work in this process; each is a child, which are bounded


def _figures() -> dict[str, int | str | None]:
    return {"running": len(_running), "task_chars_max": TASK_CHARS_MAX}


show("coding_agents", _figures)
