"""What a script or an image may install here, because it is there already: names, and who asks for more. Pure."""

import re
import shlex

PACKAGES = frozenset({"pytest", "pytest-json-ctrf"})
# Of the system: what every sandbox has, and what would only serve to fetch.
SYSTEM_PACKAGES = frozenset(
    {
        "apt-transport-https", "bash", "ca-certificates", "coreutils", "curl", "diffutils",
        "findutils", "gnupg", "grep", "gzip", "procps", "python-is-python3", "python3", "python3-minimal",
        "python3-pip", "python3-venv", "sed", "tar", "util-linux", "wget",
    }
)  # fmt: skip
_VALUED = frozenset({"-p", "--python", "-i", "--index-url", "--extra-index-url", "-o", "-t", "--target"})


def unfit_package(words: str, known: frozenset[str]) -> str:
    """The first package among the words of an install that is not known; empty where there is none."""
    try:
        rest = shlex.split(words)
    except ValueError:
        return words.strip()
    while rest:
        word = rest.pop(0)
        if word in ("-r", "--requirement", "-e", "--editable", "-c"):
            return " ".join([word, *rest[:1]])
        if word in _VALUED:
            rest = rest[1:]
        elif not word.startswith("-") and re.split(r"[=<>~!\[@ ]", word)[0].lower() not in known:
            return word
    return ""
