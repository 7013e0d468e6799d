"""An endpoint that hears of what happens, as it is declared: in code, or in `holdfast.toml`.

    DeclaredWebhook("ops", url="https://ops.example/holdfast", secret_env="OPS_WEBHOOK_SECRET")

    [webhooks.ops]
    url = "https://ops.example/holdfast"
    secret_env = "OPS_WEBHOOK_SECRET"

Plain data; nothing here connects, and the secret itself is in neither place.
"""

import os
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from holdfast.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class _Named(Struct, frozen=True):
    name: str


class DeclaredWebhook(_Named, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`secret_env` names the variable of this process that holds its secret: `whsec_` and the base64 of 24 to 64
    random bytes. `owner` None: it hears of everybody's chats. `kinds` empty: of all kinds. With `links` what waits
    for a person comes with a link that answers it: docs/how-to/webhooks.md.
    """

    url: str
    secret_env: str
    owner: str | None = None
    kinds: Sequence[str] = ()
    links: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.kinds, str):
            raise ConfigError(f"webhook {self.name!r}: kinds is a list of texts, not one text")
        structs.force_setattr(self, "kinds", tuple(self.kinds))
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"webhook {self.name!r}: a name is up to 64 letters, digits, _ and -, beginning with no sign"
            )

    def secret(self, environ: Mapping[str, str] | None = None) -> str:
        """Raises ConfigError for a variable that is not set."""
        found = (os.environ if environ is None else environ).get(self.secret_env)
        if not found:
            raise ConfigError(f"webhook {self.name!r}: environment variable {self.secret_env} is not set")
        return found
