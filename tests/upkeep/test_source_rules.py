"""The two source rules hold in this repository, and each is seen to catch what it is for."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.upkeep.source_rules import Finding, module_table_changes, unmanaged_threads

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "holdfast"
THREADS = SRC / "system" / "threads.py"


def findings(rule: Callable[[str], list[Finding]], files: Iterable[Path]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{found.line}: {found.what}"
        for file in sorted(files)
        for found in rule(file.read_text(encoding="utf-8"))
    ]


def test_no_test_changes_the_table_of_loaded_modules() -> None:
    """A test that swaps modules changes what every later test in the process imports."""
    files = set((ROOT / "tests").rglob("*.py"))
    assert Path(__file__).resolve() in files
    assert findings(module_table_changes, files) == []


def test_only_the_threads_module_makes_threads_and_pools() -> None:
    """Threads are bounded and shown because they are all made in one place: holdfast/system/threads.py."""
    files = set(SRC.rglob("*.py"))
    assert SRC / "__init__.py" in files
    assert findings(unmanaged_threads, files - {THREADS}) == []


@pytest.mark.parametrize(
    "source",
    [
        'import sys\nsys.modules["json"] = None',
        'import sys\ndel sys.modules["json"]',
        'import sys\nsys.modules["json"], other = None, 1',
        'import sys\nfor sys.modules["json"] in (): pass',
        "import sys\nsys.modules = {}",
        "import sys\nsys.modules |= {}",
        'import sys\nsys.modules.pop("json", None)',
        'import sys\nsys.modules.setdefault("json", None)',
        "import sys\nsys.modules.update({})",
        "import sys\nsys.modules.update(json=None)",
        "import sys\nsys.modules.clear()",
        'import sys\nsys.modules.__setitem__("json", None)',
        'import sys\ndict.pop(sys.modules, "json")',
        'import sys as s\ns.modules["json"] = None',
        'from sys import modules\nmodules["json"] = None',
        "from sys import modules\nmodules |= {}",
        'import sys\nloaded = sys.modules\nloaded.pop("json")',
        'import sys\ndef test(monkeypatch): monkeypatch.setitem(sys.modules, "json", None)',
        'import sys\ndef test(monkeypatch): monkeypatch.delitem(sys.modules, "json")',
        'import sys\ndef test(monkeypatch): monkeypatch.setitem(dic=sys.modules, name="json", value=None)',
        'import sys\ndef test(monkeypatch): monkeypatch.setattr(sys, "modules", {})',
        'def test(monkeypatch): monkeypatch.setattr("sys.modules", {})',
        "import sys\nfrom unittest.mock import patch\nwith patch.dict(sys.modules, json=None): pass",
        'from unittest import mock\nwith mock.patch.dict("sys.modules", {"json": None}): pass',
        'from unittest import mock\nwith mock.patch("sys.modules", {}): pass',
        'import sys\nfrom unittest.mock import patch\nwith patch.object(sys, "modules", {}): pass',
    ],
)
def test_a_change_to_the_table_of_loaded_modules_is_found(source: str) -> None:
    assert module_table_changes(source)


@pytest.mark.parametrize(
    "source",
    [
        'import sys\nassert "json" not in sys.modules',
        'import sys\nholdfast = sys.modules["holdfast"]',
        "import sys\nbefore = set(sys.modules)",
        "import sys\nbefore = dict(sys.modules)\nbefore.pop('json')",
        'import sys\nsys.modules.get("json")',
        'modules = {}\nmodules["json"] = None\nmodules.clear()',
        'def test(monkeypatch): monkeypatch.setitem({}, "sys.modules", None)',
        'import sys\ndef test(monkeypatch): monkeypatch.setattr(sys, "platform", "plan9")',
        'from unittest.mock import patch\nwith patch.dict("os.environ", {}): pass',
    ],
)
def test_reading_the_table_of_loaded_modules_is_no_finding(source: str) -> None:
    assert module_table_changes(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(4)",
        "from concurrent.futures import ProcessPoolExecutor as Pool\nwith Pool() as pool: pass",
        "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor()",
        "import concurrent.futures as cf\ncf.ThreadPoolExecutor()",
        "from concurrent import futures\nfutures.ThreadPoolExecutor()",
        "from concurrent.futures.thread import ThreadPoolExecutor\nThreadPoolExecutor()",
        "from concurrent.futures import ThreadPoolExecutor\nmake = ThreadPoolExecutor\nmake()",
        "from concurrent.futures import ThreadPoolExecutor\nclass Pool(ThreadPoolExecutor): pass",
        "import threading\nthreading.Thread(target=print).start()",
        "from threading import Thread\nThread(target=print)",
        "import threading\nclass Beat(threading.Thread): pass",
        "import threading\nfrom functools import partial\nmake = partial(threading.Thread, daemon=True)",
        "import threading\nthreading.Timer(1, print)",
        "import _thread\n_thread.start_new_thread(print, ())",
        "import multiprocessing\nmultiprocessing.Pool()",
        "import multiprocessing as mp\nmp.Pool(2)",
        'import multiprocessing\nmultiprocessing.get_context("spawn").Pool()',
        "from multiprocessing.pool import ThreadPool\nThreadPool()",
        "import asyncio\nasync def f(): await asyncio.to_thread(print)",
        "from asyncio import to_thread\nasync def f(): await to_thread(print)",
        "import asyncio\nrun = asyncio.to_thread",
        "async def f(loop): await loop.run_in_executor(None, print)",
        "import asyncio\nasync def f(): await asyncio.get_running_loop().run_in_executor(None, print)",
        "async def f(loop): await loop.run_in_executor(executor=None, func=print)",
    ],
)
def test_an_unmanaged_thread_or_pool_is_found(source: str) -> None:
    assert unmanaged_threads(source)


@pytest.mark.parametrize(
    "source",
    [
        "import threading\nlock = threading.Lock()",
        "import threading\nthreading.current_thread()",
        "from threading import Thread\ndef join(thread: Thread) -> None: thread.join()",
        "from concurrent.futures import ThreadPoolExecutor\ndef use(pool: ThreadPoolExecutor) -> None: ...",
        "from concurrent.futures import ThreadPoolExecutor\nisinstance(object(), ThreadPoolExecutor)",
        "async def f(loop, pool): await loop.run_in_executor(pool, print)",
        "async def f(loop, pool): await loop.run_in_executor(executor=pool, func=print)",
        "class Thread: ...\nThread()",
        "from psycopg_pool import AsyncConnectionPool as Pool\nPool()",
        "from holdfast.system.threads import start\nstart(print)",
    ],
)
def test_naming_or_using_threads_is_no_finding(source: str) -> None:
    assert unmanaged_threads(source) == []
