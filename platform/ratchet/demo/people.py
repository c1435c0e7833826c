"""The demo's logins and tokens: made once, kept in RATCHET_HOME, printed at every start."""

import json
import secrets
from pathlib import Path

from apps.accounts.bootstrap import PEOPLE, bootstrap_installation
from apps.accounts.models import User
from apps.accounts.services import issue_token


def ensure_people(projects: dict[str, str], secrets_folder: Path) -> dict[str, str]:
    """Projects and people exist afterwards; returns the password of each."""
    path = secrets_folder / "demo-logins.json"
    if path.exists():
        passwords: dict[str, str] = json.loads(path.read_text())
    else:
        passwords = {name: secrets.token_urlsafe(9) for name in PEOPLE}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(passwords))
    bootstrap_installation(projects=projects, passwords=passwords)
    return passwords


def day_token(username: str) -> str:
    """A token for one demo: it expires after a day."""
    user = User.objects.get(username=username)
    return issue_token(user=user, name="demo", by=None, days=1).secret
