#!/usr/bin/env bash
# Runs `make demo` and `make test` where nothing of ours has ever been: in minimal Debian roots that have
# python3, python3-venv, make, git and ca-certificates, and a clone of this repository.
#   scripts/fresh_machine.sh "bookworm trixie" "demo test"
# The roots reach package registries as this machine does: its settings for pip, apt and Maven, its proxies
# and its certificates are copied, and what pip and apt fetch is kept for the next time in
# ~/.cache/everstream/fresh-machine, as are the bare roots, for a week.
# Exit code 3: this machine gives us no way to make such a root.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
PACKAGES=python3,python3-venv,make,git,ca-certificates
HOME=${HOME:-/root}
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/everstream/fresh-machine
# How a machine tells programs to reach the network; a file that one of them names is copied, too.
PASSED='^(PIP_[A-Z_]*|[A-Za-z]*_(proxy|PROXY)|[A-Z0-9_]*(CA_BUNDLE|CERT_FILE|CERT_DIR|CAINFO)|MAVEN_(OPTS|ARGS)|CI)='
mapfile -d '' passed < <(env -0 | grep -zE "$PASSED" | grep -zv '^PIP_CACHE_DIR=')
source "$here/scripts/debian.sh"

skip() { say "fresh machines are skipped: $*"; exit 3; }

# Outside: makes the root, and enters it in separate namespaces, so that whatever happens no mount
# and no process is left.
main() {
  [ "$(id -u)" -eq 0 ] || skip "only root can make one. Run 'sudo make fresh-machine'."
  unshare --mount --pid --fork true 2>/dev/null || skip "root may not mount anything here, as in most containers."
  command -v debootstrap >/dev/null || { need_apt debootstrap debootstrap "fresh machines are skipped"; apt_install debootstrap; }
  mkdir -p "$CACHE"
  work=$(mktemp -d -p "${TMPDIR:-/var/tmp}") # a root and its packages take 3 GB
  trap 'rm -rf --one-file-system "$work"' EXIT
  for release in $1; do
    root="$work/$release"
    make_root "$release" "$root"
    copy_settings "$root"
    "$here/scripts/clone.sh" "$root/root/everstream"
    for target in $2; do
      say "$release: make $target ..."
      began=$SECONDS
      unshare --mount --pid --fork --kill-child "$0" --inside "$release" "$root" \
        env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "${passed[@]}" \
        sh -ec 'make -C /root/everstream "$0"; python3 --version; java -version' "$target" </dev/null
      say "$release: make $target took $((SECONDS - began)) s and succeeded."
    done
    rm -rf --one-file-system "$root"
  done
}

make_root() { # RELEASE ROOT
  local mirror made bare
  bare="$CACHE/$1-$(date +%G-%V).tar.gz"
  if [ ! -e "$bare" ]; then
    say "$1: making a minimal root with debootstrap ..."
    rm -f "$CACHE/$1"-*.tar.gz
    # The mirror that this machine has its own Debian from; debootstrap knows another.
    mirror=$({ apt-get indextargets --format '$(LABEL) $(REPO_URI)' || true; } | awk '$1 == "Debian" && !found++ {print $2}')
    made="$work/made"
    debootstrap --variant=minbase --include="$PACKAGES" "$1" "$made" ${mirror:+"$mirror"} >"$work/log" 2>&1 \
      || { tail -n 20 "$work/log" >&2; say "$1: debootstrap failed."; exit 1; }
    rm -rf "$made"/var/cache/apt/archives/*.deb
    tar -C "$made" -c . | gzip -1 >"$bare.$$"
    mv "$bare.$$" "$bare"
    mv "$made" "$2"
    return
  fi
  mkdir "$2"
  tar -C "$2" -xpzf "$bare"
}

copy_settings() { # ROOT
  local path entry
  for path in /etc/hosts /etc/resolv.conf /etc/pip.conf /usr/local/share/ca-certificates \
    "$HOME/.config/pip" "$HOME/.pip" "$HOME/.m2/settings.xml"; do
    copy "$path" "$1${path/#"$HOME"/\/root}"
  done
  chroot "$1" update-ca-certificates >/dev/null 2>&1
  for entry in "${passed[@]}"; do
    path=${entry#*=}
    [[ $path != /* || -e "$1$path" ]] || copy "$path" "$1$path"
  done
  apt-config dump 2>/dev/null | grep -E '^Acquire::(https?|Check|Retries|ForceIPv)' >"$1/etc/apt/apt.conf.d/99machine" || true
}

copy() { # FROM TO: a file or folder, if it is there
  [ -e "$1" ] || return 0
  mkdir -p "$(dirname "$2")"
  cp -rLT --remove-destination "$1" "$2"
}

# Inside: the file systems that a machine has, then the command.
inside() { # RELEASE ROOT COMMAND...
  local root=$2 pip_cache apt_cache="$CACHE/apt-$1"
  shift 2
  pip_cache=$(python3 -m pip cache dir 2>/dev/null || echo "$HOME/.cache/pip")
  mkdir -p "$pip_cache" "$apt_cache/partial" "$root/root/.cache/pip"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount --bind "$pip_cache" "$root/root/.cache/pip"
  mount --bind "$apt_cache" "$root/var/cache/apt/archives"
  chroot "$root" "$@" # no exec: this shell is the first process, which buries orphans
}

if [ "${1:-}" = --inside ]; then
  shift
  inside "$@"
else
  main "${1:-bookworm trixie}" "${2:-demo test}"
fi
