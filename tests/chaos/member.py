"""One worker of the fleet, as a deployment would run it: `python -m tests.chaos.member ORDERS` (JSON)."""

import asyncio
import sys

import msgspec

from tests.chaos.weather import Orders, make_app

if __name__ == "__main__":
    asyncio.run(make_app(msgspec.json.decode(sys.argv[1], type=Orders)).run_worker())
