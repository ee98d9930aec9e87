#!/usr/bin/env bash
# Makes the benchmark's peers a virtual environment each, in .venv-peers at the root of
# the checkout, from the *.lock files here. What is there already stays; an environment
# gets its stamp last, so one whose making was interrupted is made again.
#
#   setup.sh [NAME ...]   all, or those of fedjax, pfl, flower
#   setup.sh --lock       resolves the *.in files again (maintainers)
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
root=$(readlink -f "$here/../../..")
readonly here root
readonly peers="$root/.venv-peers"
readonly names=(fedjax pfl flower) python_version=3.11 uv_version=0.13.8

say() { printf 'setup.sh: %s\n' "$*" >&2; }
die() {
  say "$@"
  exit 1
}

# uv rather than pip: it shares the gigabytes of PyTorch between the environments.
find_uv() {
  local python=${PYTHON:-python$python_version}
  if uv=$(command -v uv); then return; fi
  uv=$peers/uv/bin/uv
  if [[ ! -x $uv ]]; then
    say "fetching uv $uv_version"
    rm -rf "$peers/uv"
    "$python" -I -m venv "$peers/uv" || die "no $python with venv here (or set PYTHON)"
    "$peers/uv/bin/python" -I -m pip install -q --disable-pip-version-check \
      "uv==$uv_version" || die "pip could not install uv; its message is above"
  fi
}

lock() {
  local name
  cd "$here"
  for name in "${names[@]}"; do
    "$uv" pip compile --quiet --upgrade --python-version "$python_version" \
      --python-platform x86_64-manylinux_2_31 --generate-hashes --no-annotate \
      --override overrides.txt --custom-compile-command "peers/setup.sh --lock" \
      --output-file "$name.lock" "$name.in"
  done
}

make() { # make NAME
  local name=$1 stamp=$peers/$1/.done key
  [[ -f $here/$name.lock ]] || die "no peer $name: there are ${names[*]}"
  # The key holds the path because virtual environments cannot be moved.
  key=$({ printf '%s\n' "$peers" "$python_version" && cat "$here/$name.lock"; } |
    sha256sum | cut -d' ' -f1)
  if [[ -f $stamp && $(< "$stamp") == "$key" ]]; then
    say "$name is there"
    return
  fi
  say "making $name"
  rm -rf "${peers:?}/$name"
  "$uv" venv --quiet --python "${PYTHON:-$python_version}" "$peers/$name"
  # Compiled now, so that no first round pays for it.
  "$uv" pip install --quiet --python "$peers/$name" --require-hashes --no-deps \
    --compile-bytecode --requirements "$here/$name.lock" ||
    die "uv could not install $name.lock; its message is above"
  printf '%s\n' "$key" > "$stamp.new"
  mv "$stamp.new" "$stamp"
}

mkdir -p "$peers"
exec 9<> "$here/overrides.txt" # One at a time.
flock 9
find_uv
if [[ ${1-} == --lock ]]; then
  lock
  exit
fi
wanted=("$@")
((${#wanted[@]})) || wanted=("${names[@]}")
for name in "${wanted[@]}"; do make "$name"; done
say "the peers are in $peers"
