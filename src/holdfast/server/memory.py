"""The routes of memory: blocks, facts, episodes and proposals, for people to read, change, accept and delete."""

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from holdfast.core.memory import BLOCK_CHARS_MAX, FACT_CHARS_MAX, FOUND_MAX, Block, MemoryRecord, Passage
from holdfast.server import views
from holdfast.server.chats import PROBLEMS, as_json
from holdfast.server.guarded import Routes
from holdfast.server.owned_app import AppOf

routes = Routes(prefix="/api", tags=["memory"], responses=PROBLEMS)

Owner = Annotated[str | None, Query(max_length=512, description="whose; a token of an owner needs to name none")]
AgentOf = Annotated[str | None, Query(max_length=512, description="of this agent; without it, of all")]
OneAgent = Annotated[str, Query(max_length=512, description="whose block it is")]
Limit = Annotated[int, Query(ge=1, le=500)]


class BlockShown(BaseModel):
    id: str
    owner: str
    agent: str
    name: str
    text: str
    version: int
    updated_at: views.Ms


class BlockPage(BaseModel):
    blocks: list[BlockShown]
    next: str | None = Field(description="give it as `after` for the next page; null: there is none")


class MemoryShown(BaseModel):
    id: str
    kind: Literal["fact", "episode", "proposal"]
    owner: str
    agent: str
    text: str
    detail: str = Field(description="of a proposal: the edit, as JSON")
    chat_id: str = Field(description="where it came from; empty: from a person")
    turn: int
    call_id: str
    made_by: str = Field(description="the person, where it was one")
    created_at: views.Ms
    tainted: bool = Field(description="its chat had read content from outside: no model is shown it by itself")
    cleared_by: str | None = Field(description="who accepted it")
    cleared_at: views.Ms | None
    replaces: str
    superseded_by: str
    ended_at: views.Ms | None = Field(description="when a model forgot it")


class MemoryPage(BaseModel):
    memories: list[MemoryShown]
    next: str | None = Field(description="give it as `before` for the next page; null: there is none")


class PassageShown(BaseModel):
    kind: Literal["fact", "episode", "message"]
    ref: str = Field(description="the id of the fact, the episode or the message")
    chat_id: str
    title: str | None
    pos: int
    role: str
    at: views.Ms
    tainted: bool
    text: str


class FoundShown(BaseModel):
    passages: list[PassageShown]
    outside: int = Field(description="how many more there are with `outside`, up to 100")


class BlockGiven(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: str = Field(max_length=BLOCK_CHARS_MAX)
    version: int | None = Field(default=None, ge=0, description="that was read: refused if another stands")


class FactGiven(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1, max_length=FACT_CHARS_MAX)


class NewFactGiven(FactGiven):
    agent: str = Field(min_length=1, max_length=512)
    owner: str | None = Field(default=None, max_length=512)


def _shown(record: Block | MemoryRecord | Passage, model: type[BaseModel]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in model.model_fields}


@routes.get("/memory", scope="read", response_model=MemoryPage)
async def list_memories(
    app: AppOf,
    owner: Owner = None,
    agent: AgentOf = None,
    kind: Literal["fact", "episode", "proposal"] | None = None,
    chat_id: Annotated[str | None, Query(max_length=512, description="that came from this chat")] = None,
    everything: Annotated[bool, Query(description="also what was replaced, or forgotten by a model")] = False,
    before: Annotated[str | None, Query(max_length=512)] = None,
    limit: Limit = 100,
) -> Response:
    """Facts, episodes and proposals, newest first. An owner sees its own."""
    found = await app.memory.list(
        owner=owner, agent=agent, kind=kind, chat_id=chat_id, everything=everything, before=before, limit=limit
    )
    rest = found[-1].id if len(found) == limit else None
    return as_json({"memories": [_shown(one, MemoryShown) for one in found], "next": rest})


@routes.get("/memory/blocks", scope="read", response_model=BlockPage)
async def list_memory_blocks(
    app: AppOf,
    owner: Owner = None,
    agent: AgentOf = None,
    after: Annotated[str, Query(max_length=512)] = "",
    limit: Limit = 100,
) -> Response:
    """The texts that every new chat of their agent and owner is shown."""
    found = await app.memory.blocks(owner, agent, after=after, limit=limit)
    rest = found[-1].id if len(found) == limit else None
    return as_json({"blocks": [_shown(one, BlockShown) for one in found], "next": rest})


@routes.get("/memory/search", scope="read", response_model=FoundShown)
async def search_memory(
    app: AppOf,
    q: Annotated[str, Query(max_length=10_000, description="words; there are no operators")],
    owner: Owner = None,
    agent: AgentOf = None,
    outside: Annotated[bool, Query(description="also what content from outside may speak through")] = True,
    limit: Annotated[int, Query(ge=1, le=FOUND_MAX)] = 20,
) -> Response:
    """Facts, episodes and what was said in past chats of one owner."""
    found = await app.memory.search(q, owner=owner, agent=agent, outside=outside, limit=limit)
    passages = [_shown(one, PassageShown) for one in found.passages]
    return as_json({"passages": passages, "outside": found.outside})


@routes.put("/memory/blocks/{name}", scope="chat", response_model=BlockShown)
async def edit_memory_block(
    app: AppOf, name: str, given: BlockGiven, agent: OneAgent, owner: Owner = None
) -> Response:
    """Its whole text, from the next chat on."""
    block = await app.memory.edit_block(name, given.text, owner=owner, agent=agent, version=given.version)
    return as_json(_shown(block, BlockShown))


@routes.delete("/memory/blocks/{name}", scope="chat", status_code=204, response_class=Response)
async def remove_memory_block(app: AppOf, name: str, agent: OneAgent, owner: Owner = None) -> Response:
    """With all its versions."""
    await app.memory.remove_block(name, owner=owner, agent=agent)
    return Response(status_code=204)


@routes.post("/memory", scope="chat", status_code=201, response_model=MemoryShown)
async def add_fact(app: AppOf, given: NewFactGiven) -> Response:
    """A fact of a person's."""
    made = await app.memory.add(given.text, owner=given.owner, agent=given.agent)
    return as_json(_shown(made, MemoryShown), 201)


@routes.get("/memory/{memory_id}", scope="read", response_model=MemoryShown)
async def get_memory(app: AppOf, memory_id: str) -> Response:
    return as_json(_shown(await app.memory.get(memory_id), MemoryShown))


@routes.put("/memory/{memory_id}", scope="chat", response_model=MemoryShown)
async def edit_fact(app: AppOf, memory_id: str, given: FactGiven) -> Response:
    """A new fact in place of this one."""
    return as_json(_shown(await app.memory.edit(memory_id, given.text), MemoryShown))


@routes.post("/memory/{memory_id}/accept", scope="approve", response_model=MemoryShown)
async def accept_memory(app: AppOf, memory_id: str) -> Response:
    """A person looked at it: it counts like any other from now on; a proposal is applied."""
    return as_json(_shown(await app.memory.accept(memory_id), MemoryShown))


@routes.delete("/memory/{memory_id}", scope="chat", status_code=204, response_class=Response)
async def forget_memory(app: AppOf, memory_id: str) -> Response:
    """It is gone, with what it had replaced."""
    await app.memory.forget(memory_id)
    return Response(status_code=204)
