"""The transfer that a run's installs ask the fleet for."""

import pytest

from apps.runs.models import Run
from apps.runs.services.installs import transfer_of
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
    run = Run(spec={"trainer": trainer}, whole_weights=trainer.get("update") == "full")
    assert transfer_of(run) is transfer
