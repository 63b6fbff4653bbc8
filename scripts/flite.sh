#!/usr/bin/env bash
# Makes sure that flite is installed, which speaks the recordings that one application listens to.
# Exit code 3: this machine gives us no way to install it.
set -euo pipefail

say() { printf 'everstream: %s\n' "$*" >&2; }

command -v flite >/dev/null && exit 0

sudo=
if [ "$(id -u)" -ne 0 ]; then
  sudo="sudo -n"
  if ! { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; then
    say "flite is not installed and this user may not install it; what needs speech is skipped. Run 'apt-get install flite' as root to have it."
    exit 3
  fi
fi
if ! command -v apt-get >/dev/null; then
  say "flite is not installed and there is no apt-get; what needs speech is skipped."
  exit 3
fi

say "installing flite from Debian's packages, once ..."
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get -o DPkg::Lock::Timeout=240 -qq update
$sudo apt-get -o DPkg::Lock::Timeout=240 -qq install -y --no-install-recommends flite >/dev/null
command -v flite >/dev/null || { say "apt-get installed flite, but there is no such command."; exit 1; }
