"""The client's types are those of the API as it is."""

import pytest
from django.core.management import call_command

from generate_types import TYPES, generate_types


def test_the_generated_types_are_current(tmp_path) -> None:
    pytest.importorskip("datamodel_code_generator", reason="of requirements-dev.txt: make install-dev")
    schema = tmp_path / "schema.json"
    call_command("spectacular", format="openapi-json", file=str(schema))
    assert generate_types(schema.read_bytes()) == TYPES.read_bytes(), "run: make client-types"
