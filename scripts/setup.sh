#!/usr/bin/env bash
# Sets up a fresh machine: Java, a virtual environment, and pinned Python packages.
#   scripts/setup.sh report     the library and what the demo needs
#   scripts/setup.sh lab        the library and the laboratory: benchmarks and applications
#   scripts/setup.sh docs       what builds the documentation, without Java
#   scripts/setup.sh dev        both, and all that tests and tools need
set -euo pipefail
wanted=${1:-dev}
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
cd "$(dirname "$0")/.."

fail() { printf 'everstream setup: %s\n' "$*" >&2; exit 1; }

[ "$wanted" = docs ] || scripts/java.sh || fail "Spark needs Java 17 or newer: install it, or set JAVA_HOME, and run this again."

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  || fail "Python 3.11 or newer is needed: run 'make setup PYTHON=/path/to/python3.11'."
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV" \
  || fail "cannot make a virtual environment: install python3-venv and run this again."
case $wanted in
  lab) packages=(-e . -e ./lab) ;;
  dev) packages=(-e ".[dev]" -e "./lab[joblib,dask]") ;;
  *) packages=(-e ".[$wanted]") ;;
esac
echo "Installing the Python packages of '$wanted' (once) ..."
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "${packages[@]}" \
  || fail "pip could not install the packages; its message is above."
