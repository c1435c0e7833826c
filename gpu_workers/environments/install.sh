#!/bin/sh
# Installs third-party frameworks, each into a virtual environment of its own:
# `install.sh FOLDER PIP [NAME…]`, with PIP the python whose pip installs (it must know --python, pip 22.3 or newer).
# A second call with the same requirement file does nothing.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder="$1"
pip="$2"
shift 2

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# The distribution's Python first: a sandbox's user can reach it wherever this project lies.
find_python() {
    for candidate in /usr/bin/python3.11 /usr/bin/python3 /usr/local/bin/python3.11 python3.11 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 was not found"
}

# Programs under the names that scripts call, before those of the system.
install_tools() {
    mkdir -p "$1"
    cp "$here"/test_tools/stand_ins.py "$here"/test_tools/tool "$1"
    chmod 755 "$1" "$1/tool"
    for tool in apt apt-get curl wget pip pip3 uv uvx pytest py.test python python3; do
        ln -sf tool "$1/$tool"
    done
}

python=$(find_python)
mkdir -p "$folder/packages"
for name in ${*:-reasoning-gym verifiers openenv test-tools}; do
    requirements="$here/requirements-$name.txt"
    [ -f "$requirements" ] || fail "unknown environment '$name': there is no $requirements"
    tools=
    [ "$name" = test-tools ] && tools="$here/test_tools"
    want=$(cat "$requirements" ${tools:+"$tools/tool" "$tools/stand_ins.py"} | cksum)
    mkdir -p "$folder/packages/$name"
    [ "$(cat "$folder/$name/installed" 2>/dev/null)" = "$want" ] && continue
    printf 'ratchet: installing %s into %s …\n' "$name" "$folder/$name"
    "$python" -m venv --without-pip --clear "$folder/$name" || fail "$folder/$name could not be made"
    "$pip" -m pip --python "$folder/$name/bin/python" install --quiet --no-input -r "$requirements" ||
        fail "pip could not install $requirements: check the network and the disk"
    [ -z "$tools" ] || install_tools "$folder/$name/tools"
    printf '%s' "$want" >"$folder/$name/installed"
done
