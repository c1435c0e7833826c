"""Sees how the Pythons of a verifier's script end, and who writes its reward, where the candidate's code runs beside.

`programs` go into the sandbox of a verifier, read-only: a start of Python there is `wrapper`, which runs the check in a
child through `bootstrap`. `overseer` runs the script itself, out of reach of what it starts. `history` looks at the
reward's folder from outside.
"""
