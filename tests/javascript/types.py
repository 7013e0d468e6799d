"""The types of the JavaScript client: made of docs/openapi.json and of the comments in its modules.

`python -m tests.javascript.types` writes them; a test sees that they are written.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from holdfast.server.client_files import FOLDER
from tests.support.client_tools import NODE, OPENAPI_TYPESCRIPT, TYPESCRIPT, run
from tests.upkeep.test_openapi import FILE

STRICT = ("--allowJs", "--checkJs", "--strict", "--target", "es2022")
MODULES = ("--module", "nodenext", "--moduleResolution", "nodenext", "--lib", "es2022,dom,dom.iterable")


def made() -> dict[str, str]:
    """Each file of types by its name. Checks the modules on the way, by all the compiler's rules."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for module in FOLDER.glob("*.js"):
            shutil.copy(module, folder)
        shutil.copy(FOLDER / "package.json", folder)
        run(NODE, OPENAPI_TYPESCRIPT, FILE, "-o", folder / "api.d.ts")
        modules = [module.name for module in FOLDER.glob("*.js")]
        types = ("--declaration", "--emitDeclarationOnly", "--outDir", "types")
        run(NODE, TYPESCRIPT, *STRICT, *MODULES, *types, *modules, cwd=folder)
        files = [folder / "api.d.ts", *(folder / "types").glob("*.d.ts")]
        return {file.name: file.read_text(encoding="utf-8") for file in files}


if __name__ == "__main__":
    for name, text in made().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    sys.stdout.write(f"the types in {FOLDER.name} are written\n")
