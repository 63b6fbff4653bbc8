#!/usr/bin/env bash
# Makes sure that flite is installed, which speaks the recordings that one application listens to.
# Exit code 3: this machine gives us no way to install it.
set -euo pipefail
source "$(dirname "$0")/debian.sh"

command -v flite >/dev/null && exit 0

need_apt flite flite "what needs speech is skipped"
apt_install flite
command -v flite >/dev/null || { say "apt-get installed flite, but there is no such command."; exit 1; }
