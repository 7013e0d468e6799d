"""Numbered SQL, applied once each, in order, under a lock. Each file says the oldest code that may run on it.

`CODE_LEVEL` grows whenever code starts to need something of the schema. A database whose newest migration states an
`oldest-code` above ours is refused by name; one that is merely newer is used as it is.
"""

import re
from importlib.resources import files

from holdfast.core.records import Frozen
from holdfast.errors import SchemaError

CODE_LEVEL = 14


class Migration(Frozen):
    number: int
    name: str
    oldest_code: int
    sql: str


def migrations(dialect: str) -> list[Migration]:
    found = []
    for file in sorted(files("holdfast.store").joinpath("sql", dialect).iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".sql"):
            continue
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match is None:
            raise SchemaError(f"migration {file.name} is not named as 0001_some_words.sql is")
        sql = file.read_text()
        stated = re.match(r"-- oldest-code: (\d+)\n", sql)
        if stated is None:
            raise SchemaError(f"migration {file.name} does not begin with '-- oldest-code: N'")
        found.append(
            Migration(number=int(match[1]), name=file.name, oldest_code=int(stated[1]), sql=sql[stated.end() :])
        )
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise SchemaError(f"the migrations of {dialect} are not numbered 1, 2, 3, …")
    return found


def version_after(all_migrations: list[Migration], schema_version: int) -> int:
    """What the database has once nothing is pending: newer code may have gone further."""
    return max(schema_version, all_migrations[-1].number)


def pending(all_migrations: list[Migration], schema_version: int, oldest_code: int) -> list[Migration]:
    """What is still to be applied. Raises SchemaError if this code is too old for the database."""
    if oldest_code > CODE_LEVEL:
        raise SchemaError(
            f"the database has schema {schema_version}, which needs code of level {oldest_code} or newer; "
            f"this is level {CODE_LEVEL}: upgrade holdfast on this machine"
        )
    return [migration for migration in all_migrations if migration.number > schema_version]
