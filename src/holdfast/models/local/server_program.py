"""The program of a local model: llama.cpp's own server, from the `xllamacpp` wheel, on loopback.

    python -I server_program.py

`model.py` starts it and speaks to it over its standard streams. The first line on standard input is a JSON object
with its settings, the key among them: an argument or the environment would show it to others. Standard output says
once that it is ready, and where. Standard error is llama.cpp's, warnings and errors.

Standard input stays open as long as its parent lives, and its end is the end of this program, by a signal
that needs nothing of Python: loading a model holds the GIL to its end. It imports nothing of holdfast.
"""

import fcntl
import json
import os
import select
import signal
import sys
from importlib import import_module
from typing import Any

NICE = 5  # what it computes comes after the loop that serves the chats
LOOK_S = 2.0
CACHE_MIB = 256  # of prompts that lost their slot; llama.cpp's own default would be 8 GiB
FAILED = 3  # the exit code of a model that cannot be loaded


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints
    parent = os.getppid()
    settings = json.loads(_first_line())
    _end_with_input()
    os.nice(NICE)
    sys.path.append(settings["packages"])
    server = _serve(settings)
    address = server.listening_address
    answer.write(json.dumps({"address": address}) + "\n")
    answer.close()
    while os.getppid() == parent:  # a fork of our parent may hold the other end of our input open
        if select.select([0], [], [], LOOK_S)[0] and not os.read(0, 4096):
            break
    os._exit(0)  # without waiting for what is being computed


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            os._exit(0)
        line += piece
    return line


def _end_with_input() -> None:
    """At the end of the input, or at any word, the kernel ends us by SIGIO. Where that is ignored (macOS), `main`
    sees the end once the model is loaded.
    """
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    if select.select([0], [], [], 0)[0]:
        os._exit(0)


def _serve(settings: dict[str, Any]) -> Any:
    xllamacpp = import_module("xllamacpp")  # only now does the path lead to it
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = "local"
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["slots"] * settings["context"]
    params.kv_unified = False  # each slot has its own room, whatever the others do
    params.cont_batching = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.n_threads_http = settings["http_threads"]
    params.cache_ram_mib = CACHE_MIB
    params.verbosity = 2
    params.ui = params.endpoint_slots = params.endpoint_props = False
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:  # why, llama.cpp has said itself
        sys.stderr.write(f"{error}\n")
        sys.exit(FAILED)  # not at once: a thread of its own writes what it said, and is waited for at exit


if __name__ == "__main__":
    main()
