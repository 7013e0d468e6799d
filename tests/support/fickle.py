"""A model that says something else each time it is asked: as real ones do."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

from holdfast.models.scripted import Script, Written, script_of
from holdfast.testing import ScriptedModel


class FickleModel(ScriptedModel):
    """`script` makes a new script for each request, by the number of the request in this process."""

    def __init__(self, script: Callable[[int], list[Written]], **options: Any) -> None:
        super().__init__(**options)
        self._new_script = script
        self.asked = 0

    async def stream(self, request: Any) -> AsyncGenerator[Any, None]:
        self.asked += 1
        self.script: Script = script_of(self._new_script(self.asked))
        async for part in super().stream(request):
            yield part
