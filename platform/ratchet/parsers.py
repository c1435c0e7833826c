"""Request bodies of the API."""

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from ratchet.strict_json import StrictJsonError, loads


class StrictJSONParser(JSONParser):
    """JSON whose text can be stored; anything else is a 400 that says what is wrong."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            return loads(stream.read())
        except StrictJsonError as error:
            raise ParseError(f"The body is {error}." if str(error).startswith("n") else f"The body {error}.") from error
