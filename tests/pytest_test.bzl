"""A py_test that hands one file to pytest."""

_RUNNER = "bazel_runner.py"

def pytest_test(name, src, support = [], deps = [], **kwargs):
    """Declares a test target for one pytest file.

    Args:
      name: Name of the target.
      src: The test file, as a path in this package.
      support: Files that any test may need: conftest.py, helpers, fixtures.
      deps: Libraries under test.
      **kwargs: Passed on to py_test: size, tags, ...
    """
    native.py_test(
        name = name,
        srcs = [_RUNNER, src] + [f for f in support if f.endswith(".py")],
        main = _RUNNER,
        args = [native.package_name() + "/" + src],
        data = [f for f in support if not f.endswith(".py")] + ["//:packaging"],
        # The checkout's own __init__.py files and no others, as under pytest.
        legacy_create_init = 0,
        python_version = "PY3",
        srcs_version = "PY3",
        deps = deps,
        **kwargs
    )
