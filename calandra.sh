#!/usr/bin/env bash
# The one entrance: ./calandra.sh help
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
release=$root/build/release
binary=$release/bin/calandra
jobs=${CALANDRA_JOBS:-$(nproc)}

usage() {
  cat <<'END'
./calandra.sh run [MODEL] [options]   build if needed, then chat in the terminal (without MODEL: the bundled model)
./calandra.sh run -p "TEXT"           print a completion and exit
./calandra.sh serve [MODEL] [options] answer over HTTP, on 127.0.0.1:8080
./calandra.sh build                   build if needed: build/release/bin/calandra
./calandra.sh test                    build and run all tests
./calandra.sh check [STEP...]         everything that must pass before a change is finished; help check lists the steps
./calandra.sh help [COMMAND]          this text, or about one command
./calandra.sh COMMAND ...             any other command of the binary, for example: inspect MODEL

Packages are installed when one is missing (Debian 12; as root or through sudo; the list is packages.txt; npm packages for
tests/clients). CALANDRA_PACKAGES=skip leaves them alone. Builds go to build/, with as many jobs as there are cores, or CALANDRA_JOBS.
END
}

say() { printf '%s\n' "$*" >&2; }
die() { say "calandra.sh: $*"; exit 1; }

# ---------------------------------------------------------------- packages

# Prints the packages of the groups up to $1 (build, test, check), in the order of packages.txt.
packages_upto() {
  local line group=""
  [[ -r $root/packages.txt ]] || die "$root/packages.txt cannot be read"
  while read -r line; do
    case $line in
      "" | "#"*) ;;
      "["*"]")
        [[ $group != "$1" ]] || return 0
        group=${line:1:-1}
        ;;
      *) printf '%s\n' "$line" ;;
    esac
  done <"$root/packages.txt"
}

missing_packages() {
  local wanted
  wanted=$(packages_upto "$1") || exit
  mapfile -t wanted < <(printf '%s\n' "$wanted")
  # What an installed package provides counts: some builds of nodejs bring npm, and conflict with Debian's.
  dpkg-query --show --showformat '${db:Status-Status} ${Package}, ${Provides}\n' |
    sed -n 's/^installed //p' | sed 's/ ([^)]*)//g; s/, */\n/g' | sort -u | comm -13 - <(printf '%s\n' "${wanted[@]}" | sort -u)
}

# Runs apt-get as root, quietly; its output is shown only when it fails.
apt_get() {
  local log=$root/build/packages.log
  local -a as_root=(env)
  [[ $(id -u) == 0 ]] || as_root=(sudo env)
  "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 "$@" \
    </dev/null >"$log" 2>&1 || { tail -n 30 "$log" >&2; return 1; }
}

install_packages() {
  [[ ${CALANDRA_PACKAGES:-} != skip ]] || return 0
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    die "no apt on this system: install the equivalents of $(packages_upto "$1" | paste -sd' '), then set CALANDRA_PACKAGES=skip"
  fi
  local missing
  missing=$(missing_packages "$1") || exit
  mapfile -t missing < <(printf '%s' "$missing")
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if [[ $(id -u) != 0 ]] && ! command -v sudo >/dev/null; then
    die "neither root nor sudo: these packages are missing: ${missing[*]}"
  fi
  say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  mkdir -p "$root/build"
  apt_get update || say "apt-get update failed; trying with the lists that are here"
  apt_get install --yes --no-install-recommends "${missing[@]}" || die "could not install: ${missing[*]}"
}

# install_npm FOLDER: what FOLDER/package-lock.json says, into FOLDER/node_modules, unless it is there. No package's own scripts are run.
# Fails if that cannot be.
install_npm() {
  local folder=$root/$1 log=$root/build/npm.log
  [[ ${CALANDRA_PACKAGES:-} != skip ]] || return 0
  ! cmp -s "$folder/package-lock.json" "$folder/node_modules/.installed" || return 0
  say "Installing the npm packages of $1"
  mkdir -p "$root/build"
  (cd "$folder" && npm ci --ignore-scripts) </dev/null >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    say "could not install the npm packages of $1"
    return 1
  }
  cp "$folder/package-lock.json" "$folder/node_modules/.installed"
}

# ---------------------------------------------------------------- building

# Whether DIRECTORY was configured for this place: paths are compiled in, and a clone may have been moved.
is_of_here() { grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$1/CMakeCache.txt" 2>/dev/null; }

# configure DIRECTORY OPTION...: Ninja and ccache, output only when it fails.
configure() {
  export CCACHE_SLOPPINESS=pch_defines,time_macros  # or ccache takes no file with a precompiled header
  local directory=$1 log
  shift
  is_of_here "$directory" || rm -rf "$directory/CMakeCache.txt" "$directory/CMakeFiles"
  mkdir -p "$directory"
  log=$directory/configure.log
  cmake -S "$root" -B "$directory" -G Ninja -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    return 1
  }
}

# compile DIRECTORY [TARGET...]: on a terminal with ninja's progress line, elsewhere only what goes wrong.
compile() {
  local directory=$1
  shift
  if [[ -t 2 ]]; then
    NINJA_STATUS='[%f/%t, %es] ' ninja -C "$directory" -j "$jobs" "$@" >&2
  else
    ninja -C "$directory" -j "$jobs" --quiet "$@" >&2
  fi
}

# The release binary is up to date when no source is newer than the start of the build that made it.
release_is_current() {
  [[ -x $binary && -f $release/.built ]] && is_of_here "$release" &&
    [[ -z $(find "$root/src" "$root/cmake" "$root/CMakeLists.txt" "$root/packages.txt" -newer "$release/.built" -print -quit) ]]
}

# build_release OPTION TARGET...: configures with OPTION, or, where it is `keep`, leaves the configured directory alone.
build_release() {
  local option=$1
  shift
  mkdir -p "$release"
  touch "$release/.building"
  if [[ $option != keep ]]; then
    configure "$release" -DCMAKE_BUILD_TYPE=Release -DCALANDRA_UNITY=ON "$option" || die "configuring failed"
  fi
  compile "$release" "$@" || die "the build failed"
  mv "$release/.building" "$release/.built"
}

# What `run` needs; the tests, their packages and their time are left to `test`.
build_binary() {
  local option=keep
  ! release_is_current || return 0
  install_packages build
  say "Building calandra (release) with $jobs jobs ..."
  { [[ -f $release/build.ninja ]] && is_of_here "$release"; } || option=-DCALANDRA_TESTS=OFF
  build_release "$option" calandra
}

# ---------------------------------------------------------------- commands

run_tests() {
  local start=$SECONDS
  install_packages test
  install_npm tests/clients || say "the tests of tests/clients will be skipped"
  say "packages: $((SECONDS - start)) s"
  start=$SECONDS
  say "Building calandra and its tests (release) with $jobs jobs ..."
  build_release -DCALANDRA_TESTS=ON all
  say "build: $((SECONDS - start)) s"
  cd "$release"
  exec ctest --output-on-failure --timeout 540 -j "$jobs"
}

case ${1:-help} in
  run)
    build_binary
    exec "$binary" "$@"
    ;;
  build)
    [[ $# == 1 ]] || die "build: found '$2', expected nothing after it"
    build_binary
    ;;
  test)
    [[ $# == 1 ]] || die "test: found '$2', expected nothing after it; ctest --test-dir build/release -R NAME runs some tests"
    run_tests
    ;;
  check)
    shift
    # shellcheck source=tools/check.sh
    source "$root/tools/check.sh"
    case ${1:-} in
      -h | --help) check_usage ;;
      *) check_main "$@" ;;
    esac
    ;;
  help | -h | --help)
    case ${2:-} in
      "" | build | test) usage ;;
      check) exec "$root/calandra.sh" check --help ;;
      *)
        build_binary
        exec "$binary" "$@"
        ;;
    esac
    ;;
  *)
    build_binary
    exec "$binary" "$@"
    ;;
esac
