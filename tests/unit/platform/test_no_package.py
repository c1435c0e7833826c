"""`platform/` is a folder on the path, never a package: it would shadow Python's own module."""

import platform

from ratchet.env import ROOT


def test_platform_is_no_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert platform.system() == "Linux"
