# For scripts that install a package of Debian; read with `source`.
# Exit code 3: this machine gives us no way to install it.

say() { printf 'everstream: %s\n' "$*" >&2; }

# need_apt NAME PACKAGE LOSS: sets $sudo; leaves, saying what is lost, where nothing can be installed.
need_apt() {
  sudo=
  if [ "$(id -u)" -ne 0 ]; then
    sudo="sudo -n"
    if ! { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; then
      say "$1 is not installed and this user may not install it; $3. Run 'apt-get install $2' as root to have it."
      exit 3
    fi
  fi
  if ! command -v apt-get >/dev/null; then
    say "$1 is not installed and there is no apt-get; $3."
    exit 3
  fi
  say "installing $1 from Debian's packages, once ..."
}

apt() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=240 -qq "$@"; }

# apt_refresh: the lists of packages, once in a script.
apt_refresh() {
  [ -n "${refreshed:-}" ] || apt update
  refreshed=yes
}

# can_be_had PACKAGE: whether the lists have it.
can_be_had() { [[ $(apt-cache policy "$1") == *"Candidate: "[!\(]* ]]; }

apt_install() {
  apt_refresh
  apt install -y --no-install-recommends "$1" >/dev/null
}
