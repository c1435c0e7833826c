"""The words between a worker and process 1 of its sandbox.

A request is a marshalled dict behind a 4-byte length (only the worker is trusted to send those); a reply is a fixed
header and two byte strings.
"""

import struct

REQUEST_LENGTH = struct.Struct("<I")
REPLY = struct.Struct("<iBBdII")  # exit code, flags, limit, seconds, length of stdout, length of stderr
TIMED_OUT, TRUNCATED = 1, 2
LIMITS = ("", "memory", "cpu", "processes", "disk", "output")
HELLO = b"R"
