"""A server with a model of many minds: `python -m tests.javascript.fickle_server URL HOME PORT SEED`."""

import asyncio
import random
import sys

from holdfast import Agent, App, StoreOptions
from holdfast.server.serve import serve
from tests.crash.fickle_worker import look, script
from tests.support.fickle import FickleModel

if __name__ == "__main__":
    url, home, port, seed = sys.argv[1:]
    dice = random.Random(int(seed))
    agent = Agent("fickle", FickleModel(lambda _: script(dice)), tools=[look])
    options = StoreOptions(lease_ttl_ms=10_000)
    asyncio.run(serve(App(url, agents=[agent], options=options, home=home, port=int(port), poll_s=0.2, grace_s=2.0)))
