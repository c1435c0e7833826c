"""A base model and three policies, each made from the one before."""

import pytest

from apps.policies.models import BaseModel, Policy, PolicyKind
from apps.policies.services import create_policy, register_base_model


@pytest.fixture
def base_model(db) -> BaseModel:
    return register_base_model(slug="tiny", title="Tiny", context_length=1024, by=None)


@pytest.fixture
def policies(project, base_model) -> list[Policy]:
    """Prompt-only, supervised, reinforced."""
    common = {"project": project, "base_model": base_model, "by": None}
    prompt = create_policy(slug="prompted", title="Prompted", kind=PolicyKind.PROMPT, num_shots=2, **common)
    made = [prompt]
    for slug, kind in (("supervised", PolicyKind.SUPERVISED), ("reinforced", PolicyKind.REINFORCED)):
        digest = slug[0] * 64
        made.append(
            create_policy(
                slug=slug,
                title=slug,
                kind=kind,
                parent=made[-1],
                adapter=f"runs/{slug}",
                adapter_sha256=digest,
                **common,
            )
        )
    return made
