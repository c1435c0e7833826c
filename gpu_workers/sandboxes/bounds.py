"""What a contract may ask of a backend and which paths lie in a workspace; the same for every backend."""

from gpu_workers.contracts.contract_rules import check_contract_fields
from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.environment import WORKSPACE, EnvironmentContract
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes.host import HostPolicy, HostRefusal


def check_contract(contract: EnvironmentContract, host: HostPolicy | None = None, *, images: bool = False) -> None:
    """Refuse what is invalid and what this host does not grant. Raises WorkerError(ENVIRONMENT) naming the field.

    Without `host`: neither network nor mounts. `images`: the backend runs container images.
    """
    try:
        check_contract_fields(contract)
        if contract.image and not images:
            raise HostRefusal("image: this sandbox runs the host's own programs; only the container backend has images")
        (host or HostPolicy()).check(contract)
    except HostRefusal as error:
        raise WorkerError(Boundary.ENVIRONMENT, f"contract.{error}", retryable=False) from error
    except ValueError as error:
        raise WorkerError(Boundary.ENVIRONMENT, str(error), retryable=False) from error


def workspace_path(path: str) -> str:
    """A path relative to the workspace. Raises WorkerError(POLICY) on one that leaves it."""
    inside = path.removeprefix(WORKSPACE + "/")
    if not inside or inside.startswith("/") or ".." in inside.split("/") or "\0" in inside:
        raise WorkerError(Boundary.POLICY, f"{path!r} is not a path below {WORKSPACE}", retryable=False)
    return inside


def contract_files(contract: EnvironmentContract) -> dict[str, bytes]:
    """The files that a sandbox starts with: path below the workspace -> bytes."""
    return {workspace_path(path): text.encode() for path, text in contract.files.items()}
