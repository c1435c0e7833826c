"""The transfer that a run's installs ask the fleet for."""

import pytest

from apps.runs.models import Run
from apps.runs.services.installs import _transfer_of
from gpu_workers.contracts.transfers import Transfer


@pytest.mark.parametrize(
    ("trainer", "transfer"),
    [
        ({}, Transfer.ADAPTER),
        ({"update": "lora", "transfer": "auto"}, Transfer.ADAPTER),
        ({"update": "full"}, Transfer.AUTO),
        ({"update": "full", "transfer": "auto"}, Transfer.AUTO),
        ({"update": "full", "transfer": "broadcast"}, Transfer.BROADCAST),
    ],
)
def test_by_what_is_trained_and_what_its_spec_says(trainer: dict[str, str], transfer: Transfer) -> None:
    """Specs that were stored before there was a choice have none."""
    assert _transfer_of(Run(spec={"trainer": trainer})) is transfer


def test_adapters_that_no_run_asks_for_are_adapters() -> None:
    assert _transfer_of(None) is Transfer.ADAPTER
