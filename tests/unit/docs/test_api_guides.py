"""The guides to the API, accounts and webhooks say what the code does."""

import re
import time

from apps.accounts.models import Role
from apps.accounts.permissions import ROLE_PERMISSIONS, Permission
from apps.webhooks.delivering import BACK_OFF
from apps.webhooks.signing import secret_of, signature
from ratchet.env import ROOT
from ratchet.problems import _CODES

GUIDES = ROOT / "docs" / "guides"


def _raised() -> set[str]:
    """Codes of every Problem that the control plane raises."""
    source = "".join(
        path.read_text() for folder in ("apps", "platform/ratchet") for path in (ROOT / folder).rglob("*.py")
    )
    return set(re.findall(r'Problem\(\s*"([a-z_]+)",\s*\d{3}', source)) | {code for _, code in _CODES}


def test_every_code_is_in_the_guide_and_no_other():
    table = "".join(line for line in (GUIDES / "api.md").read_text().splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([a-z_]+)`", table)) - {"heldout:read"} == _raised()


def test_the_table_of_rights_is_that_of_the_roles():
    rows = re.findall(r"^\| `([\w:]+)` \|(.*)\|$", (GUIDES / "accounts.md").read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == list(Permission)
    for name, cells in rows:
        held = [bool(cell.strip()) for cell in cells.split("|")]
        assert held == [name in ROLE_PERMISSIONS[role] for role in Role.values], name


def test_the_guide_checks_signatures_as_they_are_made():
    code = re.search(r"```python\n(.*?)```", (GUIDES / "webhooks.md").read_text(), re.DOTALL)
    assert code is not None
    scope: dict = {}
    exec(code[1], scope)
    secret, body, now = secret_of(ROOT, 1), b'{"type":"run:submit"}', int(time.time())  # any id does
    headers = {"webhook-id": "1", "webhook-timestamp": str(now), "webhook-signature": signature(secret, "1", now, body)}
    assert scope["is_ours"](secret, headers, body)
    assert not scope["is_ours"](secret, headers, body + b" ")
    assert not scope["is_ours"](secret_of(ROOT, 2), headers, body)
    assert not scope["is_ours"](secret, {**headers, "webhook-timestamp": str(now - 600)}, body)


def test_the_pauses_between_attempts():
    assert [seconds / 60 for seconds in BACK_OFF[:4]] == [10 / 60, 1, 5, 30]
    assert [seconds / 3600 for seconds in BACK_OFF[4:]] == [2, 5, 10, 20]
    assert "10 s, 1, 5, 30 min, 2, 5, 10 and 20 h" in (GUIDES / "webhooks.md").read_text()
