# shellcheck shell=bash disable=SC2034
# Sourced by the scripts, after hrm_setup. hrm_build [TARGET...] configures $HRM_BUILD and builds it.

# Two gigabytes for each compiler: files with torch headers take up to 1.5.
_build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { printf "%d", $2 / (2 * 1048576) }' /proc/meminfo)
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
  if [[ -e $cache && $HRM_CUDA_ON == ON ]] && grep -q '^CMAKE_CUDA_COMPILER:' "$cache" &&
    ! grep -q "^CMAKE_CUDA_COMPILER:[A-Z]*=$HRM_NVCC\$" "$cache"; then
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

hrm_build() {
  # Other clones of the project find what was compiled here (23 of 23 files in a trial): paths below the base directory
  # count as relative ones.
  export CCACHE_BASEDIR=$HRM_ROOT CCACHE_NOHASHDIR=1
  step "configuring ${HRM_BUILD#"$HRM_ROOT"/}/ (CUDA $HRM_CUDA_ON)" _configure
  local jobs what=${*:-everything}
  jobs=$(_build_jobs)
  step "building $what with $jobs jobs" cmake --build "$HRM_BUILD" -j "$jobs" ${@:+--target "$@"}
}
