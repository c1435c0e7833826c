"""The words between a worker and process 1 of its container. What crosses is calls and, where granted, network traffic.

Each frame carries a keyed hash over its direction, its number and its kind, which no process of the policy can make.
"""

import struct

KEY_BYTES, HASH_BYTES = 32, 16
FRAME = struct.Struct("<BI16s")  # kind, length, keyed hash
CALLS, NETWORK = 0, 1  # requests and replies; connections to the worker's proxy
OUTWARDS, INWARDS = b"<", b">"
HASHED = struct.Struct("<cQB")  # direction, number, kind: what is hashed before the data

RELAY = struct.Struct("<BI")  # what is said, of which connection; bytes of it follow DATA, a number of them CREDIT
OPEN, DATA, END, CLOSE, CREDIT = range(5)
COUNT = struct.Struct("<I")
WINDOW = 128 * 2**10  # bytes of a connection that one side may have sent and the other not yet passed on
CHUNK = 32 * 2**10

ENTRY = struct.Struct("<BII")  # of a snapshot: kind, length of path, length of data
FILE, REFUSED = 0, 1

FORGED, UNFIT = 65, 69  # exit codes of the server
