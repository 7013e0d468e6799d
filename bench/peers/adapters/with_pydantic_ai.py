"""Pydantic AI on DBOS: an agent whose model requests are steps, and its tool a step, as its guide has it."""

import asyncio

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent, RunContext
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits
from workload import ANSWER, QUESTION, TEXT, Workload

work = Workload()


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    chat = str(info.instructions or "chat-0").split()[-1]
    if not work.asked(chat, len(messages) // 2):
        return ModelResponse(parts=[TextPart(ANSWER)])
    return ModelResponse(parts=[TextPart(TEXT), ToolCallPart("weather", {"city": "Bern"})])


agent = Agent(FunctionModel(answer), name="cycler", deps_type=str, capabilities=[DBOSDurability()])


@agent.instructions
def of_chat(context: RunContext[str]) -> str:
    return f"This is {context.deps}"


@DBOS.step()
async def look_up(chat: str, cycle: int) -> str:
    return await work.tool(chat, cycle)


@agent.tool
async def weather(context: RunContext[str], city: str) -> str:
    """Current weather in a city."""
    return await look_up(context.deps, context.run_step - 1)


@DBOS.workflow()
async def turn(chat: str) -> str:
    answered = await agent.run(QUESTION, deps=chat, usage_limits=UsageLimits(request_limit=None))
    return answered.output


async def one(chat: str) -> None:
    with SetWorkflowID(chat):
        handle = await DBOS.start_workflow_async(turn, chat)
    await handle.get_result()


async def main() -> None:
    DBOS(config={"name": "peers", "system_database_url": work.database, "log_level": "ERROR", "executor_id": "one"})
    DBOS.launch()
    await work.drive(one)
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main())
