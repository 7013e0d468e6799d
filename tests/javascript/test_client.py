"""The JavaScript client: a package with types that are true, and what its verbs do, against a real server in Node."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import __version__
from holdfast.server.client_files import FOLDER
from tests.javascript.types import MODULES, made
from tests.support.client_tools import NODE, NPM, TYPESCRIPT, needs_packages, run
from tests.support.servers import ServerProcess, server

ROOT = Path(__file__).resolve().parents[2]
HOWTO = ROOT / "docs" / "how-to" / "javascript.md"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("client")
    with server(f"sqlite:///{home}/chats.db", home) as process:
        yield process


def in_node(live: ServerProcess, script: str) -> Any:
    """What the script returns. It has `holdfast`, the module, and `client`, made for the server."""
    program = f"""
        import * as holdfast from {json.dumps(str(FOLDER / "holdfast.js"))};
        const client = new holdfast.Holdfast({json.dumps({"url": live.url, "token": live.token})});
        const all = async (updates) => {{
            const found = []; for await (const one of updates) found.push(one); return found }};
        const failing = (promise) => promise.then(() => null, (error) => error);
        process.stdout.write(JSON.stringify(await (async () => {{ {script} }})() ?? null));
    """
    return json.loads(run(NODE, "--input-type=module", "-e", program))


@needs_packages
def test_the_types_of_the_client_are_those_of_its_modules_and_of_the_description() -> None:
    there = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.d.ts")}
    assert there == made(), "run: python -m tests.javascript.types"


@needs_packages
def test_a_program_in_typescript_uses_the_package_that_npm_packs(tmp_path: Path) -> None:
    packed = json.loads(
        run(NODE, NPM, "pack", FOLDER, "--json", "--ignore-scripts", cwd=tmp_path).split("npm warn")[0]
    )
    names = {file["path"] for file in packed[0]["files"]}
    assert {"holdfast.js", "holdfast.d.ts", "api.d.ts", "fold.js", "package.json"} <= names
    assert packed[0]["version"] == __version__
    package = tmp_path / "node_modules" / "holdfast-client"
    package.mkdir(parents=True)
    run("tar", "xzf", tmp_path / packed[0]["filename"], "-C", package, "--strip-components=1")
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (tmp_path / "used.ts").write_text(TYPED, encoding="utf-8")
    run(NODE, TYPESCRIPT, "--noEmit", "--strict", "--target", "es2022", *MODULES, "used.ts", cwd=tmp_path)
    said = run(
        NODE, "--input-type=module", "-e", "import {Holdfast} from 'holdfast-client'; new Holdfast()", cwd=tmp_path
    )
    assert said == ""


TYPED = """
import { Holdfast, Refused, takeBack } from "holdfast-client";
import type { Update } from "holdfast-client";
export async function shown(): Promise<string> {
    const chat = await new Holdfast({ token: "x" }).create("support", "Hello", { title: "One", key: "k" });
    let text = "";
    for await (const update of chat.stream({ settled: true, signal: AbortSignal.timeout(1) })) {
        if (update.kind === "TextAdded") text += update.text;
        if (update.kind === "Restarted") text = takeBack(text, update.dropped);
        if (update.kind === "Paused") for (const call of update.open) await chat.approve(call);
        if (update.kind === "Happened" && update.entry.kind === "turn.ended") return String(update.entry.turn);
    }
    const kinds: Update["kind"][] = ["Finished"];
    const problem = await chat.stop().then(() => null, (error: Refused) => error.code);
    return (await chat.turn()).text ?? problem ?? kinds[0]!;
}
"""


def test_a_file_is_sent_whole_told_by_its_name_and_read_again(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        const bytes = Uint8Array.from({ length: 3000 }, (_, n) => n % 251);
        const uri = "data:image/png;base64," + Buffer.from(bytes).toString("base64");
        const chat = await client.create("talker", [{ kind: "file", media_type: "image/png", uri }]);
        await chat.turn();
        const [part] = (await chat.messages()).messages[0].parts;
        const read = async (file) => Buffer.from(await (await chat.file(file)).arrayBuffer());
        const same = async (file) => Buffer.compare(await read(file), bytes) === 0;
        return [part.uri.length, await same(part), await same({ uri })];
        """,
    )
    assert told == [len("holdfast:files/") + 64, True, True]


def test_a_turn_is_streamed_and_read(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        const chat = await client.create("talker", "hello 🦑", { title: "One" });
        const updates = await all(chat.stream());
        await chat.send("again");
        const rest = await all(chat.stream({ after: updates.at(-1).cursor }));
        const whole = await all(chat.stream({ after: "" }));
        const kinds = (list) => list.map((one) => one.kind).filter((kind) => kind !== "TextAdded");
        return { text: updates.at(-1).turn.text, turn: (await chat.turn()).text, rest: rest.at(-1).turn.text,
                 same: JSON.stringify(kinds(whole).slice(1)) === JSON.stringify([...kinds(updates), ...kinds(rest)]),
                 title: (await chat.read()).title, messages: (await chat.messages()).messages.length };
        """,
    )
    assert told == {
        "text": "You said: hello 🦑",
        "turn": "You said: again",
        "rest": "You said: again",
        "same": True,
        "title": "One",
        "messages": 4,
    }


@pytest.mark.parametrize(
    ("verb", "answer"), [("approve(calls[0])", "Done."), ("deny(calls[0], 'no')", "Done.")], ids=["approve", "deny"]
)
def test_a_stream_ends_where_a_person_is_asked_and_goes_on_from_there(
    live: ServerProcess, verb: str, answer: str
) -> None:
    told = in_node(
        live,
        f"""
        const chat = await client.create("payer", "pay");
        const before = await all(chat.stream());
        const calls = await chat.openCalls();
        await chat.{verb};
        const after = await all(chat.stream({{ after: before.at(-1).cursor }}));
        const again = await failing(chat.{verb});
        return [before.at(-1).kind, before.at(-1).open[0].kind, after.at(-1).turn.answer, again.name, again.code];
        """,
    )
    assert told == ["Paused", "approval", answer, "Refused", "refused"]


def test_a_client_answers_the_call_of_its_own_tool(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        const chat = await client.create("asker", "look");
        const [call] = (await all(chat.stream())).at(-1).open;
        await chat.answer(call, "clouds");
        return [call.kind, call.arguments, (await chat.turn()).text];
        """,
    )
    assert told == ["client", '{"at":"sky"}', "Blue."]


def test_a_stop_ends_the_turn_and_a_signal_ends_only_the_reading(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        const chat = await client.create("thinker", "think");
        const controller = new AbortController();
        let left;
        try {
            for await (const update of chat.stream({ signal: controller.signal })) {
                if (update.kind === "TextAdded") controller.abort(new Error("enough"));
            }
        } catch (error) { left = error.message }
        const late = await failing(chat.turn({ timeout_ms: 10 }));
        await chat.stop();
        const turn = await chat.turn();
        return [left, late.name, late.turn.state, turn.state, turn.partial_text];
        """,
    )
    assert told == ["enough", "TurnTimeout", "running", "stopped", "Let me think… "]


def test_what_is_queued_edited_renamed_and_forked_is_as_it_was_asked_for(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        const chat = await client.create("thinker", "think");
        const { message_id: first } = await chat.send("one");
        const { message_id: second } = await chat.send("two");
        const queued = (await chat.queue()).queue.map((one) => one.id === first || one.id === second);
        const dropped = (await chat.withdraw(first)).dropped.map((message) => message.parts[0].text);
        await chat.promote(second);
        const begins = async (text) => {  // a stop before that ends what ran until then, and nothing else
            for await (const update of chat.stream({ after: "", follow: true })) {
                if (update.entry?.message?.parts[0].text === text) break;
            }
        };
        await begins("two");
        await chat.stop();
        await chat.turn();
        const { message_id } = await chat.send("three");
        await chat.edit(message_id, "four");
        await begins("four");
        await chat.stop();
        await chat.turn();
        await chat.rename("Kelp");
        const archived = (await chat.archive()).archived;
        await chat.archive(false);
        const fork = await chat.fork({ upto: 0 });
        const why = (await chat.why()).state;
        const refused = await failing(chat.retry());
        const last = (await chat.messages()).messages.filter((one) => one.role === "user").at(-1).parts[0].text;
        return { queued, dropped, last, archived, why, refused: refused.name,
                 titles: (await client.chats({ search: "Kelp", limit: 1 })).chats.length,
                 forked: (await fork.messages()).messages.length, gone: (await fork.delete())[0] === fork.id };
        """,
    )
    assert told == {
        "queued": [True, True], "dropped": ["one"], "last": "four", "archived": True, "why": "idle",
        "refused": "Refused", "titles": 1, "forked": 1, "gone": True,
    }  # fmt: skip


def test_the_client_tells_who_it_is_what_waits_and_how_the_server_is(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        const chat = await client.create("spender", "pay");
        await all(chat.stream());
        const call = (await client.openCalls({ kind: "approval" })).calls.find((one) => one.chat_id === chat.id);
        const whole = await chat.openCall(call);
        await chat.approve(call);
        const left = (await client.openCalls()).calls.filter((one) => one.chat_id === chat.id).length;
        await chat.turn();
        const workers = await client.workers();
        return [(await client.me()).operates, call.whole, whole.arguments.includes("PAYLOAD"), left, workers.length,
                (await client.agents()).some((agent) => agent.name === "spender"), (await client.health()).status,
                "diagnostics" in await client.diagnostics(), (await client.schedules.list()).schedules,
                (await client.usage({ by: ["owner", "agent"] })).every((line) => line.day === "")];
        """,
    )
    assert told == [True, False, True, 0, 1, True, "ok", True, [], True]


def test_what_a_model_says_comes_as_html_while_it_is_said_and_afterwards(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        const chat = await client.create("thinker", "think");
        const found = [];
        for await (const update of chat.stream({ render: "html", follow: true })) {
            found.push(update);
            if (update.kind === "Rendered" && update.block === 0) await chat.stop();
            if (update.kind === "Rendered" && update.message_id) break;
        }
        const html = found.filter((one) => one.kind === "Rendered");
        const [user, said] = (await chat.messages({ render: "html" })).messages;
        const [last, told] = [html.at(-1), found.filter((one) => one.kind !== "Rendered").at(-1)];
        return [html.some((one) => one.block === 0), last.html === said.html, last.message_id === said.id, said.html,
                "html" in user, last.cursor === told.cursor];
        """,
    )
    assert told == [True, True, True, "<p>Let me think…</p>\n", False, True]


def test_the_journal_is_read_as_it_is_and_goes_on_behind_a_cursor(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        const chat = await client.create("talker", "hello");
        await chat.turn();
        const lines = await all(chat.journal());
        const rest = await all(chat.journal({ after: lines[1].cursor }));
        return [lines.map((line) => line.entry.seq), lines.at(-1).entry.kind, lines.length - rest.length];
        """,
    )
    seqs, last, missing = told
    assert seqs == list(range(1, len(seqs) + 1))
    assert (last, missing) == ("turn.ended", 2)


def test_a_stream_says_when_it_is_live_and_when_it_comes_back(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        const answers = [() => new Response(": \\n\\n"), () => { throw new TypeError("the network is away") }];
        const breaking = new holdfast.Holdfast({
            url: client._connection._url, token: client._connection._token,
            fetch: (...asked) => (String(asked[0]).includes("/events") && answers.shift()?.()) || fetch(...asked),
        });
        const states = [];
        const controller = new AbortController();
        const onconnection = (state) => { states.push(state); if (state === "live") controller.abort() };
        const chat = await breaking.create("thinker", "hello");
        await failing(all(chat.stream({ follow: true, onconnection, signal: controller.signal })));
        await chat.stop();
        return states;
        """,
    )
    assert told == ["catching up", "reconnecting", "catching up", "live"]


def test_a_stream_that_rested_for_longer_than_its_patience_comes_back(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        const connections = [];
        const breaking = new holdfast.Holdfast({
            url: client._connection._url, token: client._connection._token, patience_ms: 60_000,
            fetch: (address, options) => {
                if (!String(address).includes("/events")) return fetch(address, options);
                connections.push(new AbortController());
                const signal = AbortSignal.any([options.signal, connections.at(-1).signal]);
                return fetch(address, { ...options, signal });
            },
        });
        const chat = await breaking.create("talker", "hello");
        await chat.turn();
        const states = [];
        const controller = new AbortController();
        const now = Date.now;
        const onconnection = (state) => {
            states.push(state);
            if (state !== "live") return;
            if (connections.length > 1) return controller.abort();
            Date.now = () => now() + 3_600_000; // an hour in which nothing is said
            connections[0].abort();
        };
        await failing(all(chat.stream({ follow: true, onconnection, signal: controller.signal })));
        return states;
        """,
    )
    assert told == ["catching up", "live", "reconnecting", "catching up", "live"]


def test_behind_a_gate_too_it_pauses_longer_each_time_and_gives_up_with_its_patience(live: ServerProcess) -> None:
    """A pass that was given back may give its own signal: that is not the gate's word to let the stream go."""
    told = in_node(
        live,
        """
        let asked = 0;
        const away = new holdfast.Holdfast({
            url: client._connection._url, token: client._connection._token, patience_ms: 1_000,
            fetch: (...words) => {
                if (!String(words[0]).includes("/events")) return fetch(...words);
                asked += 1;
                throw new TypeError("the network is away");
            },
        });
        const gate = { enter: async () => {
            const pass = new AbortController();
            return { signal: pass.signal, leave: () => pass.abort() };
        } };
        const chat = await away.create("talker", "hello");
        const states = [];
        const onconnection = (state) => states.push(state);
        const error = await failing(all(chat.stream({ follow: true, gate, onconnection })));
        return [error.name, states, asked < 20];
        """,
    )
    assert told == ["ConnectionLost", ["reconnecting"], True]


def test_a_turn_that_a_budget_ended_goes_on_and_only_that(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        const chat = await client.create("bounded", "two steps, please");
        const cut = await chat.turn();
        await chat.goOn();
        const whole = await chat.turn();
        const refused = await failing(chat.goOn());
        const [total] = await client.usage({ by: ["owner"] });
        return [cut.state, cut.cause, whole.state, whole.text, refused.code, total.tokens > 0];
        """,
    )
    assert told == ["stopped", "budget", "done", "Two.", "refused", True]


def test_errors_have_types_and_the_servers_codes(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        const chat = await client.create("echo", "hello");
        const stranger = new holdfast.Holdfast({ url: client._connection._url, token: "wrong" });
        const nowhere = new holdfast.Holdfast({ url: "http://127.0.0.1:9", patience_ms: 300 });
        const found = [
            await failing(client.chat("nothing").read()),
            await failing(all(client.chat("nothing").stream())),
            await failing(client.create("no such agent", "hello")),
            await failing(all(chat.stream({ after: "nonsense" }))),
            await failing(all(chat.stream({ after: "nonsense~nonsense" }))),
            await failing(stranger.create("echo", "hello")),
            await failing(nowhere.create("echo", "hello")),
            await failing(all(nowhere.chat("one").stream())),
        ];
        return found.map((error) => [error.name, error.code, error.status, error instanceof holdfast.HoldfastError]);
        """,
    )
    assert told == [
        ["NotFound", "not_found", 404, True],
        ["NotFound", "not_found", 404, True],
        ["InvalidInput", "unknown_agent", 400, True],
        ["WrongCursor", "wrong_cursor", 400, True],
        ["WrongCursor", "wrong_cursor", 0, True],
        ["Unauthorized", "unauthorized", 401, True],
        ["ConnectionLost", "connection_lost", 0, True],
        ["ConnectionLost", "connection_lost", 0, True],
    ]


def test_a_message_whose_answer_was_lost_is_sent_again_and_taken_once(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        let lost = 0;
        const losing = new holdfast.Holdfast({
            url: client._connection._url, token: client._connection._token,
            fetch: async (...asked) => {
                const answer = await fetch(...asked);
                if (asked[1].method === "POST" && lost++ % 2 === 0) throw new TypeError("the connection broke");
                return answer;
            },
        });
        const chat = await losing.create("echo", "one");
        await chat.turn();
        await chat.send("two");
        await chat.turn();
        return [lost, (await chat.messages()).messages.length];
        """,
    )
    assert told == [4, 4]


def test_the_modules_are_open_to_anyone_and_nothing_else_in_their_folder_is(live: ServerProcess) -> None:
    told = in_node(
        live,
        """
        const url = client._connection._url;
        const paths = ["/client/holdfast.js", "/client/package.json", "/client/..%2fviews.py", "/client/"];
        const found = [];
        for (const path of paths) found.push((await fetch(url + path)).status);
        return found;
        """,
    )
    assert told == [200, 401, 401, 401]


def test_every_module_is_small_and_imports_only_its_neighbours() -> None:
    for module in FOLDER.glob("*.js"):
        source = module.read_text(encoding="utf-8")
        assert set(re.findall(r'from "([^"]+)"', source)) <= {f"./{one.name}" for one in FOLDER.glob("*.js")}
        assert len(source.splitlines()) < 420
