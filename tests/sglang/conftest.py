"""Tests against a real SGLang. `make test-sglang` runs these; without its virtual environment there are none."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sglang import server

if not server.FOLDER:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="package")
def smollm2() -> Path:
    return server.model()


@pytest.fixture(scope="package")
def sglang_url(smollm2: Path) -> Iterator[str]:
    with server.sglang(smollm2) as url:
        yield url
