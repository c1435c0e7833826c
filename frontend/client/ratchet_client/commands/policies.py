"""policies and channels."""

import click

from ratchet_client.commands.output import day, when
from ratchet_client.commands.session import Session, in_project, json_option, key_option, pass_session
from ratchet_client.types import PolicyBrief


@click.group()
def policies() -> None:
    """What can be evaluated, promoted and served."""


@policies.command("list")
@click.option("--kind", default="", help="prompt, supervised, reinforced …")
@in_project
def list_policies(session: Session, kind: str) -> None:
    """Policies, newest first."""
    session.output.table(
        session.client.policies.list(project=session.project_filter, kind=kind),
        [
            ("slug", lambda policy: policy["slug"]),
            ("kind", lambda policy: policy["kind"]),
            ("base model", lambda policy: policy["base_model"]),
            ("examples", lambda policy: policy["num_shots"]),
            ("from", lambda policy: _slug(policy["parent"])),
            ("project", lambda policy: policy["project"]),
            ("made, UTC", lambda policy: day(policy["created_at"])),
        ],
    )


@policies.command("show")
@click.argument("policy")
@in_project
def show_policy(session: Session, policy: str) -> None:
    """A policy with where it came from."""
    found = session.client.policies.get(session.find_policy(policy))
    lineage = [ancestor["slug"] for ancestor in found["ancestors"]]
    fields = {
        "policy": found["slug"],
        "kind": found["kind"],
        "base model": found["base_model"],
        "worked examples": found["num_shots"],
        "comes from": " → ".join(lineage) or None,
        "led to": ", ".join(child["slug"] for child in found["children"]) or None,
        "run": found["run_id"],
        "adapter": found["adapter_sha256"],
        "made": when(found["created_at"]),
        "page": session.client.page(f"policies/{found['id']}/"),
    }
    session.output.record(found, fields)


@policies.command("create")
@click.argument("slug")
@click.option("--base-model", required=True, help="Slug of a base model: ratchet policies base-models")
@click.option("--shots", type=click.IntRange(0, 32), default=0, help="Worked examples in the prompt.")
@click.option("--title", default="")
@key_option
@in_project
def create_policy(session: Session, slug: str, base_model: str, shots: int, title: str, key: str) -> None:
    """Make a prompt-only policy; trained ones come from runs."""
    made = session.client.policies.create(
        slug, project=session.project, base_model=base_model, num_shots=shots, title=title, key=key
    )
    session.output.record(made, {"policy": made["slug"], "page": session.client.page(f"policies/{made['id']}/")})


@policies.command("base-models")
@json_option
@pass_session
def list_base_models(session: Session) -> None:
    """Base models that policies can start from."""
    session.output.table(
        session.client.policies.base_models(),
        [
            ("slug", lambda model: model["slug"]),
            ("title", lambda model: model["title"]),
            ("context", lambda model: model["context_length"]),
            ("licence", lambda model: model["licence"]),
        ],
    )


@click.group()
def channels() -> None:
    """Names that serve a policy, e.g. production."""


@channels.command("list")
@in_project
def list_channels(session: Session) -> None:
    """Channels and the policy each serves."""
    session.output.table(
        session.client.channels.list(project=session.project_filter),
        [
            ("project", lambda channel: channel["project"]),
            ("channel", lambda channel: channel["name"]),
            ("policy", lambda channel: _slug(channel["policy"])),
            ("moves", lambda channel: channel["epoch"]),
            ("since", lambda channel: when(channel["updated_at"])),
        ],
    )


@channels.command("show")
@click.argument("name")
@in_project
def show_channel(session: Session, name: str) -> None:
    """A channel with its history."""
    channel = session.client.channels.get(session.project, name)
    back = channel["rollback_to"]
    fields: dict[str, object] = {
        "serves": _slug(channel["policy"]),
        "everywhere": channel["complete"],
        "rollback to": back["slug"] if back else None,
    }
    for move in channel["moves"]:
        words = f"{move['kind']} to {move['to_policy']['slug']} by {move['by'] or 'the platform'}"
        fields[when(move["at"]) or ""] = f"{words}: {move['reason']}" if move["reason"] else words
    session.output.record(channel, fields)


@channels.command("set")
@click.argument("name")
@click.argument("policy")
@key_option
@in_project
def set_channel(session: Session, name: str, policy: str, key: str) -> None:
    """Set a channel up with its first policy. Needs channel:move; later only promotions and rollbacks move it."""
    channel = session.client.channels.create(name, project=session.project, policy=policy, key=key)
    session.output.record(channel, {"channel": channel["name"], "serves": policy})


@channels.command("rollback")
@click.argument("name")
@click.option("--reason", required=True, help="What is wrong with the present policy.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@key_option
@in_project
def roll_back(session: Session, name: str, reason: str, yes: bool, key: str) -> None:
    """Put back the policy that was served before the present one."""
    channel = session.client.channels.get(session.project, name)
    present, back = channel["policy"], channel["rollback_to"]
    if not yes:
        session.output.note(f"{name} serves {present and present['slug']}; back to {back and back['slug']}.")
        click.confirm("Roll back?", abort=True, err=True)
    moved = session.client.channels.rollback(session.project, name, epoch=channel["epoch"], reason=reason, key=key)
    session.output.record(moved, {"channel": name, "serves": _slug(moved["policy"])})


def _slug(policy: PolicyBrief | None) -> str | None:
    return policy["slug"] if policy else None
