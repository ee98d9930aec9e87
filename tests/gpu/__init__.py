"""What works on the GPUs of this machine: `./run.sh test -m gpu`."""
