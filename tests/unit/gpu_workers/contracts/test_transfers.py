"""Which transfer `auto` means where, and which may be asked for what is trained."""

import pytest

from gpu_workers.contracts.runspec import SpecError, parse_run_spec
from gpu_workers.contracts.transfers import Topology, Transfer, TransferError, resolve_transfer

BASE = {"suite": "s", "policy": "p"}


def topology(**what: bool) -> Topology:
    return Topology(**{"on_other_hosts": False, "has_agents": False, "shared_store": False, "collective": False} | what)


@pytest.mark.parametrize(
    ("where", "transfer"),
    [
        ({}, Transfer.FULL),
        ({"has_agents": True}, Transfer.FULL),
        ({"on_other_hosts": True, "has_agents": True}, Transfer.DELTA),
        ({"on_other_hosts": True, "has_agents": True, "shared_store": True}, Transfer.DELTA),
        ({"on_other_hosts": True, "shared_store": True}, Transfer.FULL),
        ({"on_other_hosts": True, "has_agents": True, "shared_store": True, "collective": True}, Transfer.BROADCAST),
        ({"collective": True}, Transfer.BROADCAST),
    ],
)
def test_auto_follows_the_topology(where: dict[str, bool], transfer: Transfer) -> None:
    assert resolve_transfer(Transfer.AUTO, topology(**where)) is transfer


def test_engines_that_nothing_reaches_are_told_what_to_set() -> None:
    with pytest.raises(TransferError, match=r"ROLLOUT_ENGINE_AGENTS.*WEIGHTS_COLLECTIVE"):
        resolve_transfer(Transfer.AUTO, topology(on_other_hosts=True))


@pytest.mark.parametrize("wanted", [one for one in Transfer if one is not Transfer.AUTO])
def test_what_is_asked_for_is_done(wanted: Transfer) -> None:
    assert resolve_transfer(wanted, topology(on_other_hosts=True)) is wanted


@pytest.mark.parametrize("update", ["lora", "full"])
@pytest.mark.parametrize("transfer", list(Transfer))
def test_adapters_for_lora_and_anything_else_for_all_weights(update: str, transfer: Transfer) -> None:
    trainer = {"update": update, "transfer": str(transfer)}
    if transfer is Transfer.AUTO or (transfer is Transfer.ADAPTER) == (update == "lora"):
        assert parse_run_spec(BASE | {"trainer": trainer}).trainer.transfer is transfer
        return
    for kind in ({}, {"algorithm": {"kind": "sft"}}):
        with pytest.raises(SpecError, match="update") as refused:
            parse_run_spec(BASE | {"trainer": trainer} | kind)
        assert refused.value.path == "trainer.transfer"


def test_a_transfer_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="pigeon") as refused:
        parse_run_spec(BASE | {"trainer": {"transfer": "pigeon"}})
    assert refused.value.path == "trainer.transfer"
