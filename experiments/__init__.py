"""Programs: absl binaries, run as `./run.sh NAME [FLAGS]`."""
