"""LangGraph: a graph of two nodes with messages as its state, a saver of its own, `durability="sync"`."""

import asyncio
from contextlib import AbstractAsyncContextManager
from operator import add
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from workload import ANSWER, QUESTION, TEXT, Workload

work = Workload()


def all_added(state: list[Any], writes: list[list[Any]]) -> list[Any]:
    return [*state, *(message for write in writes for message in write)]


class Whole(TypedDict):
    chat: str
    messages: Annotated[list[AnyMessage], add]


class Deltas(TypedDict):
    chat: str
    messages: Annotated[list[AnyMessage], DeltaChannel(all_added)]


async def ask(state: Any) -> dict[str, Any]:
    cycle = len(state["messages"]) // 2
    if not work.asked(state["chat"], cycle):
        return {"messages": [AIMessage(ANSWER)]}
    call = {"name": "weather", "args": {"city": "Bern"}, "id": f"call-{cycle}"}
    return {"messages": [AIMessage(TEXT, tool_calls=[call])]}


async def weather(state: Any) -> dict[str, Any]:
    cycle = len(state["messages"]) // 2 - 1
    result = await work.tool(state["chat"], cycle)
    return {"messages": [ToolMessage(result, tool_call_id=f"call-{cycle}")]}


def next_node(state: Any) -> str:
    return "weather" if state["messages"][-1].tool_calls else END


async def main() -> None:
    kept: AbstractAsyncContextManager[Any] = (
        AsyncSqliteSaver.from_conn_string(work.database.removeprefix("sqlite:///"))
        if work.database.startswith("sqlite")
        else AsyncPostgresSaver.from_conn_string(work.database)
    )
    async with kept as saver:
        if not work.resume:
            await saver.setup()
        graph = StateGraph(Deltas if work.option == "delta" else Whole)
        graph.add_node("ask", ask)
        graph.add_node("weather", weather)
        graph.add_edge(START, "ask")
        graph.add_conditional_edges("ask", next_node)
        graph.add_edge("weather", "ask")
        compiled = graph.compile(checkpointer=saver)

        async def one(chat: str) -> None:
            config: Any = {"configurable": {"thread_id": chat}, "recursion_limit": 1_000_000}
            start = None if work.resume else {"chat": chat, "messages": [HumanMessage(QUESTION)]}
            await compiled.ainvoke(start, config, durability="sync")

        await work.drive(one)


if __name__ == "__main__":
    asyncio.run(main())
