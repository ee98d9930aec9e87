"""The program behind each Bazel test: pytest on one file of the checkout."""

import os
import pathlib
import shutil
import sys

# Bazel starts a link to this file; the link leads to the checkout.
os.chdir(pathlib.Path(__file__).resolve().parents[1])
arguments = ["-p", "no:cacheprovider", *sys.argv[1:]]
if report := os.environ.get("XML_OUTPUT_FILE"):  # where Bazel looks for one
    arguments.append(f"--junitxml={report}")
if only := os.environ.get("TESTBRIDGE_TEST_ONLY"):  # bazel test --test_filter=...
    arguments += ["-k", only]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
python = shutil.which("python")  # of .venv, which ./run.sh bazel puts on PATH
os.execv(python, [python, "-P", "-m", "pytest", *arguments])
