# shellcheck shell=bash disable=SC2034
# Sourced by the scripts. hrm_setup run|test installs what is missing and sets:
#   HRM_CUDA_ON         ON or OFF: HRM_CUDA with AUTO decided
#   HRM_SITE_PACKAGES   the folder that holds the torch wheel
#   HRM_NVCC            with CUDA: the compiler to use
#   HRM_PYTHON_SET      1 where Python's `import torch` works
# "run" is what hrm_train needs; "test" adds the formatter, mpirun, ip, clang++ and, with CUDA, in CI (CI=true) or by
# HRM_PYTHON_TESTS=ON, the complete torch for Python. Each set has a stamp with the checksum of its pins, so that a second call has nothing
# to do.

readonly HRM_APT_PACKAGES=(g++ ninja-build cmake ccache git ca-certificates python3 python3-venv libcli11-dev
  nlohmann-json3-dev libspdlog-dev libfmt-dev libgtest-dev libxxhash-dev libpcre2-dev libutf8proc-dev
  zlib1g-dev libzstd-dev libcpp-httplib-dev)
# For tests of several ranks, started by mpirun and on nodes of their own (network namespaces), and for the fuzzers (the
# compiler, and the libraries of its sanitizers), all of which are skipped without: left out where this user cannot install.
readonly HRM_APT_PACKAGES_TEST=(openmpi-bin iproute2 clang libclang-rt-dev)
readonly HRM_STAMPS=$HRM_VENV/hrm-setup
readonly HRM_SETUP_LOG=$HRM_BUILD/setup.log

# --- system packages ---------------------------------------------------------------------------------------------

_missing_apt_packages() {
  local package status
  for package in "$@"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == installed ]] || printf '%s ' "$package"
  done
}

_apt_get() { "${HRM_AS_ROOT[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" </dev/null; }

_apt_install() {
  local install=(install -y --no-install-recommends "$@")
  # The package lists that are there may do; when they are absent or old, fetch them and try again.
  if ! _apt_get "${install[@]}" >"$HRM_SETUP_LOG" 2>&1 &&
    ! { _apt_get update && _apt_get "${install[@]}"; } >"$HRM_SETUP_LOG" 2>&1; then
    die 3 "apt-get could not install $*; is the network reachable? Its messages are in $HRM_SETUP_LOG. By hand, as root: apt-get update && apt-get install -y --no-install-recommends $*"
  fi
}

_setup_apt() {
  local -a wanted=("${HRM_APT_PACKAGES[@]}") missing
  if [[ $1 == test ]] && { [[ $(id -u) == 0 ]] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; }; then
    wanted+=("${HRM_APT_PACKAGES_TEST[@]}")
  fi
  if ! command -v dpkg-query >/dev/null; then
    say "not Debian or Ubuntu: the counterparts of these packages are expected: ${wanted[*]}"
    return
  fi
  read -r -a missing <<<"$(_missing_apt_packages "${wanted[@]}")" || true
  if ((${#missing[@]} == 0)); then
    say "system packages: all there"
    return
  fi
  HRM_AS_ROOT=()
  if [[ $(id -u) != 0 ]]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      HRM_AS_ROOT=(sudo -n)
    else
      die 3 "packages are missing and this user cannot install them; ask an administrator to run: apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    fi
  fi
  step "installing system packages: ${missing[*]}" _apt_install "${missing[@]}"
}

# --- Python packages ---------------------------------------------------------------------------------------------

# A Python that the pinned wheels exist for.
_find_python() {
  local candidate
  for candidate in python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
      2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  die 3 "no Python 3.11, 3.12 or 3.13 with the venv module found (needed to fetch the torch wheel); install python3 and python3-venv"
}

# Prints the site-packages folder of the virtual environment; fails where there is none or its Python is gone.
_site_packages() {
  "$HRM_VENV/bin/python" -c 'import pip, sys, sysconfig
path = sysconfig.get_paths()["purelib"]
sys.exit(print(path) if path.startswith(sys.argv[1]) else 1)' "$HRM_VENV" 2>/dev/null
}

_make_venv() {
  local python
  python=$(_find_python)
  # A venv that is there but of no use (interrupted, moved, of a Python that was since removed) is made anew.
  "$python" -m venv --clear "$HRM_VENV" || die 3 "could not create a Python environment in $HRM_VENV"
  mkdir -p "$HRM_STAMPS"
}

# The programs in .venv/bin name their Python by its absolute path.
_mend_venv() {
  local old
  old=$("$HRM_VENV/bin/python" "$HRM_ROOT/scripts/lib/mend_venv.py" "$HRM_VENV")
  if [[ -n $old ]]; then say "the Python environment was moved here from $old: its programs have been mended"; fi
}

_pins_checksum() { cat "$HRM_ROOT/scripts/requirements/$1.txt" "$HRM_VENV/pyvenv.cfg" | sha256sum | cut -d' ' -f1; }

_is_installed() { [[ -e $HRM_STAMPS/$1 && $(<"$HRM_STAMPS/$1") == $(_pins_checksum "$1") ]]; }

_pip_install() {
  # Compiling torch's thousands of Python files ahead of use takes longer than fetching them.
  if ! "$HRM_VENV/bin/python" -m pip install -q --no-deps --no-compile --no-input --disable-pip-version-check \
    -r "$HRM_ROOT/scripts/requirements/$1.txt" </dev/null >"$HRM_SETUP_LOG" 2>&1; then
    die 3 "pip could not install the packages of scripts/requirements/$1.txt; is PyPI reachable? Its messages are in $HRM_SETUP_LOG; start again when it is, what was fetched is kept"
  fi
  mkdir -p "$HRM_STAMPS"
  _pins_checksum "$1" >"$HRM_STAMPS/$1"
}

# _setup_wheels SET GIGABYTES TEXT
_setup_wheels() {
  if _is_installed "$1"; then
    say "$3: all there"
    return
  fi
  local free
  free=$(free_gb "$HRM_ROOT")
  if ((free < $2)); then
    die 3 "$3 needs about $2 GB of disk in $HRM_ROOT, where $free GB are free; make room and start again"
  fi
  step "installing $3" _pip_install "$1"
}

# --- CUDA --------------------------------------------------------------------------------------------------------

_decide_cuda() {
  local wanted=${HRM_CUDA:-AUTO} archs
  case ${wanted^^} in
    OFF) HRM_CUDA_ON=OFF ;;
    ON) HRM_CUDA_ON=ON ;;
    AUTO)
      archs=$("$HRM_ROOT/scripts/detect_gpu")
      if [[ -n $archs ]]; then
        HRM_CUDA_ON=ON
        say "GPU found (architecture $archs): building with CUDA"
      else
        HRM_CUDA_ON=OFF
        say "no usable GPU: building for the CPU (HRM_CUDA=ON builds the CUDA code all the same)"
      fi
      ;;
    *) die 2 "HRM_CUDA is '$wanted'; use AUTO, ON or OFF" ;;
  esac
}

# Prints the nvcc of an installed CUDA 13 toolkit, if there is one.
_find_nvcc() {
  local candidate
  for candidate in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc /usr/local/cuda-13*/bin/nvcc; do
    if [[ -n $candidate && $("$candidate" --version 2>/dev/null) == *"release 13."* ]]; then
      echo "$candidate"
      return
    fi
  done
}

# The wheels have neither lib64 nor unversioned library names; nvcc and CMake look for both.
_link_toolkit() {
  local root=$1 lib name
  [[ -e $root/lib64 ]] || ln -s lib "$root/lib64"
  for lib in "$root"/lib/lib*.so.*; do
    name=${lib%%.so.*}.so
    [[ -e $name ]] || ln -s "$(basename "$lib")" "$name"
  done
}

_setup_cuda() {
  HRM_NVCC=$(_find_nvcc)
  if [[ -n $HRM_NVCC ]]; then
    say "CUDA toolkit: $HRM_NVCC"
    return
  fi
  _setup_wheels cuda_toolkit 1 "the CUDA 13.0 compiler from PyPI (no toolkit is installed)"
  HRM_NVCC=$HRM_SITE_PACKAGES/nvidia/cu13/bin/nvcc
  _link_toolkit "$HRM_SITE_PACKAGES/nvidia/cu13"
}

# --- all of it ---------------------------------------------------------------------------------------------------

# Ninja, the linker, CMake's lists and the programs in .venv/bin each stumble over some of these.
_check_path() {
  if [[ $HRM_ROOT == *[[:space:]\;:,\'\"\`\\\$\*\?\[\]\(\)\&\|\<\>\#]* ]]; then
    die 3 "hrm_train cannot be built in '$HRM_ROOT', because the path has a space or one of ; : , ' \" \` \\ \$ * ? [ ] ( ) & | < > #; move the project to another folder"
  fi
}

hrm_setup() {
  local purpose=$1
  _check_path
  [[ $(uname -sm) == "Linux x86_64" ]] || die 3 "hrm_train builds on Linux x86_64; this is $(uname -sm)"
  { mkdir -p "$HRM_BUILD" && [[ -w $HRM_BUILD ]]; } 2>/dev/null || die 3 "no permission to write in $HRM_ROOT; use a copy of the project that is yours"
  _decide_cuda
  _setup_apt "$purpose"
  if ! HRM_SITE_PACKAGES=$(_site_packages); then
    step "creating the Python environment .venv" _make_venv
    HRM_SITE_PACKAGES=$(_site_packages)
  fi
  _mend_venv

  local python_tests=${HRM_PYTHON_TESTS:-OFF}
  HRM_PYTHON_SET=0
  if [[ $HRM_CUDA_ON == ON ]] || { [[ $purpose == test ]] && [[ ${CI:-} == true || ${python_tests^^} == ON ]]; } ||
    _is_installed torch_full; then
    HRM_PYTHON_SET=1
    _setup_wheels torch_full 7 "torch 2.11.0 with CUDA and Python packages"
  else
    _setup_wheels torch_cpu 2 "torch 2.11.0, the part that runs on a CPU"
  fi
  if [[ $HRM_CUDA_ON == ON ]]; then _setup_cuda; fi
  if [[ $purpose == test ]]; then
    _setup_wheels tools 1 "clang-format and codespell"
    _setup_wheels chat_templates 1 "chat templates to compare with"
  fi
}
