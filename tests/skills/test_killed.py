"""Which text did the model see? That of its activation, over `kill -9`, a deploy with another file, a compaction."""

import os
import signal
from pathlib import Path

from holdfast.app import App
from holdfast.core.journal import Compacted
from holdfast.core.records import Role, State
from holdfast.core.skill_texts import activations, active_skills, carried
from tests.skills.mortal import agent_of, script
from tests.support.programs import Program
from tests.support.skill_folders import write_skill
from tests.support.turns import QUICK, entries, rested


async def test_the_text_of_an_activation_outlives_a_kill_a_deploy_and_a_compaction(
    store_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "s"
    write_skill(folder, "review", "The review of the first deploy.")
    write_skill(folder, "deploy", "The deploy of the first deploy, for $ARGUMENTS.")
    model = script()
    app = App(store_url, agents=[agent_of(str(folder), model, mortal=False)], retry=QUICK)
    async with app:
        with Program("tests.skills.mortal", store_url, str(folder)) as program:
            chat = await app.create("a", "/deploy now")
            assert await rested(chat) is State.IDLE
            await chat.send("go on")
            assert program.hear() == "waiting"
            os.kill(program.pid, signal.SIGKILL)
        seen = activations(await chat.messages())
        write_skill(folder, "review", "Another text of the second deploy.")
        write_skill(folder, "deploy", "Yet another one of the second deploy.")
        await chat.compact()
        async with app.worker():
            assert await rested(chat) is State.IDLE
        (compacted,) = [entry for entry in await entries(chat) if isinstance(entry, Compacted)]
    assert [skill.name for skill in seen] == ["deploy", "review"]
    assert carried(compacted.summary) == seen, "the journal has what the model is shown, with its digests"
    request = model.requests[-1]
    shown = request.messages[1] if request.messages[0].role is Role.SYSTEM else request.messages[0]
    assert list(active_skills(shown.text, request.messages).values()) == seen
    assert "for now." in shown.text
    assert "second deploy" not in str(request.messages)
