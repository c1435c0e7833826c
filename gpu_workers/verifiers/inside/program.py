"""Runs a verifier program: `verify(episode)`, or a class `Verifier` with that method."""

from __future__ import annotations

import json
from typing import Any


def tell() -> None:
    """Called by a probe that a program has executed in this process."""
    from gpu_workers.verifiers.inside import pipes

    pipes.note("in_check", "a probe")


def call(arguments: dict) -> str:
    """The program's result with the nonce, as JSON."""
    namespace: dict[str, Any] = {"__name__": "verifier"}
    import ratchet_verifier  # type: ignore[import-not-found]  # sdk.py under the name that programs know

    from gpu_workers.verifiers.inside import guest, pipes, remote
    from gpu_workers.verifiers.inside.clock import WATCH

    pipes.SHOWN[:] = arguments["shown"]
    WATCH.install()
    namespace["run_python"] = ratchet_verifier.run_python
    exec(compile(arguments["program"], "<verifier>", "exec"), namespace)  # noqa: S102  the task author's program
    verify = namespace.get("verify")
    if verify is None and isinstance(namespace.get("Verifier"), type):
        verify = namespace["Verifier"]().verify
    if not callable(verify):
        raise TypeError("the verifier program defines no function verify(episode)")
    guest.watch(arguments["episode"])
    try:
        result = verify(arguments["episode"])
    except remote.Tampered as tampered:
        result = ratchet_verifier.failed(str(tampered), reason_code="TAMPER_DETECTED")
    except remote.TooMuch as large:
        result = ratchet_verifier.failed(str(large), reason_code="RESOURCE_LIMIT")
    except Exception as error:
        remote.close_all()
        if not pipes.SEEN:
            raise
        crashed = {"crashed": f"{type(error).__name__}: {error}", "seen": pipes.SEEN}
        return json.dumps({"nonce": arguments["nonce"], "result": crashed})
    remote.close_all()
    if type(result) is not dict:
        raise TypeError("verify() must return a dict with a score, got " + type(result).__name__)
    result["rests_on"] = remote.rests_on()
    result["seen"] = pipes.SEEN
    return json.dumps({"nonce": arguments["nonce"], "result": result})
