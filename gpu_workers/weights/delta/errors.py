"""Why a version cannot be written or rebuilt, and whether another way to it may help."""


class DeltaError(RuntimeError):
    """A version that cannot be had; what was served before stays as it is. Says what and where."""


class WrongModel(DeltaError):
    """The version is of another base model, or is not what was asked for: no way to it helps."""


class BadBase(DeltaError):
    """What the deltas start from is not what they were made against, or is damaged: start from a snapshot."""


class BadLink(DeltaError):
    """A version of the chain that is missing, torn or damaged: a way around it may help."""


class NoSpace(DeltaError):
    """The disk cannot hold another copy."""
