#!/usr/bin/env bash
# Makes sure that Chromium and its driver are installed for the tests of the page and its pictures.
# Exit code 3: this machine gives us no way to install them.
set -euo pipefail
source "$(dirname "$0")/debian.sh"

is_there() { command -v chromium >/dev/null && command -v chromedriver >/dev/null; }

is_there && exit 0

need_apt Chromium "chromium chromium-driver" "the tests of the page, which look for chromium and chromedriver, are skipped"
# The driver's package brings the browser of the same version.
apt_install chromium-driver
is_there || { say "apt-get installed chromium-driver, but chromium and chromedriver are not both there."; exit 1; }
