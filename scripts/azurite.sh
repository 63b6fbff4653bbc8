#!/usr/bin/env bash
# Makes sure that Azurite, Microsoft's emulator of Azure Blob Storage, is in .venv/azurite for the tests.
# Exit code 3: this machine gives us no way to install it.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
source "$here/scripts/debian.sh"
VERSION=3.35.0
place="$here/.venv/azurite/$VERSION"

[ -d "$place" ] && exit 0
if ! command -v npm >/dev/null; then
  say "there is no npm here; the tests with Azurite are skipped."
  exit 3
fi
say "fetching Azurite $VERSION with npm, once ..."
mkdir -p "$(dirname "$place")"
work=$(mktemp -d "$place.XXXXXX")
trap 'rm -rf "$work"' EXIT
if ! npm install --prefix "$work" --no-audit --no-fund "azurite@$VERSION" >"$work/log" 2>&1; then
  if grep -qE 'ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN|network' "$work/log"; then
    say "npm cannot reach its registry; the tests with Azurite are skipped."
    exit 3
  fi
  tail -n 20 "$work/log" >&2
  exit 1
fi
mv -T "$work" "$place" 2>/dev/null || [ -d "$place" ] # another process may have been faster
