#!/usr/bin/env bash
# The one door to the project: makes .venv on first use, then runs a command in it.
# `./run.sh help` lists the commands. Programs run in the caller's directory, so
# `--data_dir=../x` means what the caller sees.
set -euo pipefail

root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
readonly root
readonly venv="$root/.venv" tmp="$root/.venv/.tmp"
readonly python_version=3.11                   # the only one TFF 0.87 and the lock suit
readonly uv_version=0.13.8 lock_date=2024-10-01 # for `./run.sh lock`

# module_of NAME: the program behind a command, one that can be run and not just imported:
# data/NAME.py, experiments/PAPER/NAME.py, for the name of a paper its train.py, and for
# PAPER_report its report.py.
module_of() {
  local file
  [[ $1 =~ ^[a-z][a-z0-9_]*$ ]] || return 1
  for file in experiments/{fedss,common,encoders,rf_softmax,partial_fc,leap,moco,privacy}/"$1" \
    experiments/benchmarks/{benchmark,gpu_check} "experiments/$1/train" "experiments/${1%_report}/report" "data/$1"; do
    [[ $file == */report && $1 != *report ]] && continue
    [[ $file == */benchmarks/* && $file != */"$1" ]] && continue
    if grep -qs '^if __name__ == "__main__":' "$root/$file.py"; then
      printf '%s' "${file//\//.}"
      return
    fi
  done
  return 1
}

usage() {
  local file name folder names=()
  for file in "$root"/experiments/*/*.py "$root"/data/*.py; do
    folder=${file%/*} folder=${folder##*/}
    name=${file##*/} name=${name%.py}
    case $folder/$name in
      fedss/*) ;;
      */train) name=$folder ;;
      */report) name=${folder}_report ;;
    esac
    [[ $folder == benchmarks && $name != benchmark && $name != gpu_check || $name == sweep ]] &&
      continue
    if module_of "$name" > /dev/null; then names+=("$name"); fi
  done
  cat <<END
Usage: ./run.sh COMMAND [ARGS]

  demo [FLAGS]          train FedSS and FullSoftmax side by side (about 5 minutes)
  train [FLAGS]         one run; --cell=1/mini/omniglot_fedss_m5 is a published one
  pretrain [FLAGS]      a start for phi, from public images: for --pretrained
  tune [FLAGS]          the clients' learning rate for your data, on validation clients
  table N [FLAGS]       all runs of FedSS's table N, and the table; PAPER/N of another paper
  partial_fc [FLAGS]    very many classes over several devices, centrally (Partial FC)
  leap [FLAGS]          LEAP, SPLD or random mini-batches, centrally
  moco [FLAGS]          contrastive features without labels (MoCo v2, focal loss)
  export [FLAGS]        the encoder of a finished run: .keras, SavedModel or TFLite
  embed [FLAGS]         vectors of your images by an encoder: .parquet or .npz
  evaluate [FLAGS]      an encoder on labelled images: MAP@10, R-precision, top-1, TAR@FAR
  neighbours [FLAGS]    a page of each image's nearest images
  privacy [FLAGS]       what the server learns of the classes of a client, by attacks
  gpu_check [FLAGS]     what works on this machine's GPUs, and how fast: a file to send
  ray start|status|stop Ray's own: this machine as part of a cluster, for --cluster
  test [PYTEST ARGS]    the fast tests; --slow adds the slow ones
  bazel test //tests/...  the same tests under Bazel (optional)
  setup [--gpu]         only make .venv; --gpu adds the CUDA libraries (for good), and
                        looks whether they work
  lock                  write the *.lock files again (maintainers)
  help                  this text
  ANYTHING ELSE         runs inside .venv: ./run.sh python x.py, ./run.sh ruff check .

Every program in experiments/ and data/ is a command:
  ${names[*]:-none so far}.
The first command makes .venv: 2-7 minutes, 3 GB. PYTHON=/path/to/python3.11 picks
the Python that it is made with. To start afresh, delete .venv.
END
}

say() { printf 'run.sh: %s\n' "$*" >&2; }
die() {
  say "$@"
  exit 2
}

# --- Set-up -----------------------------------------------------------------------
# Three layers, each with a stamp that is written last: the locked packages, the CUDA
# libraries (if asked for) and the project itself. A layer without its stamp is not
# there, so a killed set-up is never taken for a good one. The keys hold the path of
# the checkout because virtual environments cannot be moved.

digest() { sha256sum | cut -d' ' -f1; }
locked_key() {
  { printf '%s\n' "$root" "$python_version" &&
    cat "$root/build.lock" "$root/requirements.lock"; } | digest
}
gpu_key() { digest < "$root/gpu.lock"; }
project_key() {
  { cat "$root/setup.py" "$root/requirements.in" "$root/test.in" &&
    { grep -s -m1 '^__version__' "$root/tff_fedss/__init__.py" || true; }; } | digest
}

stamped() { # stamped LAYER KEY
  [[ -x $venv/bin/python && -f $venv/.done-$1 && $(< "$venv/.done-$1") == "$2" ]]
}
stamp() { # stamp LAYER KEY
  printf '%s\n' "$2" > "$venv/.done-$1.new"
  mv "$venv/.done-$1.new" "$venv/.done-$1"
}

want_gpu=false
ready() {
  [[ -f $venv/.done-gpu ]] && want_gpu=true
  stamped locked "$(locked_key)" && stamped project "$(project_key)" &&
    { ! $want_gpu || stamped gpu "$(gpu_key)"; }
}

# Turns pip's chatter (stdin) into one line that is rewritten on a terminal, or into a
# few lines in a log.
meter() { # meter TOTAL
  local line word count=0 total=$1
  while IFS= read -r line; do
    case $line in
      Collecting\ * | "Requirement already satisfied: "*)
        count=$((count + 1))
        word=${line#Collecting } word=${word#Requirement already satisfied: }
        word=${word%% *}
        ;;
      *Downloading\ *\(*\)) word="${word%% *} (${line##*\(}" ;;
      "Installing collected packages"*) word="unpacking all of them" ;;
      *) continue ;;
    esac
    if [[ -t 2 ]]; then
      printf '\r\033[K      %s/%s %.60s' "$count" "$total" "$word" >&2
    elif ((total > 2)) &&
      [[ $line == Installing* || ($line == Coll* && $((count % 20)) == 0) ]]; then
      printf '      %s/%s %s\n' "$count" "$total" "$word" >&2
    fi
  done
  if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
}

# Runs pip in the background and waits, so that a signal is dealt with at once and not
# when pip is through. pip keeps the user's settings (mirrors, certificates) but not
# those that would install elsewhere. Its scratch space is on our disk, inside .venv:
# a small /tmp does no harm, and a killed pip leaves nothing behind.
child=
pip_install() { # pip_install TOTAL PIP_ARGS
  local total=$1 status=0 metering
  shift
  rm -rf "$tmp"
  mkdir -p "$tmp"
  mkfifo "$tmp/said"
  meter "$total" < "$tmp/said" &
  metering=$!
  env -u PIP_USER -u PIP_TARGET -u PIP_PREFIX -u PIP_ROOT -u PIP_CONSTRAINT \
    TMPDIR="$tmp" "$venv/bin/python" -I -m pip install --disable-pip-version-check \
    --no-input --no-user --progress-bar off --no-deps --no-build-isolation "$@" \
    > "$tmp/said" &
  child=$!
  wait "$child" || status=$?
  child=
  wait "$metering"
  rm -rf "$tmp"
  return "$status"
}

rebuilding=false
abandon() { # the EXIT trap while something is being installed
  local status=$?
  trap - EXIT
  trap '' INT TERM HUP
  if [[ -n $child ]]; then
    kill "$child" 2> /dev/null || true
    wait "$child" 2> /dev/null || true
  fi
  if $rebuilding; then
    rm -rf "$venv"
    say "set-up did not finish; the half-made .venv is removed."
  else
    rm -rf "$tmp"
    say "set-up did not finish; the same command tries it again."
  fi
  exit "$status"
}
pip_failed() {
  say "pip could not $1; its message is above. The usual causes are the network and a" \
    "full disk: $root and pip's cache need 4 GB together."
  exit 1
}

# Everything that can be told before anything is written.
check_python() {
  # Not the one of an activated .venv, which is about to be removed.
  local PATH=${PATH//$venv\/bin:/}
  python=${PYTHON:-$(command -v "python$python_version" || echo "python$python_version")}
  command -v "$python" > /dev/null ||
    die "no $python here: apt-get install python$python_version python$python_version-venv" \
      "(or set PYTHON=/path/to/python$python_version)"
  "$python" -I -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$python_version')" ||
    die "$python is not Python $python_version; set PYTHON=/path/to/python$python_version"
  "$python" -I -c 'import ensurepip, venv' 2> /dev/null ||
    die "$python cannot make virtual environments: apt-get install python$python_version-venv"
}
check_host() {
  [[ $(uname -sm) == "Linux x86_64" ]] ||
    die "TFF 0.87 has wheels for Linux x86_64 only, and this is $(uname -sm)"
  if [[ -e $venv && ! -e $venv/.made-by-run.sh && -n $(ls -A "$venv") ]]; then
    die "$venv was not made by run.sh; move it away first"
  fi
  check_python
}

install_locked() {
  say "Setting up .venv: 2-7 minutes, 0.9 GB to fetch, 3 GB on disk (once)"
  rebuilding=true
  rm -rf "$venv"
  mkdir "$venv"
  touch "$venv/.made-by-run.sh"

  say "[1/3] virtual environment and build tools"
  "$python" -I -m venv "$venv" ||
    die "$python could not make $venv; if the reason above is ensurepip:" \
      "apt-get install python$python_version-venv"
  # The build tools are locked too: an unpinned setuptools would build the sdists.
  pip_install 2 --require-hashes -r "$root/build.lock" || pip_failed "install build.lock"

  say "[2/3] the packages of requirements.lock"
  pip_install "$(grep -c '^[a-z]' "$root/requirements.lock")" \
    --require-hashes -r "$root/requirements.lock" || pip_failed "install requirements.lock"
  stamp locked "$(locked_key)"
  rebuilding=false
}

install_missing() {
  local begun=$SECONDS python
  stamped locked "$(locked_key)" || check_host
  trap abandon EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  if ! stamped locked "$(locked_key)"; then install_locked; fi
  if $want_gpu && ! stamped gpu "$(gpu_key)"; then
    say "[gpu] CUDA 12.2 libraries for TensorFlow: 1.9 GB to fetch"
    pip_install "$(grep -c '^[a-z]' "$root/gpu.lock")" \
      --require-hashes -r "$root/gpu.lock" || pip_failed "install gpu.lock"
    stamp gpu "$(gpu_key)"
  fi
  if ! stamped project "$(project_key)"; then
    say "[3/3] tff_fedss itself, editable"
    pip_install 1 --use-pep517 -e "$root" || pip_failed "install $root"
    stamp project "$(project_key)"
  fi
  trap - EXIT INT TERM HUP
  say "done in $((SECONDS - begun)) s: .venv with $(versions)"
}

versions() {
  "$venv/bin/python" -I -V | tr -d '\n'
  sed -n 's/^\(tensorflow\|tensorflow-federated\)==\([^ ]*\).*/, \1 \2/p' \
    "$root/requirements.lock" | tr -d '\n'
  if $want_gpu; then printf ', CUDA libraries'; fi
}

# One at a time: the lock is taken on a file that is there anyway. pip inherits it, so
# a pip that outlives a killed run.sh still keeps the next one waiting.
ensure_environment() {
  if ready; then return; fi
  [[ -w $root && -w $root/build.lock ]] || die "cannot write to $root, and .venv is not ready"
  exec 9<> "$root/build.lock"
  if ! flock -n 9; then
    say "another ./run.sh is setting up .venv; waiting for it"
    flock 9
  fi
  ready || install_missing
  exec 9>&-
}

enter_environment() {
  ensure_environment
  export VIRTUAL_ENV=$venv PATH="$venv/bin:$PATH"
  # TensorFlow 2.15 logs three "errors" at every start, about CUDA plugins registering
  # twice. Real errors reach Python as exceptions.
  export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
  # Ray tells nobody how it is used, and its first machine keeps nothing of each task: 3 kB
  # of a part of a round, which nobody looks at.
  export RAY_USAGE_STATS_ENABLED=${RAY_USAGE_STATS_ENABLED:-0}
  export RAY_task_events_report_interval_ms=${RAY_task_events_report_interval_ms:-0}
  unset PYTHONHOME
  if $want_gpu; then
    # TensorFlow compiles its kernels for GPUs that are newer than itself: half an hour,
    # in each process anew unless they are kept. CUDA's own limit is less than they take.
    local cache=${TFF_FEDSS_CACHE:-${XDG_CACHE_HOME:-${HOME:-$root}/.cache}/tff_fedss}
    export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$cache/cuda}
    export CUDA_CACHE_MAXSIZE=${CUDA_CACHE_MAXSIZE:-4294967296}
    mkdir -p "$CUDA_CACHE_PATH" || say "$CUDA_CACHE_PATH cannot be made: kernels are not kept"
  fi
}

# --- Commands ---------------------------------------------------------------------

setup() {
  local flag
  for flag in "$@"; do
    [[ $flag == --gpu ]] || die "setup knows --gpu only, not '$flag'"
    want_gpu=true
  done
  enter_environment
  say ".venv is ready: $(versions)"
  if (($#)); then
    say "a look at the GPUs; the first one on a new GPU may take half an hour"
    python -P -m experiments.benchmarks.gpu_check --parts=machine,operations \
      --output="$venv/gpu_check.json"
  fi
}

# `-P` keeps the caller's directory off sys.path: a folder called `experiments` or a
# file called `random.py` there must not stand in for ours.
run_tests() {
  # All tests go over a process per core, the files whole: what a file's tests share is
  # built once. Each process may take 3 GB.
  local arg cores where=("$root/tests")
  enter_environment
  cores=$(nproc)
  where+=(--numprocesses="$((cores < 4 ? cores : 4))" --dist=loadfile)
  for arg in "$@"; do
    if [[ $arg != -* && -e ${arg%%::*} ]]; then where=(); fi
  done
  exec python -P -m pytest "${where[@]}" "$@"
}

run_bazel() {
  command -v bazel > /dev/null || die "no bazel here: apt-get install bazel-bootstrap"
  enter_environment
  # Bazel finds Python on PATH. A short fixed one keeps its caches valid between shells.
  export PATH="$venv/bin:/usr/local/bin:/usr/bin:/bin"
  cd "$root" # labels such as //tests/... mean this checkout
  exec bazel "$@"
}

# Resolves the *.in files again, as of lock_date. All files are written or none.
relock() {
  local python work uv
  cd "$root"
  work=$(mktemp -d)
  # shellcheck disable=SC2064  # $work is known now and local
  trap "rm -rf '$work'" EXIT
  if ! uv=$(command -v uv); then
    check_python
    say "fetching uv $uv_version for this once"
    "$python" -I -m venv "$work/venv"
    "$work/venv/bin/python" -I -m pip install -q --disable-pip-version-check "uv==$uv_version"
    uv=$work/venv/bin/uv
  fi
  compile() { # compile OUTPUT ARGS
    local output=$1
    shift
    "$uv" pip compile --quiet --upgrade --exclude-newer "$lock_date" \
      --python-version "$python_version" --python-platform x86_64-manylinux_2_31 \
      --generate-hashes --no-annotate --custom-compile-command "./run.sh lock" \
      --output-file "$output" "$@"
  }
  compile "$work/build.lock" build.in
  compile "$work/requirements.lock" requirements.in test.in \
    --override overrides.txt --constraint build.in
  # The same packages with TensorFlow's CUDA extra, of which gpu.lock keeps the
  # additions. The extra must stand in the override: an override replaces the whole
  # requirement, extras included.
  sed 's/^tensorflow==/tensorflow[and-cuda]==/' overrides.txt > "$work/overrides.txt"
  compile "$work/all.lock" requirements.in --override "$work/overrides.txt" \
    --constraint "$work/requirements.lock"
  {
    cat <<END
# Written by ./run.sh lock. Only the NVIDIA libraries that tensorflow[and-cuda] adds to
# requirements.lock; \`./run.sh setup --gpu\` installs them. Resolved, NOT yet run on a
# GPU. TFF's own worker is a CPU program whatever is installed: these serve TensorFlow
# code that runs in the Python process.
END
    awk '/^[^ #]/ { keep = /^nvidia-/ } keep' "$work/all.lock"
  } > "$work/gpu.lock"
  grep -q '^nvidia-' "$work/gpu.lock" || die "tensorflow[and-cuda] brought no nvidia wheel"
  cp "$work/build.lock" "$work/requirements.lock" "$work/gpu.lock" "$root/"
  say "wrote build.lock, requirements.lock and gpu.lock; the next command installs them"
}

command=${1:-help}
shift || true
case $command in
  help | -h | --help) usage ;;
  setup) setup "$@" ;;
  lock) relock ;;
  test) run_tests "$@" ;;
  bazel) run_bazel "$@" ;;
  table)
    enter_environment
    exec python -P -m experiments.common.sweep "$@"
    ;;
  *)
    enter_environment
    if module=$(module_of "$command"); then
      exec python -P -m "$module" "$@"
    fi
    command -v -- "$command" > /dev/null ||
      die "no command '$command' and no such program in experiments/ or data/; see" \
        "./run.sh help"
    exec "$command" "$@"
    ;;
esac
