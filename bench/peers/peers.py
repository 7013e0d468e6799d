"""The peers, as data: where each comes from, how it is run, and what it keeps by its own account."""

import os

from msgspec import Struct


class Peer(Struct, frozen=True, kw_only=True):
    """`lock` None: this repository's own environment. `server`: it keeps its journal in a server of its own."""

    name: str
    adapter: str
    database: str  # "sqlite", "postgres", or "" for one that has its own
    lock: str | None = None
    option: str = ""
    processes: int = 1
    server: bool = False
    durable: str  # what is on disk, and when
    recovers: bool = True


CORES = max(2, os.cpu_count() or 2)
STEP = "each response and each result, before the next"

PEERS = (
    Peer(name="two commits, SQLite", adapter="with_commits", database="sqlite", durable="the raw limit: a row for each", recovers=False),
    Peer(name="two commits, PostgreSQL", adapter="with_commits", database="postgres", durable="the raw limit: a row for each", recovers=False),
    Peer(name="holdfast, SQLite", adapter="with_holdfast", database="sqlite", durable=STEP),
    Peer(name="holdfast, SQLite, a process for each core", adapter="with_holdfast", database="sqlite", processes=CORES, durable=STEP, recovers=False),
    Peer(name="holdfast, PostgreSQL", adapter="with_holdfast", database="postgres", durable=STEP),
    Peer(name="holdfast, PostgreSQL, a process for each core", adapter="with_holdfast", database="postgres", processes=CORES, durable=STEP, recovers=False),
    Peer(name="Restate", adapter="with_restate", database="", lock="restate", server=True, durable=f"{STEP}, in its server"),
    Peer(name="DBOS, SQLite", adapter="with_dbos", database="sqlite", lock="dbos", durable=STEP),
    Peer(name="DBOS, SQLite set to WAL by hand", adapter="with_dbos", database="sqlite", lock="dbos", option="wal", durable=STEP),
    Peer(name="DBOS, PostgreSQL", adapter="with_dbos", database="postgres", lock="dbos", durable=STEP),
    Peer(name="LangGraph, SQLite", adapter="with_langgraph", database="sqlite", lock="langgraph", durable=f"{STEP}; durability=sync"),
    Peer(name="LangGraph, delta channel, SQLite", adapter="with_langgraph", database="sqlite", lock="langgraph", option="delta", durable=f"{STEP}; durability=sync"),
    Peer(name="LangGraph, PostgreSQL", adapter="with_langgraph", database="postgres", lock="langgraph", durable=f"{STEP}; durability=sync"),
    Peer(name="Pydantic AI on DBOS, SQLite", adapter="with_pydantic_ai", database="sqlite", lock="pydantic-ai", durable="each response, and tools that are steps"),
    Peer(name="Pydantic AI on DBOS, PostgreSQL", adapter="with_pydantic_ai", database="postgres", lock="pydantic-ai", durable="each response, and tools that are steps"),
    Peer(name="OpenAI Agents SDK, SQLite session", adapter="with_openai_agents", database="sqlite", lock="openai-agents", durable="each cycle, when its tool has ended; going on after a kill is up to the program", recovers=False),
)  # fmt: skip
