"""Approvals by link: sent to who asked for them, looked at without an answer, and used once, for what was shown."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
from msgspec.structs import replace

from holdfast import App
from holdfast.core import commands as cmd
from holdfast.core.approval_links import ApprovalLink, read_link, token_of
from holdfast.core.records import CallState, External
from holdfast.server import shares
from holdfast.server.http import http_app
from holdfast.store.records import StoreOptions
from holdfast.store.tokens import NewToken
from holdfast.store.webhooks import NewWebhook
from holdfast.system.clock import FakeClock
from holdfast.worker.deliverer import Deliverer
from tests.support.chats import Hand, call, new_chat, unique
from tests.support.kept import asking
from tests.support.receiver import REACH, Receiver

ADMIN = "admin-token-of-this-test"
PUBLIC = "https://agents.example"
DAY_MS = 86_400_000
FORM = {"content-type": "application/x-www-form-urlencoded"}


class House(NamedTuple):
    app: App
    client: httpx.AsyncClient
    receiver: Receiver

    async def endpoint(self, *, links: bool = True, **given: Any) -> str:
        new = NewWebhook(name="mail", url=self.receiver.url, links=links, **given)
        return (await self.app.store.webhooks.create(new))[0].id

    async def sent(self, chat_id: str | None = None, **settings: Any) -> list[dict[str, Any]]:
        """The calls of the newest event, or of the newest of a chat, as they arrived."""

        def trouble(action: str, error: Exception) -> None:
            raise AssertionError(action) from error

        config = replace(self.app.config, **settings)
        await Deliverer(self.app.store, config, trouble).run_once()
        waiting = [one.event["data"] for one in self.receiver.got if one.event["type"] == "turn.waiting"]
        return next(list(data["calls"]) for data in reversed(waiting) if chat_id in (None, data["chat_id"]))

    async def linked(self) -> tuple[str, str, str]:
        """A chat that waits, its call, and the path of the link that was sent."""
        chat_id, call_id = await asking(self.app.store)
        (told,) = await self.sent(chat_id)
        assert told["link"].startswith(f"{PUBLIC}/approvals/hfa_")
        return chat_id, call_id, told["link"].removeprefix(PUBLIC)

    async def state(self, chat_id: str, call_id: str) -> CallState:
        found = (await self.app.store.read_chat(chat_id)).call(call_id)
        assert found is not None
        return found.state

    async def press(self, path: str, answer: str) -> httpx.Response:
        return await self.client.post(path, content=f"answer={answer}", headers=FORM)


@pytest.fixture
async def house(store_url: str, tmp_path: Path, clock: FakeClock) -> AsyncIterator[House]:
    app = App(
        store_url, home=str(tmp_path), options=StoreOptions(clock=clock), webhook_reach=REACH, public_url=f"{PUBLIC}/"
    )
    async with app, Receiver() as receiver:
        transport = httpx.ASGITransport(app=http_app(app, token=ADMIN))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30.0) as client:
            yield House(app, client, receiver)


async def test_a_link_shows_what_is_asked_and_answers_when_a_person_presses_the_button(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast.audit")
    await house.endpoint()
    chat_id, call_id, path = await house.linked()
    for _ in range(3):  # as programs do that scan mails
        page = await house.client.get(path)
        assert page.status_code == 200
        assert await house.state(chat_id, call_id) is CallState.ASKING
    assert all(words in page.text for words in ("Pay?", "pay", chat_id, "Approve", "Deny"))
    assert "script" not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'; form-action 'self'")
    assert page.headers["cache-control"] == "no-store"
    done = await house.press(path, "approve")
    assert (done.status_code, "Approved: pay" in done.text) == (200, True)
    assert await house.state(chat_id, call_id) is CallState.APPROVED
    answered = (await house.app.store.read_chat(chat_id)).call(call_id)
    assert answered is not None
    assert answered.answered_by == "link of webhook mail"
    (line,) = [record.__dict__ for record in caplog.records if record.__dict__.get("action") == "audit.approved"]
    assert (line["chat"], line["call"], line["principal"]) == (chat_id, call_id, "link of webhook mail")
    assert path.rpartition("/")[2] not in caplog.text
    for again in (await house.press(path, "approve"), await house.press(path, "deny"), await house.client.get(path)):
        assert (again.status_code, "answered already" in again.text) == (409, True)


async def test_a_link_denies_too(house: House) -> None:
    await house.endpoint()
    chat_id, call_id, path = await house.linked()
    assert "Denied: pay" in (await house.press(path, "deny")).text
    assert await house.state(chat_id, call_id) is CallState.DENIED
    assert (await house.press(path, "approve")).status_code == 409


async def test_all_of_the_arguments_are_shown_as_text(house: House) -> None:
    await house.endpoint()
    hand, chat_id = Hand(house.app.store), unique("chat")
    await house.app.store.create_chat(new_chat(id=chat_id))
    await hand.take(chat_id)
    arguments = '{"to":"<script>alert(1)</script>","note":"' + "x" * 5_000 + 'the-very-end","hidden":"\u202egpj.exe"}'
    await hand.respond(call("k1", "run", arguments), start=False)
    await hand.commit(cmd.AskApproval(by=hand.by, call_id="k1", question="<b>May I?</b>"), cmd.Park(by=hand.by))
    (told,) = await house.sent()
    assert "the-very-end" not in str(told), "the event itself holds none of it"
    page = (await house.client.get(told["link"].removeprefix(PUBLIC))).text
    assert "&lt;script&gt;alert(1)" in page
    assert "&lt;b&gt;May I?" in page
    assert "x" * 5_000 + "the-very-end" in page
    assert "\u202e" not in page
    assert "\\u202e" in page


@pytest.mark.parametrize(
    ("links", "settings"), [(False, {}), (True, {"public_url": ""})], ids=["not asked for", "no public URL"]
)
async def test_no_link_is_sent_unless_both_the_endpoint_and_the_settings_say_so(
    house: House, links: bool, settings: dict[str, str]
) -> None:
    await house.endpoint(links=links)
    await asking(house.app.store)
    (told,) = await house.sent(**settings)
    assert "link" not in told


async def test_a_link_ends_with_its_time_and_with_the_calls(house: House, clock: FakeClock) -> None:
    await house.endpoint()
    chat_id, call_id, path = await house.linked()
    clock.advance(DAY_MS - 1)
    assert (await house.client.get(path)).status_code == 200
    clock.advance(1)
    for answer in (await house.client.get(path), await house.press(path, "approve")):
        assert (answer.status_code, "time of this link is over" in answer.text) == (410, True)
    assert await house.state(chat_id, call_id) is CallState.ASKING


async def test_a_forged_link_and_one_that_was_changed_do_nothing(house: House) -> None:
    await house.endpoint()
    chat_id, call_id, path = await house.linked()
    other_chat, other_call, _ = await house.linked()
    token = path.rpartition("/")[2]
    known = read_link(token)
    assert known is not None
    other = (await house.app.store.read_chat(other_chat)).call(other_call)
    assert other is not None
    life = (await house.app.store.read_chat(other_chat)).chat.life
    elsewhere = replace(known, chat_id=other_chat, life=life, call_id=other_call, digest=other.digest)
    forged = (
        token_of(elsewhere, bytes(32)),
        token_of(replace(known, key_id="key_0"), bytes(32)),
        "hfa_",
        "x",
        token[:-4],
    )
    for text in forged:
        for answer in (
            await house.client.get(f"/approvals/{text}"),
            await house.press(f"/approvals/{text}", "approve"),
        ):
            assert (answer.status_code, "no link of this server" in answer.text) == (404, True), text
    assert await house.state(chat_id, call_id) is CallState.ASKING
    assert await house.state(other_chat, other_call) is CallState.ASKING


async def test_what_was_answered_or_stopped_elsewhere_is_over_for_the_link(house: House) -> None:
    await house.endpoint()
    chat_id, call_id, path = await house.linked()
    await house.app.store.submit(chat_id, cmd.Deny(call_id=call_id, by="ann"))
    assert (await house.press(path, "approve")).status_code == 409
    assert await house.state(chat_id, call_id) is CallState.DENIED
    chat_id, call_id, path = await house.linked()
    await house.app.store.submit(chat_id, cmd.Stop())
    assert (await house.press(path, "approve")).status_code == 409
    chat_id, call_id, path = await house.linked()
    await house.app.store.submit(chat_id, cmd.Stop())
    await house.app.store.delete_chat(chat_id)
    assert (await house.press(path, "approve")).status_code == 409


async def test_a_link_of_a_chats_earlier_life_answers_nothing_in_the_next(house: House) -> None:
    await house.endpoint()
    chat_id, call_id, path = await house.linked()
    known = read_link(path.rpartition("/")[2])
    key = await house.app.store.link_keys.newest()
    assert known is not None
    before = token_of(replace(known, life=known.life + 1), key.key)
    changed = token_of(replace(known, digest="0" * 20), key.key)
    for token in (before, changed):
        assert (await house.press(f"/approvals/{token}", "approve")).status_code == 409
        assert (await house.press(f"/approvals/{token}", "deny")).status_code == 409
    assert await house.state(chat_id, call_id) is CallState.ASKING


async def test_of_many_who_press_at_once_one_is_told_that_it_was_done(house: House) -> None:
    await house.endpoint()
    chat_id, call_id, path = await house.linked()
    answers = await asyncio.gather(*[house.press(path, "approve" if n % 2 else "deny") for n in range(8)])
    state = await house.state(chat_id, call_id)
    done = "Approved" if state is CallState.APPROVED else "Denied"
    told = [answer.text for answer in answers if answer.status_code == 200]
    assert told
    assert all(done in text for text in told), "nobody is told the other"
    assert {answer.status_code for answer in answers} <= {200, 409}


async def test_links_are_switched_off_with_their_endpoint_and_all_at_once(house: House) -> None:
    hook_id = await house.endpoint()
    _, _, path = await house.linked()
    hook = await house.app.webhooks.read(hook_id)
    await house.app.store.webhooks.change(replace(hook, links=False))
    assert (await house.press(path, "approve")).status_code == 410
    await house.app.store.webhooks.change(replace(hook, links=True))
    assert (await house.client.get(path)).status_code == 200
    await house.app.webhooks.revoke_links()
    assert (await house.press(path, "approve")).status_code == 404
    _, _, path = await house.linked()
    await house.app.webhooks.remove(hook_id)
    assert (await house.press(path, "approve")).status_code == 410


async def test_a_form_without_an_answer_and_a_page_elsewhere_do_nothing(house: House) -> None:
    await house.endpoint()
    chat_id, call_id, path = await house.linked()
    for body in ("", "answer=", "answer=approve&answer=deny", "answer=always", "approve"):
        answer = await house.client.post(path, content=body, headers=FORM)
        assert (answer.status_code, "Nothing was done" in answer.text) == (400, True), body
    elsewhere = {**FORM, "origin": "https://mallory.example"}
    assert (await house.client.post(path, content="answer=approve", headers=elsewhere)).status_code == 403
    assert (await house.client.get(path, headers={"host": "mallory.example"})).status_code == 421
    assert await house.state(chat_id, call_id) is CallState.ASKING


async def test_the_same_event_has_the_same_links_however_often_it_is_sent(house: House) -> None:
    hook_id = await house.endpoint()
    _, _, path = await house.linked()
    (delivery,) = await house.app.store.deliveries.page(hook_id)
    await house.app.store.deliveries.replay(hook_id, delivery.notice_id)
    (told,) = await house.sent()
    assert told["link"].endswith(path)
    assert len({received.body for received in house.receiver.got}) == 1


async def waiting(house: House, *commands: Any, arguments: str = '{"to":"ann"}') -> tuple[str, str]:
    """A chat whose one call `k1` waits, and the path of its link. `commands` are made with the hand's name."""
    hand, chat_id = Hand(house.app.store), unique("chat")
    await house.app.store.create_chat(new_chat(id=chat_id))
    await hand.take(chat_id)
    await hand.respond(call("k1", "ask_user", arguments), start=False)
    await hand.commit(*(command(hand.by) for command in commands), cmd.Park(by=hand.by))
    hand.close()
    (told,) = await house.sent(chat_id)
    return chat_id, told["link"].removeprefix(PUBLIC)


def asks(by: Any) -> cmd.Delegate:
    return cmd.Delegate(by=by, call_id="k1", external=External.QUESTION, question="<i>Which one?</i>")


async def test_what_is_not_shown_as_a_whole_is_not_approved_whatever_is_posted(house: House) -> None:
    await house.endpoint()

    def asks_with_a_cut(by: Any) -> cmd.AskApproval:
        told = '{"to":"ann… (90,000 characters in all)'
        return cmd.AskApproval(by=by, call_id="k1", question="Pay?", arguments='{"to":"mallory"}', told=told)

    chat_id, path = await waiting(house, asks_with_a_cut)
    page = await house.client.get(path)
    assert ("Approve</button>" in page.text, "more of it than this page can show" in page.text) == (False, True)
    posted = await house.press(path, "approve")
    assert (posted.status_code, "Nothing was done: approve it in the chat itself" in posted.text) == (403, True)
    assert await house.state(chat_id, "k1") is CallState.ASKING
    assert (await house.press(path, "deny")).status_code == 200, "to deny it nobody has to see all of it"
    assert await house.state(chat_id, "k1") is CallState.DENIED


async def test_a_question_is_answered_in_words_once(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "holdfast.audit")
    await house.endpoint()
    chat_id, path = await waiting(house, asks)
    page = (await house.client.get(path)).text
    assert all(words in page for words in ("An agent asks you something", "&lt;i&gt;Which one?", "<textarea"))
    assert 'value="approve"' not in page
    wrong = ("answer=approve", "answer=deny", "answer=reply", "answer=reply&text=+", "answer=reply&text=a&text=b")
    for body in (*wrong, "answer=reply&text=" + "x" * 20_001, "answer=reply&text=%00"):
        refused = await house.client.post(path, content=body, headers=FORM)
        assert (refused.status_code, "Nothing was done" in refused.text) == (400, True), body[:40]
    assert await house.state(chat_id, "k1") is CallState.EXTERNAL
    first = await house.client.post(path, content="answer=reply&text=the+r%C3%A9d%0D%0Aone%0D%0A", headers=FORM)
    assert (first.status_code, "Answered: ask_user" in first.text) == (200, True)
    assert await house.state(chat_id, "k1") is CallState.DONE
    history = await house.app.store.read_history(chat_id)
    assert "the réd\\none" in history[-1].body.decode()
    (line,) = [record.__dict__ for record in caplog.records if record.__dict__.get("action") == "audit.answered"]
    assert (line["chat"], line["principal"]) == (chat_id, "link of webhook mail")
    other = await house.client.post(path, content="answer=reply&text=the+blue+one", headers=FORM)
    assert other.status_code == 409


async def test_a_link_answers_what_it_was_made_for_and_not_what_the_call_is_asked_next(house: House) -> None:
    await house.endpoint()
    chat_id, path = await waiting(house, asks)
    known, key = read_link(path.rpartition("/")[2]), await house.app.store.link_keys.newest()
    assert known is not None
    assert known.kind == "question"
    approves = f"/approvals/{token_of(replace(known, kind='approval'), key.key)}"
    assert (await house.client.get(approves)).status_code == 409
    for body in ("answer=approve", "answer=reply&text=yes"):
        assert (await house.client.post(approves, content=body, headers=FORM)).status_code == 409
    assert await house.state(chat_id, "k1") is CallState.EXTERNAL
    _, _, path = await house.linked()
    assert (await house.client.post(path, content="answer=reply&text=yes", headers=FORM)).status_code == 400


async def test_a_link_in_a_mail_that_is_read_in_a_browser_leads_to_its_page(house: House) -> None:
    await house.endpoint()
    chat_id, call_id, path = await house.linked()
    clicked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert (await house.client.get(path, headers=clicked)).status_code == 200
    for told in ({"sec-fetch-dest": "iframe"}, {"sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}):
        assert (await house.client.get(path, headers=clicked | told)).status_code == 403
    posted = await house.client.post(path, content="answer=approve", headers={**FORM, **clicked})
    assert posted.status_code == 403, "a form elsewhere is no click on a link"
    assert await house.state(chat_id, call_id) is CallState.ASKING


async def test_no_line_of_a_log_holds_a_link_whatever_is_wrong_with_the_request(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await house.endpoint()
    _, _, path = await house.linked()
    assert (await house.client.get(path, headers={"host": "mallory.example"})).status_code == 421
    assert (await house.client.get(path, headers={"origin": "https://mallory.example"})).status_code == 403
    ours = [record.__dict__ for record in caplog.records if record.name.startswith("holdfast")]  # not the client's
    assert [line["path"] for line in ours if line.get("action") == "audit.refused"] == ["/approvals/…"] * 2
    assert path.rpartition("/")[2] not in str(ours)


async def test_what_a_stranger_writes_for_a_link_is_no_text_for_the_store(house: House) -> None:
    await house.app.store.link_keys.newest()
    known = ApprovalLink(
        key_id="key\x00", webhook_id="hook", chat_id="chat", life=1, call_id="k1", digest="d", expires_at=1 << 50
    )
    for key_id in ("key\x00", "", "k" * 900, "key_'; DROP", "KEY_1"):
        token = token_of(replace(known, key_id=key_id), bytes(32))
        assert (await house.client.get(f"/approvals/{token}")).status_code == 404, key_id


async def test_one_address_asks_for_so_many_links_in_a_minute(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "LINKS_PER_MINUTE_MAX", 2)
    answers = [await house.client.get("/approvals/x") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [404, 404, 429]
    assert 0 < int(answers[2].headers["retry-after"]) <= 30
    assert (await house.client.get("/health")).status_code == 200, "links alone are counted like this"


async def test_all_links_are_revoked_by_the_api_by_who_operates(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast.audit")
    await house.endpoint()
    _, _, path = await house.linked()
    admin = {"authorization": f"Bearer {ADMIN}"}
    owners = NewToken(name="ann", owner="ada", scopes=frozenset({"operate", "approve", "chat"}))
    secret = (await house.app.store.tokens.create(owners))[1]
    refused = await house.client.post("/api/webhooks/revoke-links", headers={"authorization": f"Bearer {secret}"})
    assert refused.status_code == 403
    assert (await house.client.get(path)).status_code == 200
    done = await house.client.post("/api/webhooks/revoke-links", headers=admin)
    assert (done.status_code, done.json()) == (200, {"revoked_at": house.app.store.now_ms()})
    assert (await house.client.get(path)).status_code == 404
    assert "audit.links_revoked" in [record.__dict__.get("action") for record in caplog.records]
    _, _, path = await house.linked()
    assert (await house.client.get(path)).status_code == 200, "what is sent from now on counts"
