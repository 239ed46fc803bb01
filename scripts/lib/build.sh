# shellcheck shell=bash disable=SC2034
# Sourced by the scripts, after hrm_setup. hrm_build [TARGET...] configures $HRM_BUILD and builds it.

# Files with torch headers take up to 1.5 GB.
readonly HRM_GB_PER_COMPILER=3

# As many as there are cores, and as many as fit into memory.
_build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk -v gb="$HRM_GB_PER_COMPILER" '/^MemAvailable/ { printf "%d", $2 / (gb * 1048576) }' /proc/meminfo)
  ((memory < 1)) && memory=1
  echo $((cores < memory ? cores : memory))
}

_configure() {
  local cache=$HRM_BUILD/CMakeCache.txt
  # CMake refuses a folder that was configured elsewhere: the project was moved or copied.
  if [[ -e $cache ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$HRM_ROOT" "$cache"; then
    rm -rf "$cache" "$HRM_BUILD/CMakeFiles"
  fi
  # nor another compiler than the first one.
  local nvcc=""
  if [[ -e $cache ]]; then nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' "$cache"); fi
  if [[ $HRM_CUDA_ON == ON && -n $nvcc && $nvcc != "$HRM_NVCC" ]]; then
    rm -rf "$cache" "$HRM_BUILD/CMakeFiles"
  fi
  local args=(-S "$HRM_ROOT" -B "$HRM_BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release "-DHRM_CUDA=$HRM_CUDA_ON"
    "-DHRM_CUDA_ARCHS=${HRM_CUDA_ARCHS:-}" "-DHRM_SITE_PACKAGES=$HRM_SITE_PACKAGES")
  if [[ $HRM_CUDA_ON == ON ]]; then args+=("-DCMAKE_CUDA_COMPILER=$HRM_NVCC"); fi
  local log=$HRM_BUILD/configure.log
  mkdir -p "$HRM_BUILD"
  if ! cmake "${args[@]}" >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    die 3 "CMake could not configure the build; its messages stand above"
  fi
}

hrm_configure() {
  # Other clones of the project find what was compiled here (23 of 23 files in a trial): paths below the base directory
  # count as relative ones.
  export CCACHE_BASEDIR=$HRM_ROOT CCACHE_NOHASHDIR=1
  step "configuring ${HRM_BUILD#"$HRM_ROOT"/}/ (CUDA $HRM_CUDA_ON)" _configure
}

# With HRM_BUILD_SECONDS it ends after that time.
_compile() {
  local code=0
  ${HRM_BUILD_SECONDS:+timeout "$HRM_BUILD_SECONDS"} cmake --build "$HRM_BUILD" "$@" || code=$?
  if [[ -n ${HRM_BUILD_SECONDS:-} ]] && ((code == 124)); then
    die 75 "the build did not end in time; what was built is kept, so start again to go on"
  fi
  return "$code"
}

# hrm_compile [TARGET...], after hrm_configure.
hrm_compile() {
  local jobs what=${*:-everything}
  jobs=$(_build_jobs)
  step "building $what with $jobs jobs" _compile -j "$jobs" ${@:+--target "$@"}
}

hrm_build() {
  hrm_configure
  hrm_compile "$@"
}
