"""The sub-agents of a chat by the API, for who may read the chat."""

from holdfast.core import commands as cmd
from holdfast.core.records import NewChat
from tests.server.test_kept_rules import House, house
from tests.support.chats import Hand, call, new_chat, user

__all__ = ["house"]


async def test_the_tree_below_a_chat_is_listed_for_who_may_read_it(house: House) -> None:
    store = house.app.store
    await store.create_chat(new_chat(id="top", owner="ada"))
    hand = Hand(store)
    for parent, child in (("top", "middle"), ("middle", "low")):
        await hand.take(parent)
        await hand.respond(call(f"{child}-call"))
        new = NewChat(id=child, agent="agent", message=user(f"Be {child}."))
        await hand.commit(cmd.Outcome(by=hand.by, call_id=f"{child}-call", content="spawned", spawn=new))
    async with house.client() as ada, house.client("bob") as bob:
        (child,) = (await ada.get("/api/chats/top/children")).json()["children"]
        assert (child["chat_id"], child["parent_id"], child["state"]) == ("middle", "top", "running")
        assert (child["task"], child["answer"], child["cause"]) == ("Be middle.", "", None)
        deep = (await ada.get("/api/chats/top/children", params={"deep": "true"})).json()["children"]
        assert {(one["chat_id"], one["depth"]) for one in deep} == {("middle", 1), ("low", 2)}
        for path in ("/api/chats/top/children", "/api/chats/nobody/children"):
            assert (await bob.get(path)).status_code == 404
        assert (await ada.post("/api/chats/top/stop")).status_code == 200
        deep = (await ada.get("/api/chats/top/children", params={"deep": "true"})).json()["children"]
        assert {one["state"] for one in deep} == {"stopping"}
