#!/usr/bin/env bash
# Sets up a fresh machine: Java 17 or newer, a virtual environment, the pinned Python packages.
set -euo pipefail
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}

fail() { printf 'everstream setup: %s\n' "$*" >&2; exit 1; }

java_major() {
  local java=java
  [ -n "${JAVA_HOME:-}" ] && java="$JAVA_HOME/bin/java"
  "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

install_java() {
  command -v apt-get >/dev/null || return 1
  local sudo=
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null && sudo -n true 2>/dev/null || return 1
    sudo="sudo -n"
  fi
  echo "Installing Java 17 ..."
  $sudo apt-get update -qq && $sudo apt-get install -y -qq openjdk-17-jre-headless >/dev/null
}

major=$(java_major || true)
if [ "${major:-0}" -lt 17 ]; then
  install_java || fail "Spark needs Java 17 or newer: install it (for example 'apt-get install openjdk-17-jre-headless') and run this again."
fi

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  || fail "Python 3.11 or newer is needed: run 'make setup PYTHON=/path/to/python3.11'."
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV" \
  || fail "cannot make a virtual environment: install python3-venv and run this again."
echo "Installing the Python packages (once, about two minutes) ..."
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' \
  || fail "pip could not install the packages; its message is above."
