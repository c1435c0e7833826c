#!/bin/sh
# Installs SGLang for CPU into a virtual environment of its own: `install.sh FOLDER PIP`, with PIP the python whose pip
# installs (it must know --python, pip 22.3 or newer). A second call with the same files does nothing.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder="$1"
pip="$2"

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

pip_install() {
    "$pip" -m pip --python "$folder/bin/python" install --quiet --no-input "$@" ||
        fail "pip could not install: $*. Check the network and the disk (4 GB are needed), then run the same command again."
}

want=$(cat "$here"/install.sh "$here"/requirements*.txt "$here"/site/*.py | cksum)
[ "$(cat "$folder/installed" 2>/dev/null)" = "$want" ] && exit 0
printf 'ratchet: installing SGLang for CPU into %s (about 3 minutes and 3.5 GB) …\n' "$folder"
"$pip" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || fail "$pip is not Python 3.11"
"$pip" -m venv --without-pip --clear "$folder" || fail "$folder could not be made"
# On PyPI, torch for Linux brings CUDA along: TORCH_INDEX, the address of PyTorch's CPU wheels, avoids that.
pip_install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' "$here/requirements.txt")"
pip_install -r "$here/requirements.txt"
pip_install --no-deps -r "$here/requirements-no-deps.txt"
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp "$here"/site/*.py "$site"
printf 'import torchvision_operators\n' >"$site/torchvision_operators.pth"
printf '%s' "$want" >"$folder/installed"
