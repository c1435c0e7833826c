"""Settings of tests: a PostgreSQL of their own in a temporary folder, in-memory broker and channel layer.

The server itself is started by tests/conftest.py, and only when a test needs the database.
"""

import os
import secrets
import tempfile

os.environ["RATCHET_ENV"] = "test"
if "RATCHET_HOME" not in os.environ:
    # Named here, made by the first server that starts: most uses of these settings need none.
    os.environ["RATCHET_HOME"] = f"{tempfile.gettempdir()}/ratchet-test-{secrets.token_hex(8)}"
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and not os.environ["RATCHET_HOME"].endswith(f"-{worker}"):
    os.environ["RATCHET_HOME"] += f"-{worker}"  # servers of its own for each process of a parallel run

from ratchet.settings.base import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
CELERY_BROKER_URL = "memory://"
CACHES["shared"] = CACHES["default"]
RATCHET_RATES = dict.fromkeys(RATCHET_RATES, 1_000_000)
DATABASES["default"]["OPTIONS"].pop("pool")  # the test database is dropped at the end: no connection may linger
STATIC_ROOT = None
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = True
STATICFILES_DIRS = [entry for entry in STATICFILES_DIRS if isinstance(entry, tuple) or entry.exists()]
