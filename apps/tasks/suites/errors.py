"""What is wrong with a suite: every problem at once, each with its line and field."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SuiteProblem:
    """`line` 0 is the header; `field` is a dotted path."""

    line: int
    field: str
    message: str

    def __str__(self) -> str:
        where = f"line {self.line}" if self.line else "header"
        return f"{where}, {self.field}: {self.message}" if self.field else f"{where}: {self.message}"


class SuiteError(ValueError):
    """A suite that cannot be imported; nothing of it was."""

    def __init__(self, errors: list[SuiteProblem]) -> None:
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = errors

    @classmethod
    def single(cls, field: str, message: str) -> "SuiteError":
        return cls([SuiteProblem(0, field, message)])
