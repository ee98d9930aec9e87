"""Runs one test file with pytest inside a Bazel test; see pytest_test.bzl."""

import os
import sys
import tempfile


def main() -> int:
    # Python put the folder of this file there, which is the checkout's: it follows the
    # link out of the sandbox.
    sys.path.remove(os.path.dirname(os.path.realpath(__file__)))
    scratch = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
    # The home folder is read-only in Bazel's sandbox.
    os.environ.setdefault("HOME", scratch)
    os.environ.setdefault("MPLCONFIGDIR", scratch)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import pytest

    arguments = [
        "--verbose",
        "-p",
        "no:cacheprovider",
        # Bazel starts tests at the root of their copy of the checkout.
        f"--rootdir={os.getcwd()}",
        f"--basetemp={scratch}/pytest",
    ]
    if "XML_OUTPUT_FILE" in os.environ:  # where Bazel looks for a report
        arguments.append(f"--junitxml={os.environ['XML_OUTPUT_FILE']}")
    if "TESTBRIDGE_TEST_ONLY" in os.environ:  # bazel test --test_filter=...
        arguments += ["-k", os.environ["TESTBRIDGE_TEST_ONLY"]]
    return pytest.main(arguments + sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
