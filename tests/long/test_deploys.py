"""A deploy under many clients: no request is left without an answer."""

from pathlib import Path

from tests.support.deploys import deployed_under
from tests.support.tallies import Figures


async def test_two_hundred_clients_get_every_answer_while_their_server_is_replaced(
    tmp_path: Path, figures: Figures
) -> None:
    got = await deployed_under(tmp_path, 200, lame_duck_s=5)
    figures("answers while the server was replaced", got["200"], "of 200 clients")
    figures("requests without an answer", got.total() - got["200"], "")
    assert set(got) == {"200"}
