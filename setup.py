"""Packaging of tff_fedss. To get a working environment, use `./run.sh setup`.

`pip install .` cannot resolve this project, and no setup.py could make it: TFF 0.87.0
asks for jaxlib 0.4.14, which is no longer published, and pip can narrow a dependency's
pins but never override them. So overrides.txt bends them, requirements.lock holds the
outcome with hashes, and run.sh installs that with `--no-deps`, then this project:

    pip install --require-hashes --no-deps -r requirements.lock
    pip install --no-deps -e .

What is listed here is what the project needs, for those who resolve it themselves.
"""

import pathlib
import re

import setuptools

_ROOT = pathlib.Path(__file__).resolve().parent


def _version() -> str:
    # Read, not imported: importing tff_fedss would import TensorFlow.
    text = (_ROOT / "tff_fedss" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE).group(1)


def _requirements(name: str) -> list:
    lines = (_ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


_INSTALL = _requirements("requirements.in")

setuptools.setup(
    name="tff_fedss",
    version=_version(),
    description="FedSS: federated learning of image representations over very many "
    "classes, with TensorFlow Federated",
    license="Apache-2.0",
    # The wheels of TFF 0.87.0 carry any Python, but the lock is made for this one.
    python_requires=">=3.11,<3.12",
    # `experiments` is a package, so that its programs run from any directory. Naming
    # the root makes an editable install one plain path entry.
    package_dir={"": "."},
    packages=setuptools.find_packages(
        include=["tff_fedss", "tff_fedss.*", "experiments", "experiments.*"]
    ),
    package_data={"": ["*.csv", "*.flags", "*.html"]},
    install_requires=_INSTALL,
    extras_require={
        "test": _requirements("test.in"),
        # CUDA 12.2 (gpu.lock), for rounds in this process. TFF's worker knows no GPUs.
        "gpu": [
            requirement.replace("tensorflow==", "tensorflow[and-cuda]==")
            for requirement in _INSTALL
            if requirement.startswith("tensorflow==")
        ],
    },
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
