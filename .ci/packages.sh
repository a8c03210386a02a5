# Debian packages, by name and release: within a release of the distribution a name stands for one version and its fixes.
# Sourced by ./dev. Tested on Debian 12; the names also exist on Debian 13 and Ubuntu 24.04. What was really installed is in
# build/logs/versions.txt after ./dev test, and in the SBOM beside each package and image.
# Nothing is asked of apt when every package is there, so a second run needs no network.

release() { sed -n 's/^VERSION_CODENAME=//p' /etc/os-release 2>/dev/null; }

# Boost 1.81 or newer: Debian 12's second version, the only one of Debian 13 and Ubuntu 24.04, the default of what is untested.
boost_package() {
  case "$(release)" in
    bookworm) echo libboost1.81-dev ;;
    trixie | noble) echo libboost1.83-dev ;;
    *) echo libboost-dev ;;
  esac
}

build_packages() {
  echo g++ cmake ninja-build pkg-config python3 "$(boost_package)" catch2 \
    libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libssl-dev \
    prometheus-cpp-dev libspdlog-dev libcli11-dev libedit-dev libjpeg-dev libpng-dev zlib1g-dev
}
# systemd: not its daemon, but what it knows of units and of groups of system calls.
# qemu-user and valgrind: processors that this one is not.
test_packages() { echo "$(build_packages)" python3-venv dpkg-dev systemd qemu-user valgrind; }
fuzz_packages() { echo clang libclang-rt-dev; }
browser_packages() { echo chromium; }
neon_packages() { echo g++-aarch64-linux-gnu qemu-user; }

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "dev: packages are missing and neither root nor sudo is at hand; as root run: $*" >&2
    return 1
  fi
}

# The system and the versions of what was asked of it.
package_versions() {
  sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release
  ! command -v dpkg-query >/dev/null || dpkg-query -W -f='${db:Status-Status} ${Package} ${Version}\n' $(test_packages) 2>/dev/null |
    sed -n 's/^installed //p' | sort
}

# need PACKAGE...: installs what is missing. A package list may be older than the mirror, hence update and a retry.
need() {
  local missing=() package attempt
  if ! command -v dpkg-query >/dev/null; then
    echo "dev: no dpkg here; this system must already have the equivalents of: $*" >&2
    return 0
  fi
  for package in "$@"; do installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "dev: installing ${missing[*]}"
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)
  for attempt in 1 2 3; do
    if [ "$attempt" = 1 ] && [ -z "$(find /var/lib/apt/lists -name '*Packages*' -print -quit 2>/dev/null)" ]; then
      as_root "${apt[@]}" update || true
    elif [ "$attempt" != 1 ]; then
      sleep $((attempt * 3))
      as_root "${apt[@]}" update || true
    fi
    if as_root "${apt[@]}" install --no-install-recommends "${missing[@]}"; then return 0; fi
  done
  echo "dev: apt-get could not install packages; as root run: apt-get install --no-install-recommends ${missing[*]}" >&2
  return 1
}
