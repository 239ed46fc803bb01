# shellcheck shell=bash disable=SC2034
# Sourced by scripts/test: hrm_quick [CTEST_ARGUMENT...] tests what has changed, after hrm_setup.

# The end of all of it, in seconds after the start.
readonly QUICK_SECONDS=300
# hrm_train is built for the rules that look at it, unless that takes more commands than this.
readonly QUICK_PROGRAM_COMMANDS=12

_git() { git -C "$HRM_ROOT" -c core.quotePath=off "$@" 2>/dev/null; }

# Prints the commit that changes are counted from, and what it is.
_quick_base() {
  local base head
  if ! head=$(_git rev-parse HEAD) || ! [[ $HRM_ROOT -ef $(_git rev-parse --show-toplevel) ]]; then
    die 3 "--quick asks git what has changed, and '$HRM_ROOT' is no clone with a commit; run scripts/test"
  fi
  if base=$(_git merge-base HEAD origin/main); then
    echo "$base origin/main"
  elif base=$(_git merge-base HEAD main) && [[ $base != "$head" ]]; then
    echo "$base main"
  elif base=$(_git rev-parse HEAD~1); then
    echo "$base the commit before the last one"
  else
    echo "$head the last commit"
  fi
}

_quick_seconds_left() {
  awk -v a="$HRM_STARTED" -v b="${EPOCHREALTIME/,/.}" -v all="$QUICK_SECONDS" 'BEGIN { printf "%d", a + all - b }'
}

# Names of the ctest entries, one a line, that the arguments choose.
_ctest_names() { ctest --test-dir "$HRM_BUILD" -N "$@" | sed -n 's/^ *Test *#[0-9]*: \([^ ]*\).*/\1/p'; }

# How many commands it takes to build a target. Of build.ninja itself a dry run only says that CMake would run first.
_count_commands() {
  cp "$HRM_BUILD/build.ninja" "$HRM_BUILD/dry_run.ninja"
  ninja -C "$HRM_BUILD" -f dry_run.ninja -n "$1" | grep -c '^\['
  rm "$HRM_BUILD/dry_run.ninja"
}

# Sorts the changed files of its input. QUICK_MODULES: folders of src/, include/hrm/ and tests/ with changed C++ files;
# QUICK_PROGRAM=1: hrm_train may have changed; QUICK_OTHER: files that no rule and no unit looks at.
_sort_changes() {
  local file module
  declare -gA QUICK_MODULES=()
  declare -g QUICK_PROGRAM=0
  declare -ga QUICK_OTHER=()
  while read -r file; do
    case $file in
      src/*/*.cpp | src/*/*.cu | src/*/*.h | src/*/*.cuh | include/hrm/*/*.h | include/hrm/*/*.cuh | \
        tests/*/*.cpp | tests/*/*.h | tests/*/*.cuh | tests/*/*.cu)
        module=${file#include/}
        module=${module#*/}
        module=${module%%/*}
        QUICK_MODULES[$module]="no units"
        ;;
      docs/* | README.md | */README.md | scripts/* | tests/repo/*) ;; # the rules look at these
      "") ;;
      *) QUICK_OTHER+=("$file") ;;
    esac
    case $file in
      src/* | include/* | cmake/* | CMakeLists.txt) QUICK_PROGRAM=1 ;;
    esac
  done
}

hrm_quick() {
  local base name changes argument
  for argument; do
    case $argument in
      -E* | -LE* | --exclude-regex* | --label-exclude*) die 2 "--quick itself tells ctest what to leave out; use -R or -L" ;;
    esac
  done
  read -r base name < <(_quick_base) || exit 3
  changes=$(_git diff --name-only --no-renames "$base" && _git ls-files --others --exclude-standard)
  _sort_changes <<<"$changes"
  say "changed since $name (${base::12}), with what is not committed: $(grep -c . <<<"$changes" || true) files, C++ of:" \
    "${!QUICK_MODULES[*]}"

  hrm_configure
  # The units of a module are the entry of its name, or several whose names begin with it.
  local -a units=() left_out=() targets=()
  local unit module
  while read -r unit; do
    for module in "${!QUICK_MODULES[@]}"; do
      if [[ $unit == "$module" || $unit == "${module}"_* ]]; then
        units+=("$unit")
        targets+=("test_$unit")
        QUICK_MODULES[$module]=units
        continue 2
      fi
    done
    left_out+=("$unit")
  done < <(_ctest_names -L '^unit$')

  for module in "${!QUICK_MODULES[@]}"; do
    [[ ${QUICK_MODULES[$module]} == units ]] || QUICK_OTHER+=("C++ of $module")
  done

  # Rules that look at hrm_train.
  local -a program_tests
  mapfile -t program_tests < <(_ctest_names -L '^program$')
  if ((QUICK_PROGRAM)) && (($(_count_commands hrm_train) <= QUICK_PROGRAM_COMMANDS)); then
    targets+=(hrm_train)
    program_tests=()
  fi

  local left
  if ((${#targets[@]})); then
    left=$(_quick_seconds_left)
    ((left > 0)) || die 75 "no time is left after the set-up; start again to go on"
    HRM_BUILD_SECONDS=$left hrm_compile "${targets[@]}"
  fi

  local code=0 skipped
  local -a not_run=("${left_out[@]}" "${program_tests[@]}")
  skipped=$(IFS='|' && echo "${not_run[*]}")
  left=$(_quick_seconds_left)
  ((left > 0)) || die 75 "no time is left after the build; start again to go on"
  hrm_ctest -L '^(repo|unit)$' -E "^(${skipped})\$" --stop-time "$(date -d "now + $left seconds" +%H:%M:%S)" "$@" || code=$?

  local labels
  labels=$(ctest --test-dir "$HRM_BUILD" --print-labels | sed -n '/^  \(repo\|unit\|program\)$/d; s/^  //p' | paste -sd' ')
  say "not run: units of ${left_out[*]:-no module}; the labels $labels"
  if ((${#program_tests[@]})); then say "not run: ${program_tests[*]}, which needs hrm_train"; fi
  if ((${#QUICK_OTHER[@]})); then say "changed, but not tested here: $(printf '%s\n' "${QUICK_OTHER[@]}" | paste -sd, | sed 's/,/, /g')"; fi
  say "scripts/test runs everything"
  return "$code"
}
