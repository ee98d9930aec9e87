#!/usr/bin/env bash
# The one door to the project: makes .venv on first use, then runs a command in it.
# `./run.sh help` lists the commands. Programs run in the caller's directory, so
# `--data_dir=../x` means what the caller sees.
set -euo pipefail

root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
readonly root venv="$root/.venv" python_version=3.11 # the one of TFF 0.87 and the lock

# The programs: name, module, what it does.
programs() {
  cat <<'END'
demo                experiments.fedss.demo            train FedSS and FullSoftmax side by side (3 minutes)
train               experiments.fedss.train           one run; --cell=1/mini/omniglot_fedss_m5 is a published one
compare             experiments.fedss.compare         the six methods side by side
table               experiments.common.sweep          all runs of a table (N of FedSS, or PAPER/N), and its page
tune                experiments.fedss.tune            the clients' learning rate for your data, on validation clients
pretrain            experiments.fedss.pretrain        a start for phi, from public images: for --pretrained
describe            experiments.fedss.describe        a data set's clients, images and classes, as table and plot
rf_softmax          experiments.rf_softmax.train      RF-softmax: negatives from kernels, centrally
partial_fc          experiments.partial_fc.train      very many classes over several devices, centrally (Partial FC)
leap                experiments.leap.train            LEAP, SPLD or random mini-batches, centrally
moco                experiments.moco.train            contrastive features without labels (MoCo v2, focal loss)
export              experiments.encoders.export       the encoder of a finished run: .keras, SavedModel, TFLite, ONNX
embed               experiments.encoders.embed        vectors of your images by an encoder: .parquet or .npz
evaluate            experiments.encoders.evaluate     an encoder on labelled images: MAP@10, R-precision, top-1
neighbours          experiments.encoders.neighbours   a page of each image's nearest images
privacy             experiments.privacy.privacy       what the server learns of the classes of a client, by attacks
benchmark           experiments.benchmarks.benchmark  rounds and steps beside TensorFlow, TFF and the peers
prepare_landmarks   data.prepare_landmarks            Landmarks-User-160k as TFF's files, from the images
prepare_imagenet21k data.prepare_imagenet21k          ImageNet-21k as TFRecord files
partition_sop       data.partition_sop                which client has which image of SOP
END
}

usage() {
  cat <<END
Usage: ./run.sh COMMAND [FLAGS]      (each program has --help)

$(programs | sed -E 's/^(\S+)( *)\S+ +/  \1\2/')

  setup [--gpu]       only make .venv; --gpu adds the CUDA libraries (kept by later commands)
  test [PYTEST ARGS]  the fast tests; --slow adds the slow ones, -m gpu takes those of GPUs
  ray start|stop      Ray's own: this machine as part of a cluster, for --cluster
  docs                build the site of these pages and of the library into site/
  lock                write the *.lock files again, by .ci/lock (maintainers)
  ANYTHING ELSE       runs inside .venv: ./run.sh python x.py, ./run.sh ruff check .

eval "\$(./run.sh completion)" completes commands, flags, data sets and cells in bash.
The first command makes .venv: 1-5 minutes, 3 GB. PYTHON=/path/to/python3.11 picks
the Python that it is made with. To start afresh, delete .venv.
END
}

say() { printf 'run.sh: %s\n' "$*" >&2; }
die() {
  say "$@"
  exit 2
}

# --- Set-up -----------------------------------------------------------------------
# uv installs the hash-checked locks. A stamp with the key of all that went in, and of the
# path, since environments cannot be moved, is written last: a killed set-up begins again.

key() { # key: of what .venv is made of
  {
    printf '%s\n' "$root" "$python_version"
    cat "$root"/{build,requirements}.lock "$root"/{setup.py,requirements.in,test.in}
    grep -m1 '^__version__' "$root/tff_fedss/__init__.py"
    if [[ -e $venv/.gpu ]]; then cat "$root/gpu.lock"; fi
  } | sha256sum
}
ready() { [[ -f $venv/.done && $(< "$venv/.done") == "$(key)" ]]; }

check_machine() {
  [[ $(uname -sm) == "Linux x86_64" ]] ||
    die "TFF 0.87 has wheels for Linux x86_64 only, and this is $(uname -sm)"
  [[ ! -e $venv || -e $venv/.made-by-run.sh || -z $(ls -A "$venv") ]] ||
    die "$venv was not made by run.sh; move it away first"
  # Not the Python of an activated .venv, which is about to be removed.
  local PATH=${PATH//"$venv/bin:"/}
  python=${PYTHON:-$(command -v "python$python_version" || echo "python$python_version")}
  command -v "$python" > /dev/null ||
    die "no $python here: apt-get install python$python_version python$python_version-venv" \
      "(or set PYTHON=/path/to/python$python_version)"
  "$python" -I -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$python_version')" ||
    die "$python is not Python $python_version; set PYTHON=/path/to/python$python_version"
  "$python" -I -c 'import ensurepip, venv' 2> /dev/null ||
    die "$python cannot make virtual environments: apt-get install python$python_version-venv"
}

pip() { "$venv/bin/python" -I -m pip --disable-pip-version-check "$@"; }

# uv does not read pip's settings: its mirror and its certificates are handed on.
hand_on_settings() {
  local index cert
  setting() { pip config list | sed -nE "s/^(global|install|:env:)\.$1='(.*)'$/\2/p" | tail -n 1; }
  index=$(setting index-url) cert=$(setting cert)
  if [[ -n $index ]]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}; fi
  if [[ -n $cert ]]; then export SSL_CERT_FILE=${SSL_CERT_FILE:-$cert}; fi
}

install() {
  local begun=$SECONDS made_of python quiet=()
  check_machine
  made_of=$(key) # Now: a file that changes meanwhile is for the next set-up.
  say "Setting up .venv: 1-5 minutes, 0.9 GB to fetch, 3 GB on disk (once)"
  [[ ! -L $venv ]] || rm "$venv" # Python makes no environment in a link.
  rm -rf "$venv/.done" "${venv:?}"/* # Not .made-by-run.sh and .gpu: it may be killed here.
  mkdir -p "$venv"
  touch "$venv/.made-by-run.sh"
  "$python" -I -m venv "$venv"
  pip install --quiet --no-input --no-user --no-deps --require-hashes -r "$root/build.lock" ||
    die "pip could not install build.lock; its message is above"
  hand_on_settings
  [[ -t 2 ]] || quiet=(--quiet)
  uv_install() {
    "$venv/bin/uv" pip install "${quiet[@]}" --python "$venv/bin/python" --no-deps \
      --no-build-isolation "$@" ||
      die "uv could not install $root's packages; its message is above. The usual causes are" \
        "the network, a mirror (UV_DEFAULT_INDEX), certificates (SSL_CERT_FILE) and a full disk"
  }
  uv_install --require-hashes -r "$root/requirements.lock"
  if [[ -e $venv/.gpu ]]; then
    say "CUDA 12.2 libraries for TensorFlow: 1.9 GB to fetch"
    uv_install --require-hashes -r "$root/gpu.lock"
  fi
  uv_install --editable "$root"
  echo "$made_of" > "$venv/.done.new"
  mv "$venv/.done.new" "$venv/.done"
  say "done in $((SECONDS - begun)) s"
}

# One at a time: the lock is taken on a file that is there anyway.
lock() {
  [[ -w $root && -w $root/build.lock ]] || die "cannot write to $root, and .venv is not ready"
  exec 9<> "$root/build.lock"
  if ! flock -n 9; then
    say "another ./run.sh is setting up .venv; waiting for it"
    flock 9
  fi
}
unlock() { exec 9>&-; }

enter_environment() {
  if ! ready; then
    lock
    ready || install
    unlock
  fi
  export VIRTUAL_ENV=$venv PATH="$venv/bin:$PATH"
  # TensorFlow 2.15 logs three "errors" at every start; real ones reach Python.
  export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
  # Ray sends no usage statistics, and keeps nothing of each task (3 kB).
  export RAY_USAGE_STATS_ENABLED=${RAY_USAGE_STATS_ENABLED:-0}
  export RAY_worker_niceness=${RAY_worker_niceness:-0} # else actors give way to all else
  export RAY_task_events_report_interval_ms=${RAY_task_events_report_interval_ms:-0}
  # A name of a file may have bytes that are not UTF-8.
  export PYTHONIOENCODING=${PYTHONIOENCODING:-:backslashreplace}
  # What Python compiles is kept in .venv: without it each start takes twice as long.
  export PYTHONPYCACHEPREFIX=$venv/pycache
  unset PYTHONHOME PYTHONDONTWRITEBYTECODE
  if [[ -e $venv/.gpu ]]; then
    # Kernels for GPUs newer than TensorFlow are compiled at first use: they are kept.
    local cache=${TFF_FEDSS_CACHE:-${XDG_CACHE_HOME:-${HOME:-$root}/.cache}/tff_fedss}
    export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$cache/cuda}
    export CUDA_CACHE_MAXSIZE=${CUDA_CACHE_MAXSIZE:-4294967296}
    mkdir -p "$CUDA_CACHE_PATH" || say "$CUDA_CACHE_PATH cannot be made: kernels are not kept"
  fi
}

# --- Commands ---------------------------------------------------------------------
# `-P` keeps the caller's directory, which may have a random.py, off sys.path.

setup() {
  [[ $# == 0 || $* == --gpu ]] || die "setup has one flag, --gpu; given: $*"
  if (($#)); then
    check_machine
    lock
    mkdir -p "$venv"
    touch "$venv/.made-by-run.sh" "$venv/.gpu"
    unlock
  fi
  enter_environment
  say ".venv is ready: $(python -I -V)," \
    "$(grep -oE '^tensorflow(-federated)?==[^ ]+' "$root/requirements.lock" | paste -sd ' ')"
  if (($#)); then
    say "a look at the GPUs; the first one on a new GPU compiles kernels, for minutes"
    python -P -m pytest -m gpu -k "driver or operation" "$root/tests/gpu"
  fi
}

run_tests() {
  # A process per core, of up to 3 GB; a file's tests, which share things, stay together.
  local arg cores last="" where=("$root/tests")
  enter_environment
  cores=$(nproc)
  where+=(--numprocesses="$((cores < 4 ? cores : 4))" --dist=loadfile)
  for arg in "$@"; do
    # The word after -k, -m, -n or -p is no path.
    if [[ $arg != -* && $last != -[kmnp] && -e ${arg%%::*} ]]; then where=(); fi
    last=$arg
  done
  exec python -P -m pytest "${where[@]}" "$@"
}

run_program() { # run_program MODULE COMMAND ARGS: help and wrong flags need no TensorFlow
  local code=0
  python -P -m experiments.common.answers "$venv" "$(programs)" "${@:2}" || code=$?
  ((code == 100)) || exit "$code"
  say "$2: loading TensorFlow"
  exec python -P -m "$1" "${@:3}"
}

run_bazel() { # Bazel finds Python on PATH; a short fixed one keeps its caches valid.
  command -v bazel > /dev/null || die "no bazel here: apt-get install bazel-bootstrap"
  enter_environment
  cd "$root" # labels such as //tests/... mean this checkout
  PATH="$venv/bin:/usr/local/bin:/usr/bin:/bin" exec bazel "$@"
}

command=${1:-help}
shift || true
case $command in
  help | -h | --help) usage ;;
  completion)
    enter_environment
    python -P -m experiments.common.answers "$venv" "$(programs)" completion
    ;;
  setup) setup "$@" ;;
  docs | lock)
    [[ $# == 0 ]] || die "$command has no flags; given: $*"
    enter_environment
    hand_on_settings
    exec "$root/.ci/$command" "$@"
    ;;
  test) run_tests "$@" ;;
  bazel) run_bazel "$@" ;;
  *)
    module=$(programs | awk -v name="$command" '$1 == name { print $2 }')
    enter_environment
    if [[ $command == benchmark ]]; then hand_on_settings; fi
    if [[ -n $module ]]; then run_program "$module" "$command" "$@"; fi
    type -P -- "$command" > /dev/null || die "no command '$command'; see ./run.sh help"
    exec "$command" "$@"
    ;;
esac
