"""A long coding task with results of a megabyte each: the model sees every one, and no summary is paid twice."""

import pytest

from tests.support.tallies import Figures
from tests.worker.coding_task import carry_out

FILES = 150


@pytest.mark.parametrize("together", [1, 3])
async def test_of_a_long_coding_task_no_result_is_unseen_and_no_summary_is_paid_twice(
    store_url: str, together: int, figures: Figures
) -> None:
    coder, summariser = await carry_out(store_url, FILES, together, wait_s=600.0)
    assert len(coder.counts) > FILES / 3
    figures(f"results of 1 MB, up to {together} together", FILES)
    figures("responses", len(coder.counts))
    figures("summaries", summariser.made)
    figures("tokens of the longest request", max(coder.counts))
