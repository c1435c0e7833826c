"""The environment contract of a task as people read it: what is granted, what is denied, up to which limits."""

from dataclasses import dataclass, replace

from apps.accounts.permissions import Actor
from apps.tasks.models import Task
from apps.tasks.selectors import load_bundle, may_read_content
from gpu_workers.contracts.grants import Grant, describe

# Rows whose text names what lies in a task's workspace: content, on held-out tasks.
_NAMES_CONTENT = ("Files given", "Files that leave", "Variables", "Data ")


@dataclass(frozen=True)
class ContractView:
    """One contract. `content_hidden`: rows that name the task's own files say only whether there are any."""

    contract_hash: str
    version: int
    grants: list[Grant]
    content_hidden: bool
    max_turns: int


def contract_of(user: Actor, task: Task) -> ContractView:
    """The contract of a task that the user may see; limits and network are no content, names of files are."""
    bundle, hidden = load_bundle(task), not may_read_content(user, task)
    contract = bundle.contract
    grants = describe(contract)
    if hidden:
        grants = [_hide(grant) if grant.topic.startswith(_NAMES_CONTENT) else grant for grant in grants]
    return ContractView(contract.contract_hash, contract.version, grants, hidden, bundle.max_turns)


def _hide(grant: Grant) -> Grant:
    """Data of the host is named by its path: that row keeps neither."""
    topic = "Data" if grant.topic.startswith("Data ") and grant.topic != "Data of the host" else grant.topic
    closed = "closed: held-out" if grant.granted or topic == "Data" else grant.text
    return replace(grant, topic=topic, text=closed)
