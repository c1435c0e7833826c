"""What the text of an answer is held to, as SGLang's sampling_params name it."""

from dataclasses import dataclass
from enum import StrEnum


class ConstraintKind(StrEnum):
    """Values are SGLang's parameter names."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF = "ebnf"
    STRUCTURAL_TAG = "structural_tag"  # xgrammar's: literal text around parts under schemas, as JSON


@dataclass(frozen=True)
class Constraint:
    """`text` is the schema or tag as JSON, the pattern, or the grammar.

    Log-probs of an answer under one are of the constrained distribution: not those of the policy alone.
    """

    kind: ConstraintKind
    text: str
