"""What `import holdfast` costs, counted in the modules it loads: a clock never decides here."""

import subprocess
import sys

import pytest

HEAVY = frozenset(
    {
        "anthropic",
        "apsw",
        "asyncpg",
        "cryptography",
        "fastapi",
        "hishel",
        "httpx",
        "httpx2",
        "jwt",
        "litestar",
        "mcp",
        "openai",
        "psycopg",
        "psycopg_pool",
        "pydantic",
        "rich",
        "starlette",
        "typer",
        "uvicorn",
    }
)
HEAVY_IN_THE_STANDARD_LIBRARY = frozenset(
    {"asyncio", "concurrent", "email", "http", "logging", "multiprocessing", "sqlite3", "ssl", "subprocess"}
)
MODULES_MAX = 20


def run_in_a_fresh_interpreter(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60)


def modules_loaded_by(statement: str) -> set[str]:
    done = run_in_a_fresh_interpreter(
        f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    return modules_loaded_by("import holdfast")


def test_importing_holdfast_loads_holdfast(loaded: set[str]) -> None:
    assert "holdfast" in loaded


def test_importing_holdfast_loads_no_driver_client_server_or_terminal(loaded: set[str]) -> None:
    assert packages(loaded) & HEAVY == set()


def test_importing_holdfast_loads_nothing_from_outside_the_standard_library(loaded: set[str]) -> None:
    assert packages(loaded) - sys.stdlib_module_names == {"holdfast"}


def test_importing_holdfast_loads_none_of_the_heavy_standard_modules(loaded: set[str]) -> None:
    assert packages(loaded) & HEAVY_IN_THE_STANDARD_LIBRARY == set()


def test_importing_holdfast_stays_within_its_budget_of_modules(loaded: set[str]) -> None:
    assert len(loaded) <= MODULES_MAX, sorted(loaded)


def test_the_count_would_see_a_driver_that_came_along() -> None:
    loaded = modules_loaded_by("import holdfast, apsw, psycopg")
    assert packages(loaded) & HEAVY == {"apsw", "psycopg"}
    assert packages(loaded) & HEAVY_IN_THE_STANDARD_LIBRARY != set()
    assert len(loaded) > MODULES_MAX


def test_on_another_platform_importing_holdfast_says_where_it_runs() -> None:
    done = run_in_a_fresh_interpreter("import sys; sys.platform = 'win32'; import holdfast")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: holdfast runs on Linux and macOS, and this is 'win32'."
    )


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_on_linux_and_macos_importing_holdfast_works(platform: str) -> None:
    done = run_in_a_fresh_interpreter(f"import sys; sys.platform = {platform!r}; import holdfast")
    assert done.returncode == 0, done.stderr


def test_an_app_with_a_tool_server_that_is_not_used_does_not_load_the_sdk() -> None:
    program = (
        "from holdfast import Agent, App, McpServer; "
        "App('sqlite:///never.db', [Agent('a', 'openai:x', tools=[McpServer('t', command='x')])]).new_worker()"
    )
    assert "mcp" not in packages(modules_loaded_by(program))
    assert "mcp" in packages(modules_loaded_by(f"{program}; import holdfast.tools.mcp.session"))


def test_a_server_that_trusts_no_issuer_of_jwts_does_not_load_what_verifies_them() -> None:
    done = run_in_a_fresh_interpreter(
        "import sys; from holdfast import App, JwtIssuer, http_app; "
        "issuer = JwtIssuer(issuer='https://a.example', audience='x'); "
        "http_app(App('sqlite:///never.db'), token='t' * 32); print('jwt' in sys.modules); "
        "http_app(App('sqlite:///never.db', jwt=issuer), token='t' * 32); print('jwt' in sys.modules)"
    )
    assert done.stdout.split() == ["False", "True"], done.stderr
