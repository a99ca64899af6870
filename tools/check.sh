# shellcheck shell=bash
# The long form of the tests, sourced by calandra.sh (which defines root, release, binary, jobs, say, die, install_npm, configure, compile).
# shellcheck disable=SC2154

steps=(format tidy clang gcc-werror asan tsan fuzz property isa aarch64 clients)

check_usage() {
  cat <<'END'
./calandra.sh check [STEP...]   all steps, or those named

format      clang-format 14 has nothing to change
tidy        clang-tidy 14 has nothing to say about src and fuzz
clang       clang 14 builds without a warning and passes all tests
gcc-werror  g++ builds without a warning
asan        all tests under AddressSanitizer and UndefinedBehaviorSanitizer
tsan        the tests that use threads, under ThreadSanitizer
fuzz        every fuzz target with libFuzzer for CALANDRA_FUZZ_SECONDS (60)
property    all property tests with CALANDRA_PROPERTY_CASES (1000) random cases each
isa         the tests of every room above the kernels with each instruction set this processor has
aarch64     cross build; the tests of base, tensor and kernels under qemu
clients     more npm clients of the server (tests/clients/more), a coding agent, and the web page in Chromium: pictures in build/check/page
END
}

# Clang's build directories share these options.
clang_options=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=clang++-14 -DCALANDRA_TESTS=ON)

# test_in DIRECTORY [ctest option...]
test_in() {
  local directory=$1
  shift
  (cd "$directory" && ctest --output-on-failure --timeout 3600 -j "$jobs" "$@")
}

# Our C++ files below the given folders.
sources_in() { (cd "$root" && find "$@" -name node_modules -prune -o \( -name '*.h' -o -name '*.inl' -o -name '*.cpp' \) -print | sort); }

step_format() {
  (cd "$root" && sources_in src tests fuzz bench | xargs clang-format-14 --dry-run -Werror) || {
    say "to change them: clang-format-14 -i FILE..."
    return 1
  }
}

step_tidy() {
  configure "$root/build/clang" "${clang_options[@]}" -DCALANDRA_BENCH=ON -DCALANDRA_WERROR=ON
  (cd "$root" && sources_in src fuzz | grep '\.cpp$' |
    xargs -P "$jobs" -n 1 clang-tidy-14 -p build/clang --quiet --warnings-as-errors='*')
}

step_clang() {
  configure "$root/build/clang" "${clang_options[@]}" -DCALANDRA_BENCH=ON -DCALANDRA_WERROR=ON
  compile "$root/build/clang"
  test_in "$root/build/clang"
}

step_gcc-werror() {
  configure "$root/build/gcc-werror" -DCALANDRA_UNITY=ON -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=g++ \
    -DCALANDRA_BENCH=ON -DCALANDRA_WERROR=ON
  compile "$root/build/gcc-werror"
}

step_asan() {
  configure "$root/build/asan" "${clang_options[@]}" -DCALANDRA_UNITY=ON -DCALANDRA_SANITIZE=address,undefined
  compile "$root/build/asan"
  test_in "$root/build/asan"
}

step_tsan() {
  configure "$root/build/tsan" "${clang_options[@]}" -DCALANDRA_UNITY=ON -DCALANDRA_SANITIZE=thread
  compile "$root/build/tsan" test_base test_cache test_model test_engine test_serve
  # Without randomised addresses: this ThreadSanitizer does not know the layouts of newer kernels.
  (cd "$root/build/tsan" && setarch -R ctest --output-on-failure --timeout 3600 -j "$jobs" -R '^(base|cache|model|engine|serve)$')
}

# The corpus is copied: what a run finds stays in build/fuzz/corpus until someone keeps it. (xargs puts no {} into the name
# of the command itself, so that name is an argument of env.)
step_fuzz() {
  local build=$root/build/fuzz name
  configure "$build" "${clang_options[@]}" -DCALANDRA_UNITY=ON -DCALANDRA_FUZZ=ON
  compile "$build" fuzz
  for name in $(sources_in fuzz | sed -n 's#^fuzz/\([a-z_]*\)\.cpp$#\1#p' | grep -v '^standalone'); do
    mkdir -p "$build/corpus/$name"
    cp -n "$root/fuzz/corpus/$name"/* "$build/corpus/$name/"
    printf '%s\0' "$name"
  done | xargs -0 -P "$jobs" -I{} env "$build/fuzz/fuzz_{}" -max_total_time="${CALANDRA_FUZZ_SECONDS:-60}" -timeout=10 \
    -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 -artifact_prefix="$build/{}-" "$build/corpus/{}"
}

step_property() {
  release_with_tests
  promtool_in "$root/build/check/prometheus"
  CALANDRA_LONG_TESTS=1 RC_PARAMS="max_success=${CALANDRA_PROPERTY_CASES:-1000}" test_in "$release" -E '^fuzz_'
}

step_isa() {
  local isa
  local -a isas=(scalar)
  ! grep -qw avx2 /proc/cpuinfo || isas+=(avx2)
  ! grep -qw avx512dq /proc/cpuinfo || isas+=(avx512)
  ! grep -qw avx512_bf16 /proc/cpuinfo || isas+=(avx512bf16)
  release_with_tests
  for isa in "${isas[@]}"; do
    say "CALANDRA_ISA=$isa"
    CALANDRA_ISA=$isa test_in "$release" -R '^(model|engine|cli)'
  done
}

step_aarch64() {
  local build=$root/build/aarch64
  arm64_libraries "$build/root"
  configure "$build" -DCMAKE_TOOLCHAIN_FILE="$root/cmake/aarch64.cmake" -DCALANDRA_ARM64_ROOT="$build/root" \
    -DCMAKE_BUILD_TYPE=Release -DCALANDRA_TESTS=ON -DCALANDRA_WERROR=ON
  compile "$build" test_base test_tensor test_kernels
  test_in "$build" -R '^(base|tensor|kernels)$'
}

step_clients() {
  configure "$release" -DCMAKE_BUILD_TYPE=Release -DCALANDRA_UNITY=ON -DCALANDRA_TESTS=ON
  compile "$release" calandra
  install_npm tests/clients/more
  CALANDRA_PICTURES=$root/build/check/page "$root/tests/clients/run.sh" "$binary" more
}

# Prometheus' checker of metrics, for a test that wants it, out of a package that is not installed: it would start a server.
promtool_in() {
  local into=$1
  [[ -x $into/usr/bin/promtool ]] || {
    mkdir -p "$into"
    (cd "$into" && apt-get -q -o Acquire::Retries=3 download prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb)
  }
  PATH=$into/usr/bin:$PATH
}

# arm64_libraries DIRECTORY: the arm64 files of the libraries we use, unpacked into DIRECTORY. apt works on a state of
# its own, so that the machine's own list of architectures and packages stays as it is.
arm64_libraries() {
  local into=$1 apt=$root/build/aarch64/apt
  local -a options=(-q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$apt"
    -o Dir::State::status="$apt/status" -o Dir::Cache="$apt" -o Acquire::Retries=3)
  [[ ! -f $into/.complete ]] || return 0
  rm -rf "$into"
  mkdir -p "$into" "$apt/lists/partial" "$apt/archives/partial"
  touch "$apt/status"
  apt-get "${options[@]}" update
  (cd "$apt/archives" && apt-get "${options[@]}" download libboost1.81-dev libcli11-dev libedit-dev libfmt-dev libfmt9 libgmock-dev \
    libgtest-dev libpcre2-dev libpcre2-8-0 librapidcheck-dev libsimdjson-dev libsimdjson14 libssl-dev libssl3 \
    libutf8proc-dev libutf8proc2 libxxhash-dev libxxhash0 nlohmann-json3-dev)
  for package in "$apt/archives"/*.deb; do dpkg -x "$package" "$into"; done
  touch "$into/.complete"
}

release_with_tests() {
  configure "$release" -DCMAKE_BUILD_TYPE=Release -DCALANDRA_UNITY=ON -DCALANDRA_TESTS=ON
  compile "$release"
}

check_main() {
  local logs=$root/build/check step start failed=0 result
  local -a chosen=("$@") table=()
  [[ $# -gt 0 ]] || chosen=("${steps[@]}")
  for step in "${chosen[@]}"; do
    [[ " ${steps[*]} " == *" $step "* ]] || die "check: no step '$step'; the steps are: ${steps[*]}"
  done
  install_packages check
  install_npm tests/clients
  mkdir -p "$logs"
  for step in "${chosen[@]}"; do
    say "== $step"
    start=$SECONDS
    # A process of its own: `set -e` has no effect inside the condition of an `if`.
    result=0
    (set -e; "step_$step") >"$logs/$step.log" 2>&1 &
    wait $! || result=1
    if [[ $result == 0 ]]; then
      table+=("$(printf '%-11s pass %6d s' "$step" $((SECONDS - start)))")
    else
      failed=1
      table+=("$(printf '%-11s FAIL %6d s  build/check/%s.log' "$step" $((SECONDS - start)) "$step")")
      tail -n 60 "$logs/$step.log" >&2
    fi
  done
  say
  say "step        result  time"
  printf '%s\n' "${table[@]}" >&2
  return $failed
}
